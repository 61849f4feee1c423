"""Pages of real models, from a hot format to cold records and back."""

import functools
from typing import Final

import jax

from pallas_kernels import cases
from pallas_kernels.cases import Case, ModelShape
from pallas_kernels.page_layout import empty_payload
from pallas_kernels.requantize import api

NUM_PAGES: Final = 128
POOL_PAGES: Final = 256


def _case(
    way: str, model: ModelShape, hot: str, cold: str, *, host: bool = False, pages: int = NUM_PAGES
) -> Case:
    source, target = cases.layout_of(model, hot), cases.layout_of(model, cold)
    slots = max(POOL_PAGES, pages)
    pool = jax.eval_shape(functools.partial(empty_payload, source, slots))
    bank, ids = cases.bank_of(slots, target.record_bytes), cases.ids_of(pages)
    arrow = f"{hot} -> {cold}" if way == "pack" else f"{cold} -> {hot}"
    name = f"{model.name} {arrow}{' (host)' if host else ''}"
    call = functools.partial(
        api.pack if way == "pack" else api.restore, source=source, target=target
    )
    return Case(
        f"requantize_{way}", name, call, (pool, bank, ids, ids),
        ((2, pool[0].codes.shape[0]), (3, slots)), (1,) if host else (),
        (1,) if way == "pack" else (0,), pages * (source.record_bytes + target.record_bytes),
    )  # fmt: skip


CASES: Final = (
    *(
        _case(way, model, hot, cold)
        for way in ("pack", "restore")
        for model, hot, cold in (
            (cases.QWEN3_5_27B, "bf16", "nvfp4_g16"),
            (cases.QWEN3_5_27B, "int8_g64", "e2m1_g64"),
            (cases.QWEN3_5_27B, "bf16", "e2m1_g64"),
            (cases.QWEN3_NEXT_80B, "bf16", "nvfp4_g16"),
            (cases.QWEN3_NEXT_80B, "bf16", "nvfp4_g16+search"),
            (cases.QWEN3_NEXT_80B, "fp8_e4m3", "int4_g16"),
            (cases.WIDE_128, "bf16", "int4_g16"),
            (cases.WIDE_64, "int8_g64", "e2m1_g64"),
        )
    ),
    _case("pack", cases.QWEN3_5_27B, "bf16", "nvfp4_g16", host=True),
    # A prefix of 32,768 tokens.
    _case("restore", cases.QWEN3_5_27B, "bf16", "nvfp4_g16", host=True, pages=512),
)
