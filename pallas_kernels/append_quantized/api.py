"""The op's signatures, and their implementations."""

from typing import Final, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, UInt8

from pallas_kernels import dispatch
from pallas_kernels.append_quantized import pallas, reference
from pallas_kernels.codecs import Codec, Encoded

Implementation = Literal["pallas", "reference"] | None


# Fastest first; the reference runs anywhere and ends the list.
APPEND: Final = {
    "pallas": dispatch.on_gpu("append_quantized", pallas.append_quantized),
    "reference": reference.append_quantized,
}
MIRROR: Final = {
    "pallas": dispatch.on_gpu("mirror_tokens", pallas.mirror_tokens),
    "reference": reference.mirror_tokens,
}


def append_quantized(
    pool: Encoded,
    new: tuple[Float[Array, "n token head dim"], ...],
    page_ids: Int32[Array, "n token"],
    offsets: Int32[Array, "n token"],
    *,
    planes: tuple[int, ...],
    codec: Codec,
    implementation: Implementation = None,
) -> Encoded:
    """Encodes new tokens and writes them to their places in the pages of a pool.

    Bytes are those of the codec's `encode`, on every backend, for NaNs and infinities too. With the
    pool donated, it is updated in place.

    Args:
      pool: codes and scales of one format, [page, plane, head, token, width].
      new: per plane, its rows; float32, bfloat16 or float16.
      page_ids, offsets: the page of each token, and its place in the page. A token of which one
        does not exist is skipped. No place twice.
      planes: of the pool, each once; static. K and V of a layer, where both have this format.
      codec: the pool's format; static.
      implementation: None takes the first able one of "pallas" (GPUs) and "reference".

    Raises:
      ValueError: while tracing, if shapes, dtypes or planes do not fit each other.
      NotImplementedError: the named implementation cannot run here; "pallas" refuses scales of one
        byte per token that take 2 to 4 GiB.
    """
    _check_places(pool, planes, page_ids, offsets=offsets)
    _check_new(pool, new, page_ids, planes, codec)
    if not page_ids.size or not planes:
        return pool
    return dispatch.call(
        APPEND, implementation, pool, new, page_ids, offsets, planes=planes, codec=codec
    )


def mirror_tokens(
    pool: Encoded,
    bank: UInt8[Array, "slots bytes"],
    page_ids: Int32[Array, "n token"],
    offsets: Int32[Array, "n token"],
    slot_ids: Int32[Array, "n token"],
    *,
    planes: tuple[int, ...],
    codes_offset: int,
    scales_offset: int = 0,
    implementation: Implementation = None,
) -> UInt8[Array, "slots bytes"]:
    """Copies single tokens of a pool into the records of their pages, byte for byte.

    After `append_quantized` with the same places, the records hold what the pool holds. It is a
    kernel of its own, since one kernel cannot return arrays of two memories. With the bank donated,
    it is updated in place, in pinned host memory too.

    Args:
      pool: codes and scales of one format, [page, plane, head, token, width].
      bank: one record per slot, and the trash slot; in device or pinned host memory.
      page_ids, offsets: as in `append_quantized`.
      slot_ids: the slot of each token's page. A token whose page, place or slot does not exist is
        skipped.
      planes: of the pool, each once; static.
      codes_offset, scales_offset: where the format's codes and scales begin in a record, in bytes:
        see `PageLayout.fields`. Static.
      implementation: None takes the first able one of "pallas" (GPUs) and "reference".

    Raises:
      ValueError: while tracing, if shapes or planes do not fit each other, or the codes or scales
        of a page reach past the end of a record.
      NotImplementedError: the named implementation cannot run here; "pallas" refuses parts of a
        record that are no whole units of what a token's scales take, up to 4 bytes; and pools and
        banks of 2 to 4 GiB where that is one byte.
    """
    _check_places(pool, planes, page_ids, offsets=offsets, slot_ids=slot_ids)
    _check_record(pool, bank, codes_offset, scales_offset)
    if not page_ids.size or not planes:
        return bank
    return dispatch.call(
        MIRROR, implementation, pool, bank, page_ids, offsets, slot_ids, planes=planes,
        codes_offset=codes_offset, scales_offset=scales_offset,
    )  # fmt: skip


def _check_places(pool: Encoded, planes: tuple[int, ...], page_ids: Array, **others: Array) -> None:
    count = pool.codes.shape[1]
    if any(not 0 <= plane < count for plane in planes) or len(set(planes)) < len(planes):
        raise ValueError(f"planes={planes} are not distinct planes of [0, {count}).")
    for name, ids in others.items():
        if ids.shape != page_ids.shape:
            raise ValueError(f"{name} {ids.shape} are not {page_ids.shape}, as the page_ids.")


def _check_new(
    pool: Encoded, new: tuple[Array, ...], page_ids: Array, planes: tuple[int, ...], codec: Codec
) -> None:
    if len(new) != len(planes):
        raise ValueError(f"{len(new)} arrays of rows for the planes {planes}.")
    for x in new:
        want = (*page_ids.shape, pool.codes.shape[2], x.shape[-1])
        if x.shape != want:
            raise ValueError(f"rows {x.shape} are not {want}.")
        if x.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
            raise ValueError(f"rows are float32, bfloat16 or float16, not {x.dtype}.")
        codec.check_encoded(pool, x.shape[-1])


def _check_record(pool: Encoded, bank: Array, codes_offset: int, scales_offset: int) -> None:
    size = bank.shape[1]
    for name, leaf, start in (
        ("codes", pool.codes, codes_offset), ("scales", pool.scales, scales_offset)
    ):  # fmt: skip
        if leaf is None:
            continue
        end = start + leaf.size // leaf.shape[0] * leaf.dtype.itemsize
        if start < 0 or end > size:
            raise ValueError(f"{name} at bytes {start} to {end} of a record of {size} bytes.")
