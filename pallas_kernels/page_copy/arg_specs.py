"""Pages and snapshots of real models, between a pool and a bank in either memory."""

import functools
import math
from typing import Final

import jax
import jax.numpy as jnp

from pallas_kernels import cases
from pallas_kernels.cases import Case, ModelShape
from pallas_kernels.page_copy import api

NUM_PAGES: Final = 512  # a prefix of 32,768 tokens
POOL_PAGES: Final = 1024
BANK_SLOTS: Final = 2048
NUM_SNAPSHOTS: Final = 16

# Qwen3.5-27B: 48 delta-rule layers of 48 value heads, 128 x 128 in float32 (144 MiB), and the last
# three inputs of their convolutions.
SNAPSHOT_27B: Final = (
    jax.ShapeDtypeStruct((48, 3, 10240), jnp.bfloat16),
    jax.ShapeDtypeStruct((48, 48, 128, 128), jnp.float32),
)


def _records(model: ModelShape, codec: str, way: str, *, host: bool) -> Case:
    layout = cases.layout_of(model, codec)
    where = "host" if host else "device"
    name = f"{model.name} {codec} {'to' if way == 'store' else 'from'} {where}"
    pool = cases.pool_of(layout, POOL_PAGES)
    bank = cases.bank_of(BANK_SLOTS, layout.record_bytes)
    ids = cases.ids_of(NUM_PAGES)
    call = api.store_records if way == "store" else api.load_records
    return Case(
        "page_copy", name, call, (pool, bank, ids, ids), ((2, POOL_PAGES), (3, BANK_SLOTS)),
        (1,) if host else (), (1,) if way == "store" else (0,),
        2 * NUM_PAGES * layout.record_bytes,
    )  # fmt: skip


def _leaves(number: int, axis: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(
        jax.ShapeDtypeStruct((*x.shape[:axis], number, *x.shape[axis:]), x.dtype)
        for x in SNAPSHOT_27B
    )


def _snapshot_bytes() -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in SNAPSHOT_27B)


def _snapshots(way: str, number: int) -> Case:
    """Snapshots between the live rows, [layer, row, ...], and the pool or a host bank."""
    live, pool = _leaves(NUM_SNAPSHOTS, 1), _leaves(2 * NUM_SNAPSHOTS, 0)
    bank = cases.bank_of(2 * NUM_SNAPSHOTS, _snapshot_bytes())
    ids = cases.ids_of(number)
    moved = 2 * number * _snapshot_bytes()
    rows, slots = (2, NUM_SNAPSHOTS), (3, 2 * NUM_SNAPSHOTS)
    name = f"{number} snapshots of qwen3.5-27b {way}"
    if way == "save":
        call = functools.partial(api.copy_items, source_axis=1)
        return Case("page_copy", name, call, (live, pool, ids, ids), (rows, slots), (), (1,), moved)
    if way == "restore":
        call = functools.partial(api.copy_items, target_axis=1)
        sides = ((2, 2 * NUM_SNAPSHOTS), (3, NUM_SNAPSHOTS))
        return Case("page_copy", name, call, (pool, live, ids, ids), sides, (), (1,), moved)
    if way == "save to host":
        sides = ((2, 2 * NUM_SNAPSHOTS), slots)
        return Case(
            "page_copy", name, api.store_records, (pool, bank, ids, ids), sides, (1,), (1,), moved
        )
    call = functools.partial(api.load_records, axis=1)
    return Case("page_copy", name, call, (live, bank, ids, ids), (rows, slots), (1,), (0,), moved)


def _within() -> Case:
    layout = cases.layout_of(cases.QWEN3_5_27B, "bf16")
    pool, ids = cases.pool_of(layout, POOL_PAGES), cases.ids_of(64)
    name = f"{cases.QWEN3_5_27B.name} bf16 within the pool"
    sides = ((1, POOL_PAGES // 2), (2, POOL_PAGES))
    moved = 2 * 64 * layout.record_bytes
    return Case("page_copy", name, api.copy_within, (pool, ids, ids), sides, (), (0,), moved)


CASES: Final = (
    *(
        _records(model, codec, way, host=host)
        for host in (True, False)
        for way in ("store", "load")
        for model, codec in (
            (cases.QWEN3_NEXT_80B, "nvfp4_g16"),
            (cases.QWEN3_NEXT_80B, "int8_g64"),
            (cases.QWEN3_5_27B, "nvfp4_g16"),
            (cases.QWEN3_5_27B, "bf16"),
            (cases.WIDE_128, "fp8_e4m3"),
            (cases.WIDE_64, "int8_g64"),
        )
    ),
    *(
        _snapshots(way, number)
        for way in ("save", "restore", "save to host", "restore from host")
        for number in (1, NUM_SNAPSHOTS)
    ),
    _within(),
)
