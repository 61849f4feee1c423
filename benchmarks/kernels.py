"""How fast the kernels are, beside their peers and beside what the machine can do, in one run.

    python -m benchmarks.kernels [--op NAME] [-k SUBSTRING] [--tune] [--out FILE]

Cases are those that the ops name in `pallas_kernels/*/arg_specs.py`. Each is checked before it is
timed: on random finite values, with poisoned outputs and some ids that do not exist, the kernel
must leave the same bytes as the reference, on the device. One that does not is reported, and fails
the command at its end.

Times are per call, medians of rounds in which all implementations take turns, each updating its
donated arrays in place. `median_us` is without the dispatch of a call by the host, `single_us` with
it: see `benchmarks/_timing.py`. `floor_us` is what the case moves over what the machine moves at
best: device memory against the fastest copy within it, host memory against one big copy over the
bus in the same direction. `floor_ratio` is 1 where a case takes no longer than that.

`--tune` times candidates for the kernels' `Tuning` instead. `--tiny` is for a machine without a
GPU: small arrays, and only what can run there.

Progress goes to stderr, the table comes last, and `--out` gets one JSON line a measurement, as soon
as there is one.
"""

import os

# Before a backend starts: other libraries need some of the device memory, and banks are large.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "100")

import argparse
import concurrent.futures
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np

from benchmarks import _cases, _floors, _report, _timing, _tune
from pallas_kernels.cases import Case

IMPLEMENTATIONS: Final = ("pallas", "reference")


class Run:
    """What a run has found so far, written down as it comes."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.rows: list[dict[str, Any]] = []
        self.started = time.monotonic()

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        _report.append("benchmarks.kernels", row, self.args.out)

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.started > self.args.seconds

    def guarded(self, op: str, spec: str, measure: Callable[[], None]) -> None:
        """Measures; what goes wrong becomes a row, and so does what there is no time for."""
        row = {"op": op, "spec": spec, "implementation": None, "median_us": None}
        row |= {"floor_us": None, "floor_ratio": None}
        if self.is_late:
            self.add(row | {"skipped": f"after {self.args.seconds} s"})
            return
        start = time.monotonic()
        try:
            measure()
        except Exception as error:
            self.add(row | {"error": _report.reason(error)})
            _report.progress(f"{op} {spec}: {_report.reason(error)}")
        _report.progress(f"{op} {spec}: {time.monotonic() - start:.1f} s")


def measure(case: Case, floors: _floors.Floors, run: Run) -> None:
    """Checks one case and times its implementations."""
    rng = np.random.default_rng(0)
    fixed = _cases.fixed_args(case, rng)
    odd, even = (fixed | _cases.id_lists(case, rng, sentinels=s) for s in (True, False))
    floor = floors.us(case)
    state = _cases.updated_args(case)
    programs, reasons = compiled(case, state, even, floor)
    for name, reason in reasons.items():
        run.add(row_of(case, name, floor) | {"error": reason})
    singles = [program for program in programs if program.turns == 1]
    found: dict[str, Any] = {}
    if len(singles) == len(IMPLEMENTATIONS):
        other = _cases.updated_args(case)
        ours, theirs = (p(s, odd) for p, s in zip(singles, (state, other), strict=True))
        wrong = _cases.num_differing(ours, theirs)
        found = {"equal": not wrong, "num_differing": wrong}
        state = ours[0]
        del other, ours, theirs
    chain = _timing.Chain(state, even)
    for program in singles:
        steady = next((p for p in programs if p.turns > 1 and _same(p, program)), None)
        steady = steady or needed_loop(program, chain)
        if steady not in (None, *programs):
            programs.append(steady)
    times = steady_times(programs, chain, floor, run.args.repeats)
    for program in singles:
        run.add(row_of(case, program.implementation, floor) | times[program.implementation] | found)


def _same(a: _timing.Program, b: _timing.Program) -> bool:
    return a.implementation == b.implementation


def row_of(case: Case, implementation: str, floor: float) -> dict[str, Any]:
    """What a row says of a case before anything is measured."""
    crossing = _cases.bus(case)
    return {
        "op": case.op, "spec": case.name, "implementation": implementation, "median_us": None,
        "floor_us": round(floor, 2), "floor_ratio": None, "bytes": case.moved_bytes,
        "bus_bytes": crossing[1] if crossing else 0,
    }  # fmt: skip


def compiled(
    case: Case, state: Any, rest: dict[int, Any], floor: float
) -> tuple[list[_timing.Program], dict[str, str]]:
    """Every implementation that is able, and a loop of the kernel if calls are short."""
    wanted = [_timing.Program(case, name) for name in IMPLEMENTATIONS]
    if floor < _timing.SHORT_US:
        wanted.append(_timing.Program(case, "pallas", _timing.turns_for(floor)))
    programs, reasons = [], {}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        futures = [pool.submit(program.compile, state, rest) for program in wanted]
        for program, future in zip(wanted, futures, strict=True):
            try:
                programs.append(future.result())
            except Exception as error:
                reasons[program.implementation] = _report.reason(error)
    return programs, reasons


def needed_loop(program: _timing.Program, chain: _timing.Chain) -> _timing.Program | None:
    """A loop of a program whose calls turn out short."""
    call = chain.calls(program)
    call()
    us = min(_timing.row_us(call, 1) for _ in range(2))
    if us > _timing.SHORT_US:
        return None
    turns = _timing.turns_for(us)
    return _timing.Program(program.case, program.implementation, turns).compile(
        chain.state, chain.rest
    )


def steady_times(
    programs: list[_timing.Program], chain: _timing.Chain, floor: float, repeats: int
) -> dict[str, dict[str, Any]]:
    """What each implementation's row says of its times."""
    rows = max(1, min(4, round(_timing.CALL_US / max(floor, 1.0))))
    calls = {}
    for program in programs:
        call = chain.calls(program)
        if program.turns == 1:
            calls[program.implementation, "single"] = (call, 1, 1)
            calls.setdefault((program.implementation, "steady"), (call, rows, 1))
        else:
            calls[program.implementation, "steady"] = (call, 1, program.turns)
    times = _timing.alternate({k: (call, n) for k, (call, n, _) in calls.items()}, repeats)
    found: dict[str, dict[str, Any]] = {}
    for (name, kind), each in times.items():
        _, number, turns = calls[name, kind]
        row = found.setdefault(name, {})
        if kind == "single":
            row |= {"single_us": round(each.median, 2)}
            continue
        low, high = each.quartiles
        row |= {
            "median_us": round(each.median / turns, 2),
            "quartiles_us": [round(low / turns, 2), round(high / turns, 2)],
            "floor_ratio": round(floor * turns / each.median, 4),
            "n": len(each.each),
            "calls": number * turns,
        }
    return found


def case_table(rows: list[dict[str, Any]]) -> str:
    """One line a case and implementation."""

    def number(row, key, digits):
        return "" if row.get(key) is None else f"{row[key]:.{digits}f}"

    lines = []
    for row in rows:
        state = row.get("error") or row.get("skipped") or row.get("note") or ""
        if row.get("equal") is False:
            state = f"DIFFERS in {row['num_differing']}"
        lines.append(
            (f"{row['op']} {row['spec']}", row["implementation"] or "-",
             number(row, "floor_us", 1), number(row, "median_us", 1),
             number(row, "floor_ratio", 3), number(row, "single_us", 1), state[:40])
        )  # fmt: skip
    header = ("case", "by", "floor us", "us", "floor/us", "single us", "")
    return _report.table(header, lines)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--op", help="only cases of this op, or of ops that begin so")
    parser.add_argument("-k", default="", metavar="SUBSTRING", help="only cases that hold it")
    parser.add_argument("--repeats", type=int, default=7, help="rounds of timing")
    parser.add_argument("--seconds", type=float, default=240, help="nothing is begun after these")
    parser.add_argument("--tune", action="store_true", help="time candidates for Tuning instead")
    parser.add_argument("--tiny", action="store_true", help="small arrays, for a test without GPU")
    _report.add_out(parser)
    return parser.parse_args()


def main() -> int:
    args = parsed()
    run = Run(args)
    floors = _floors.measure(tiny=args.tiny)
    for row in floors.rows:
        run.add(row)
    if args.tune:
        _tune.tune(run, floors)
    else:
        for case in _cases.discover():
            wanted = args.op is None or case.op.startswith(args.op)
            if wanted and args.k in f"{case.op} {case.name}":
                case = _cases.shrunk(case) if args.tiny else case
                run.guarded(case.op, case.name, lambda c=case: measure(c, floors, run))
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}")
    print(case_table(_tune.shown(run.rows)))
    return int(any(row.get("equal") is False or _is_failure(row) for row in run.rows))


def _is_failure(row: dict[str, Any]) -> bool:
    """Whether a row tells of an error other than that an implementation is not able."""
    return not row.get("error", "NotImplementedError").startswith("NotImplementedError")


if __name__ == "__main__":
    sys.exit(main())
