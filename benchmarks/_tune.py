"""Which `Tuning` is fastest: one parameter after the other, each at the best of those before.

Candidates of one parameter are compiled at once and timed in turn, on the arrays of the ops' own
cases. That they leave the same bytes is for `tests` and for the run without `--tune`.
"""

import concurrent.futures
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax import lax

from benchmarks import _cases, _floors, _report, _timing
from pallas_kernels.banks import num_slots
from pallas_kernels.cases import Case
from pallas_kernels.page_copy import pallas as page_copy
from pallas_kernels.page_copy.pairs import existing
from pallas_kernels.requantize import pallas as requantize

Grid = tuple[tuple[str, tuple[int, ...]], ...]

OVER_THE_BUS: Final[Grid] = (
    ("programs", (4, 8, 16, 32, 64, 132)),
    ("chunk", (2048, 4096, 8192, 16384)),
    ("num_warps", (4, 8, 16)),
    ("programs", (4, 8, 16, 32, 64, 132)),
)
WITHIN_DEVICE: Final[Grid] = (
    ("programs", (132, 264, 528, 1056, 2112)),
    ("chunk", (1024, 2048, 4096, 8192)),
    ("num_warps", (2, 4, 8, 16)),
)
TRANSCODING: Final[Grid] = (
    ("rows", (8, 16, 32, 64)),
    ("num_warps", (1, 2, 4, 8)),
    ("programs", (132 * 4, 132 * 8, 132 * 16, 132 * 32)),
    ("rows", (8, 16, 32, 64)),
)
TRANSCODING_FROM_HOST: Final[Grid] = (
    ("programs", (16, 32, 64, 132, 132 * 4, 132 * 16)),
    ("rows", (8, 16, 32, 64)),
    ("num_warps", (1, 2, 4, 8)),
)


class Search(NamedTuple):
    """One kernel at one shape.

    Attributes:
      case: substring of the name of the case that it takes its arrays from, and of its op.
      kernel: (args of the case, tuning) -> what is updated.
      start: where the search begins.
      grid: values per parameter, in the order of the search.
    """

    case: tuple[str, str]
    kernel: Callable[[list[Any], Any, Case], Any]
    start: Any
    grid: Grid


def _store(args: list[Any], tuning: Any, case: Case) -> Any:
    pool, bank, item_ids, slot_ids = args
    pairs = existing(item_ids, pool[0].shape[0], slot_ids, num_slots(bank))
    return page_copy.store_records(pool, bank, pairs, axis=0, tuning=tuning)


def _load(args: list[Any], tuning: Any, case: Case) -> Any:
    pool, bank, item_ids, slot_ids = args
    pairs = existing(slot_ids, num_slots(bank), item_ids, pool[0].shape[0])
    return page_copy.load_records(pool, bank, pairs, axis=0, tuning=tuning)


def _within(args: list[Any], tuning: Any, case: Case) -> Any:
    pool, sources, targets = args
    size = pool[0].shape[0]
    return page_copy.copy_within(pool, existing(sources, size, targets, size), tuning=tuning)


def _pack(args: list[Any], tuning: Any, case: Case) -> Any:
    pool, bank, page_ids, slot_ids = args
    pairs = existing(page_ids, pool[0].codes.shape[0], slot_ids, num_slots(bank))
    layouts: dict[str, Any] = getattr(case.call, "keywords", {})
    return requantize.pack(pool, bank, pairs, tuning=tuning, **layouts)[0]


def _restore(args: list[Any], tuning: Any, case: Case) -> Any:
    pool, bank, page_ids, slot_ids = args
    pairs = existing(slot_ids, num_slots(bank), page_ids, pool[0].codes.shape[0])
    layouts: dict[str, Any] = getattr(case.call, "keywords", {})
    return requantize.restore(pool, bank, pairs, tuning=tuning, **layouts)


_SMALL: Final = "qwen3-next-80b nvfp4_g16"  # records of 0.44 MB
_LARGE: Final = "qwen3.5-27b nvfp4_g16"  # 1.18 MB
_PACKED: Final = "qwen3.5-27b bf16 -> nvfp4_g16"
_RESTORED: Final = "qwen3.5-27b nvfp4_g16 -> bf16"

SEARCHES: Final = (
    Search(("page_copy", f"{_SMALL} to host"), _store, page_copy.TO_HOST, OVER_THE_BUS),
    Search(("page_copy", f"{_LARGE} to host"), _store, page_copy.TO_HOST, OVER_THE_BUS),
    Search(("page_copy", f"{_SMALL} from host"), _load, page_copy.FROM_HOST, OVER_THE_BUS),
    Search(("page_copy", f"{_LARGE} from host"), _load, page_copy.FROM_HOST, OVER_THE_BUS),
    Search(("requantize_pack", _PACKED), _pack, requantize.PACK, TRANSCODING),
    Search(("requantize_restore", _RESTORED), _restore, requantize.RESTORE, TRANSCODING),
    Search(
        ("requantize_restore", f"{_RESTORED} (host)"), _restore, requantize.RESTORE,
        TRANSCODING_FROM_HOST,
    ),
    Search(("page_copy", f"{_LARGE} to device"), _store, page_copy.ON_DEVICE, WITHIN_DEVICE),
    Search(("page_copy", "bf16 within the pool"), _within, page_copy.ON_DEVICE, WITHIN_DEVICE),
)  # fmt: skip


def tune(run: Any, floors: _floors.Floors) -> None:
    """Searches all of `SEARCHES`; one row a candidate, and the best of each."""
    for search in SEARCHES:
        op, name = search.case
        if run.args.k not in f"{op} {name}" or not op.startswith(run.args.op or ""):
            continue
        case = next((c for c in _cases.discover() if c.op == op and c.name.endswith(name)), None)
        if case is None:
            _report.progress(f"no case {op} {name}")
            continue
        run.guarded(op, f"tune {name}", lambda c=case, s=search: _search(run, c, s, floors))


def _search(run: Any, case: Case, search: Search, floors: _floors.Floors) -> None:
    rng = np.random.default_rng(0)
    rest = _cases.fixed_args(case, rng) | _cases.id_lists(case, rng, sentinels=False)
    state, floor = _cases.updated_args(case), floors.us(case)
    turns = _timing.turns_for(floor)
    best, known = search.start, {}
    for field, values in search.grid:
        tunings = [best._replace(**{field: value}) for value in values]
        fresh = [tuning for tuning in dict.fromkeys([best, *tunings]) if tuning not in known]
        programs = _compiled(run, case, search, fresh, (state, rest, turns))
        state = _timed(programs, state, rest, turns, known)
        if known:
            best = min(known, key=lambda tuning: known[tuning].median)
    for tuning, times in known.items():
        low, high = times.quartiles
        run.add(
            {"op": f"tune {case.op}", "spec": case.name, "implementation": "pallas",
             "median_us": round(times.median, 2), "floor_us": round(floor, 2),
             "floor_ratio": round(floor / times.median, 4), "bytes": case.moved_bytes,
             "quartiles_us": [round(low, 2), round(high, 2)], "n": len(times.each),
             "calls": turns, "tuning": tuning._asdict(), "best": tuning == best,
             "note": ", ".join(f"{v} {k}" for k, v in tuning._asdict().items())}
        )  # fmt: skip


def _compiled(run: Any, case: Case, search: Search, tunings: list[Any], given: Any) -> dict:
    """Programs by tuning, of those that compile."""
    state, rest, turns = given

    def compile_one(tuning):
        def step(state, rest):
            args = dict(zip(case.donated, state, strict=True)) | rest
            return (search.kernel([args[i] for i in range(len(case.args))], tuning, case),)

        def loop(state, rest):
            return lax.fori_loop(0, turns, lambda _, state: step(state, rest), state)

        updated = tuple(_cases.memory(host=i in case.host) for i in case.donated)
        jitted = jax.jit(loop, donate_argnums=0, out_shardings=updated)
        return jitted.lower(state, rest).compile()

    programs = {}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for tuning, future in [(t, pool.submit(compile_one, t)) for t in tunings]:
            try:
                programs[tuning] = future.result()
            except Exception as error:
                run.add(
                    {"op": f"tune {case.op}", "spec": case.name, "implementation": "pallas",
                     "median_us": None, "floor_us": None, "floor_ratio": None,
                     "tuning": tuning._asdict(), "error": _report.reason(error)}
                )  # fmt: skip
    return programs


def _timed(programs: dict, state: Any, rest: Any, turns: int, known: dict) -> Any:
    """Times programs in turn into `known`; returns the state that they leave."""
    times: dict[Any, list[float]] = {tuning: [] for tuning in programs}
    for turn in range(6):
        for tuning, program in programs.items():
            start = time.perf_counter_ns()
            state = jax.block_until_ready(program(state, rest))
            if turn:
                times[tuning].append((time.perf_counter_ns() - start) / 1e3 / turns)
    known |= {tuning: _timing.Times(tuple(sorted(each))) for tuning, each in times.items()}
    return state


def shown(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows for the table: of candidates the best alone."""
    return [row for row in rows if row.get("best", True)]
