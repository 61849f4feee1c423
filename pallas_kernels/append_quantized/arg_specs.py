"""One layer's K and V of a step: a token of each of 64 rows, or 2,048 tokens of one prompt."""

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import cases
from pallas_kernels.append_quantized import api
from pallas_kernels.cases import Case, ModelShape
from pallas_kernels.codecs import Encoded, get_codec
from pallas_kernels.page_layout import empty_payload

POOL_PAGES: Final = 256
BANK_SLOTS: Final = 512
STEPS: Final = {"decode": (64, 1), "prefill": (1, 2048)}
LAYER: Final = 3


def _append(pool, k, v, page_ids, offsets, *, implementation=None, **static: Any) -> Encoded:
    return api.append_quantized(
        pool, (k, v), page_ids, offsets, implementation=implementation, **static
    )


def _places(
    rng: np.random.Generator, *, shape: tuple[int, int], page_size: int, slots: int | None
) -> tuple[np.ndarray, ...]:
    """Page ids, offsets, and with a number of slots the slot of each token's page."""
    rows, tokens = shape
    pages = -(-tokens // page_size)
    positions = np.broadcast_to(np.arange(tokens), shape)
    if tokens == 1:
        positions = rng.integers(0, page_size, shape)

    def spread(number):
        ids = rng.permutation(number)[: rows * pages].reshape(rows, pages)
        return np.take_along_axis(ids, positions // page_size, axis=1).astype(np.int32)

    places = spread(POOL_PAGES), (positions % page_size).astype(np.int32)
    return places if slots is None else (*places, spread(slots))


def _case(step: str, model: ModelShape, name: str, *, mirror: bool = False) -> Case:
    layout, codec, shape = cases.layout_of(model, name), get_codec(name), STEPS[step]
    (pool,) = jax.eval_shape(functools.partial(empty_payload, layout, POOL_PAGES))
    rows = jax.ShapeDtypeStruct((*shape, model.num_kv_heads, model.head_dim), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct(shape, jnp.int32)
    planes = (2 * LAYER, 2 * LAYER + 1)
    stored = sum(layout.plane_bytes[LAYER, kv] for kv in (0, 1)) // model.page_size
    tokens = shape[0] * shape[1]
    name = f"{model.name} {name} {step}"
    make = functools.partial(
        _places, shape=shape, page_size=model.page_size, slots=BANK_SLOTS if mirror else None
    )
    if not mirror:
        call = functools.partial(_append, planes=planes, codec=codec)
        moved = tokens * (stored + 2 * model.num_kv_heads * model.head_dim * 2)
        return Case(
            "append_quantized", name, call, (pool, rows, rows, ids, ids), (), (), (0,), moved, make
        )
    offsets = [field.offset for field in layout.fields]
    call = functools.partial(
        api.mirror_tokens, planes=planes, codes_offset=offsets[0], scales_offset=offsets[-1]
    )
    bank = cases.bank_of(BANK_SLOTS, layout.record_bytes)
    return Case(
        "mirror_tokens", f"{name} (host)", call, (pool, bank, ids, ids, ids), (), (1,), (1,),
        2 * tokens * stored, make,
    )  # fmt: skip


CASES: Final = (
    *(
        _case(step, model, name)
        for step in STEPS
        for model, name in (
            (cases.QWEN3_5_27B, "int8_g64"),
            (cases.QWEN3_5_27B, "bf16"),
            (cases.QWEN3_5_27B, "nvfp4_g16"),
            (cases.QWEN3_5_27B, "fp8_e4m3"),
            (cases.QWEN3_NEXT_80B, "int8_g64"),
            (cases.WIDE_128, "fp8_e4m3"),
            (cases.WIDE_64, "int8_g64"),
        )
    ),
    *(
        _case(step, model, name, mirror=True)
        for step in STEPS
        for model, name in (
            (cases.QWEN3_5_27B, "int8_g64"),
            (cases.QWEN3_5_27B, "nvfp4_g16"),
            (cases.WIDE_64, "int8_g64"),
        )
    ),
)
