"""One case: whether its implementations leave the same bytes, and how long they take."""

import concurrent.futures
import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks import _arrays, _cases, _floors, _report, _timing
from pallas_kernels.cases import Case

IMPLEMENTATIONS: Final = ("pallas", "reference")
MOST_COMPILERS: Final = 12
IN_ROW: Final = 3  # long calls that are dispatched before the first is waited for


class Built(NamedTuple):
    """The compiled implementations of a case.

    Attributes:
      programs: of those that are able; of the kernel also a loop, where calls are short.
      reasons: implementation -> why it is not there.
    """

    programs: list[_timing.Program]
    reasons: dict[str, str]


def build(cases: Sequence[Case], floors: _floors.Floors) -> list[Built]:
    """Compiles everything at once, on all cores, and before anything is timed."""
    built = [Built([], {}) for _ in cases]
    with concurrent.futures.ThreadPoolExecutor(min(MOST_COMPILERS, os.cpu_count() or 1)) as pool:
        waiting = []
        for number, case in enumerate(cases):
            wanted = [_timing.Program(case, name) for name in IMPLEMENTATIONS]
            if floors.us(case) < _timing.SHORT_US:
                wanted.append(_timing.Program(case, "pallas", _timing.turns_for(floors.us(case))))
            waiting += [(number, program, pool.submit(program.compile)) for program in wanted]
            pool.submit(_cases.prepare, case)  # what fails fails again when it is used
        for number, program, future in waiting:
            try:
                built[number].programs.append(future.result())
            except Exception as error:
                built[number].reasons[program.implementation] = _report.reason(error)
    return built


def row_of(case: Case, implementation: str, floor: float) -> dict[str, Any]:
    """What a row says of a case before anything is measured."""
    crossing = _cases.bus(case)
    return {
        "op": case.op, "spec": case.name, "implementation": implementation, "median_us": None,
        "floor_us": round(floor, 2), "floor_ratio": None, "bytes": case.moved_bytes,
        "bus_bytes": crossing[1] if crossing else 0,
    }  # fmt: skip


def measure(case: Case, built: Built, floor: float, run: Any) -> None:
    """Checks one case and times its implementations; one row each."""
    for name, reason in built.reasons.items():
        key = "unable" if reason.startswith("NotImplementedError") else "error"
        run.add(row_of(case, name, floor) | {key: reason})
    singles = [program for program in built.programs if program.turns == 1]
    if not singles:
        return
    rng = np.random.default_rng(0)
    fixed = _cases.fixed_args(case, rng)
    found = {}
    if len(singles) == len(IMPLEMENTATIONS):
        rest = fixed | _cases.id_lists(case, rng, sentinels=True)
        wrong = num_wrong(case, singles, rest)
        found = {"equal": not wrong, "num_differing": wrong}
    rest = fixed | _cases.id_lists(case, rng, sentinels=False)
    chain = _timing.Chain(_cases.updated_args(case), rest)
    loops = [program for program in built.programs if program.turns > 1]
    for program in singles:
        if program.implementation not in {loop.implementation for loop in loops}:
            loops += _loop_if_short(program, chain)
    times = _timed([*singles, *loops], chain, floor, run.args.repeats)
    for program in singles:
        name = program.implementation
        run.add(row_of(case, name, floor) | times[name] | found)


def num_wrong(case: Case, singles: Sequence[_timing.Program], rest: dict[int, Any]) -> int:
    """Elements that two programs leave different, from the same poisoned arrays."""
    ours, theirs = (program(_cases.updated_args(case), rest) for program in singles)
    return sum(_arrays.num_differing(a, b) for a, b in zip(ours, theirs, strict=True))


def _loop_if_short(program: _timing.Program, chain: _timing.Chain) -> list[_timing.Program]:
    """A loop of a program whose calls turn out to be short."""
    call = chain.call_of(program)
    _timing.row_us(call, 1)
    us = min(_timing.row_us(call, 1) for _ in range(2))
    if us > _timing.SHORT_US:
        return []
    turns = _timing.turns_for(us)
    return [_timing.Program(program.case, program.implementation, turns).compile()]


def _timed(
    programs: list[_timing.Program], chain: _timing.Chain, floor: float, repeats: int
) -> dict[str, dict[str, Any]]:
    """What each implementation's row says of its times."""
    calls = {}
    for program in programs:  # loops come last, and take the place of rows
        call, name = chain.call_of(program), program.implementation
        if program.turns > 1:
            calls[name, "steady"] = (call, 1, program.turns)
        else:
            calls[name, "single"], calls[name, "steady"] = (call, 1, 1), (call, IN_ROW, 1)
    times = _timing.alternate({key: (call, n) for key, (call, n, _) in calls.items()}, repeats)
    found: dict[str, dict[str, Any]] = {}
    for (name, kind), each in times.items():
        _, number, turns = calls[name, kind]
        row = found.setdefault(name, {})
        if kind == "single":
            row["single_us"] = round(each.median, 2)
        else:
            row |= _timing.summary(each, floor, turns) | {"calls": number * turns}
    return found
