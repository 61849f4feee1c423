"""Which `Tuning` is fastest: one parameter after the other, each at the best of those before.

Candidates of one parameter are compiled at once and timed in turn, on the arrays of the ops' own
cases. That they leave the same bytes is for `tests` and for the run without `--tune`.
"""

import concurrent.futures
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

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
    ("programs", (132, 528, 2112, 8448)),
    ("chunk", (1024, 2048, 4096, 8192)),
    ("num_warps", (2, 4, 8, 16)),
)
TRANSCODING: Final[Grid] = (
    ("rows", (8, 16, 32, 64)),
    ("num_warps", (1, 2, 4, 8)),
    ("programs", tuple(132 * 2**n for n in range(3, 10))),
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
      case: op and name of the case that it takes its arrays from.
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
_PACKED_BYTES: Final = "qwen3.5-27b int8_g64 -> e2m1_g64"
_RESTORED_BYTES: Final = "qwen3.5-27b e2m1_g64 -> int8_g64"

SEARCHES: Final = (
    Search(("page_copy", f"{_SMALL} to host"), _store, page_copy.TO_HOST, OVER_THE_BUS),
    Search(("page_copy", f"{_LARGE} to host"), _store, page_copy.TO_HOST, OVER_THE_BUS),
    Search(("page_copy", f"{_SMALL} from host"), _load, page_copy.FROM_HOST, OVER_THE_BUS),
    Search(("page_copy", f"{_LARGE} from host"), _load, page_copy.FROM_HOST, OVER_THE_BUS),
    Search(("requantize_pack", _PACKED), _pack, requantize.PACK_BY_GROUP, TRANSCODING),
    Search(("requantize_pack", _PACKED_BYTES), _pack, requantize.PACK_BY_GROUP, TRANSCODING),
    Search(("requantize_restore", _RESTORED), _restore, requantize.RESTORE, TRANSCODING),
    Search(("requantize_restore", _RESTORED_BYTES), _restore, requantize.RESTORE, TRANSCODING),
    Search(
        ("requantize_restore", f"{_RESTORED} (host)"), _restore, requantize.RESTORE,
        TRANSCODING_FROM_HOST,
    ),
    Search(("page_copy", f"{_LARGE} to device"), _store, page_copy.ON_DEVICE, WITHIN_DEVICE),
    Search(
        ("page_copy", "qwen3.5-27b bf16 within the pool"), _within, page_copy.ON_DEVICE,
        WITHIN_DEVICE,
    ),
)  # fmt: skip


def tune(run: Any, floors: _floors.Floors) -> None:
    """Searches all of `SEARCHES`; one row a candidate, and the best of each."""
    known = {(case.op, case.name): case for case in _cases.discover()}
    for search in SEARCHES:
        op, name = search.case
        if run.wants(op, name) and search.case in known:
            case = _cases.sized(known[search.case], tiny=run.args.tiny)
            run.guarded(op, f"tune {name}", lambda c=case, s=search: _search(run, c, s, floors))


def _search(run: Any, case: Case, search: Search, floors: _floors.Floors) -> None:
    rng = np.random.default_rng(0)
    rest = _cases.fixed_args(case, rng) | _cases.id_lists(case, rng, sentinels=False)
    chain, floor = _timing.Chain(_cases.updated_args(case), rest), floors.us(case)
    turns = _timing.turns_for(floor)
    best, known, tried = search.start, {}, set()
    for field, values in search.grid:
        tunings = [best, *(best._replace(**{field: value}) for value in values)]
        fresh = [tuning for tuning in dict.fromkeys(tunings) if tuning not in tried]
        tried |= set(fresh)
        known |= _times(run, _Tuned(case, search, turns), fresh, chain)
        if not known:
            raise RuntimeError("no candidate compiles")
        best = min(known, key=lambda tuning: known[tuning].median)
    for tuning, times in known.items():
        run.add(
            _row(case, tuning)
            | _timing.summary(times, floor, turns)
            | {"bytes": case.moved_bytes, "calls": turns, "best": tuning == best}
        )


def _row(case: Case, tuning: Any) -> dict[str, Any]:
    return {
        "op": f"tune {case.op}", "spec": case.name, "implementation": "pallas", "median_us": None,
        "floor_us": None, "floor_ratio": None, "tuning": tuning._asdict(),
        "note": ", ".join(f"{value} {name}" for name, value in tuning._asdict().items()),
    }  # fmt: skip


class _Tuned(NamedTuple):
    """A kernel at one shape, to be compiled with one tuning or another."""

    case: Case
    search: Search
    turns: int

    def compile(self, tuning: Any) -> _timing.Program:
        def call(*args: Any, implementation: str) -> Any:
            return self.search.kernel(list(args), tuning, self.case)

        return _timing.Program(self.case._replace(call=call), "pallas", self.turns).compile()


def _times(run: Any, tuned: _Tuned, tunings: list[Any], chain: _timing.Chain) -> dict:
    """Times by tuning, of those that compile."""
    calls = {}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for tuning, future in [(t, pool.submit(tuned.compile, t)) for t in tunings]:
            try:
                calls[tuning] = (chain.call_of(future.result()), 1)
            except Exception as error:
                run.add(_row(tuned.case, tuning) | {"unable": _report.reason(error)})
    return _timing.alternate(calls, run.args.repeats)
