"""What others would do with the same work: one `device_put` a record; torch; FlashInfer."""

from typing import Any, Final

import jax
import numpy as np

from benchmarks import _arrays, _cases, _flashinfer, _floors, _measure, _report, _timing, _torch
from pallas_kernels.cases import Case

PUT: Final = (
    "qwen3-next-80b nvfp4_g16 to host",
    "qwen3-next-80b nvfp4_g16 from host",
    "qwen3.5-27b nvfp4_g16 to host",
    "qwen3.5-27b nvfp4_g16 from host",
)
RESTORED: Final = "qwen3.5-27b nvfp4_g16 -> bf16"
WIDTHS: Final = (256, 2048)  # channels of a row: a head's, and what fills FlashInfer's blocks
CHECKED_ROWS: Final = 512


def measure(run: Any, floors: _floors.Floors) -> None:
    """Measures all of them, at some cases of the ops."""
    for case in _cases.discover():
        case = _cases.sized(case, tiny=run.args.tiny)
        if case.op == "page_copy" and case.name in PUT:
            peer, work = "device_put a record", puts
        elif case.op == "requantize_restore" and case.name == RESTORED:
            peer, work = "torch, FlashInfer", restores
        else:
            continue
        if run.wants(case.op, case.name):
            floor = floors.us(case)
            run.guarded(
                case.op, f"{case.name}: {peer}", lambda c=case, f=floor, w=work: w(run, c, f)
            )


def puts(run: Any, case: Case, floor: float) -> None:
    """As many arrays of one record each, all asked for by one call."""
    number = case.args[case.ids[0][0]].shape[0]
    to_host = 1 in case.donated
    source, target = (_arrays.memory(host=h) for h in (not to_host, to_host))
    together = jax.ShapeDtypeStruct((number, case.args[1].shape[1]), case.args[1].dtype)
    together = _arrays.random(together)
    records = [jax.device_put(together[i], source) for i in range(number)]

    def call():
        return jax.device_put(records, target)

    times = _timing.alternate({"": (call, 1)}, run.args.repeats)[""]
    row = _measure.row_of(case, "device_put a record", floor)
    run.add(row | _timing.summary(times, floor))


def restores(run: Any, case: Case, floor: float) -> None:
    """The restore in torch, and FlashInfer's decoding of the same number of bytes."""
    try:
        restore = _restore(case)
    except Exception as error:
        run.add(_measure.row_of(case, "torch", floor) | {"unable": _report.reason(error)})
        return
    times = _torch.times_of(restore, floor, run.args.repeats)
    wrong = {"equal": not restore.num_wrong, "num_differing": restore.num_wrong}
    run.add(_measure.row_of(case, "torch", floor) | _timing.summary(times, floor) | wrong)
    row = _measure.row_of(case, "flashinfer", floor)
    try:
        kernel = _flashinfer.FlashInfer(run.args.flashinfer or _flashinfer.found())
        run.add(row | _best_width(kernel, restore, floor, run.args.repeats))
    except Exception as error:
        run.add(row | {"unable": _report.reason(error)})


def _restore(case: Case) -> _torch.Restore:
    """torch's restore, on the arrays on which it was compared with the reference."""
    rng = np.random.default_rng(0)
    rest = _cases.fixed_args(case, rng) | _cases.id_lists(case, rng, sentinels=False)
    program = _timing.Program(case, "reference").compile()
    ((pool,),), _ = program(_cases.updated_args(case), rest)
    return _torch.Restore(pool.codes, rest[1], rest[2], rest[3])


def _best_width(
    kernel: _flashinfer.FlashInfer, restore: _torch.Restore, floor: float, repeats: int
) -> dict[str, Any]:
    """What the row says of FlashInfer: the faster width of rows, and whether it is right."""
    codes, scales = (part.contiguous() for part in restore.parts())
    found: dict[int, _timing.Times] = {}
    wrong = 0
    for width in WIDTHS:
        call, out = kernel.call_of(codes, scales, width)
        found[width] = _torch.times_of(call, floor, repeats)
        wrong += restore.num_differing_rows(codes, scales, out[:CHECKED_ROWS])
    best = min(found, key=lambda width: found[width].median)
    return _timing.summary(found[best], floor) | {
        "equal": not wrong,
        "num_differing": wrong,
        "width": best,
        "us_by_width": {width: round(times.median, 2) for width, times in found.items()},
        "compile_s": round(kernel.seconds, 1),
        "note": f"no gather; rows of {best}; {round(kernel.seconds)} s of nvcc",
    }
