"""The op's signatures, and their implementations."""

from typing import Final, Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt8

from pallas_kernels import dispatch
from pallas_kernels.banks import num_slots
from pallas_kernels.page_copy.pairs import existing
from pallas_kernels.page_layout import PageLayout, Payload
from pallas_kernels.requantize import pallas, reference

Implementation = Literal["pallas", "reference", "triton"] | None


def _by_triton(name: str):
    def call(*args, **kwargs):
        try:
            from pallas_kernels.requantize import triton_calls
        except ImportError as error:
            raise NotImplementedError(
                f"the Triton kernels of requantize need the extra tiercache[triton]: {error}."
            ) from error
        return getattr(triton_calls, name)(*args, **kwargs)

    return call


def _implementations(name: str) -> dict:
    # Fastest first; the reference runs anywhere, so what comes after it is taken by name alone.
    return {
        "pallas": dispatch.on_gpu("requantize", getattr(pallas, name)),
        "reference": getattr(reference, name),
        "triton": dispatch.on_gpu("requantize", _by_triton(name)),
    }


PACK: Final = _implementations("pack")
RESTORE: Final = _implementations("restore")


def pack(
    pool: Payload,
    bank: UInt8[Array, "slots bytes"],
    page_ids: Int32[Array, "n"],
    slot_ids: Int32[Array, "n"],
    *,
    source: PageLayout,
    target: PageLayout,
    implementation: Implementation = None,
) -> tuple[UInt8[Array, "slots bytes"], Bool[Array, "n"]]:
    """Re-encodes pages of a pool into slots of a bank, every plane of them.

    Bytes are those of decoding with the source's codec and encoding with the target's, on every
    backend: see `pallas_kernels.codecs`. With the bank donated, it is updated in place.

    Args:
      pool: per format, codes and scales, [page, plane, head, token, width].
      bank: one record per slot, and the trash slot; in device or pinned host memory.
      page_ids, slot_ids: what goes where. A pair of which one id does not exist is skipped. No slot
        twice.
      source, target: how a page lies in the pool, and in a record; static.
      implementation: None takes the first able one of "pallas" (GPUs) and "reference"; "triton"
        (GPUs, with the extra tiercache[triton]) is taken by its name.

    Returns:
      The bank, and per pair whether every value of the page was finite, over all layers and heads;
      True where it was skipped. The record of a page that is not finite is unspecified.

    Raises:
      ValueError: while tracing, if the layouts have different geometry, or the records of the bank
        another size.
      NotImplementedError: the named implementation cannot serve the call here.
    """
    _check(bank, source, target)
    if not page_ids.size:
        return bank, jnp.ones(page_ids.shape, bool)
    num_pages = pool[0].codes.shape[0]
    pairs = existing(page_ids, num_pages, slot_ids, num_slots(bank))
    bank, flags = dispatch.call(
        PACK, implementation, pool, bank, pairs, source=source, target=target
    )
    return bank, flags == 1


def restore(
    pool: Payload,
    bank: UInt8[Array, "slots bytes"],
    page_ids: Int32[Array, "n"],
    slot_ids: Int32[Array, "n"],
    *,
    source: PageLayout,
    target: PageLayout,
    implementation: Implementation = None,
) -> Payload:
    """Decodes slots of a bank into pages of a pool: the way back of `pack`.

    Args and what is raised are those of `pack`; `source` still is the pool's layout. No page twice.
    With the pool donated, it is updated in place.
    """
    _check(bank, source, target)
    if not page_ids.size:
        return pool
    pairs = existing(slot_ids, num_slots(bank), page_ids, pool[0].codes.shape[0])
    return dispatch.call(RESTORE, implementation, pool, bank, pairs, source=source, target=target)


def _check(bank: Array, source: PageLayout, target: PageLayout) -> None:
    shapes = [(x.num_layers, x.num_kv_heads, x.page_size, x.head_dim) for x in (source, target)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"layers, heads, tokens, channels {shapes[0]} are not {shapes[1]}.")
    if bank.shape[1] != target.record_bytes:
        raise ValueError(
            f"records of {target.record_bytes} bytes are not those of the bank, {bank.shape[1]}."
        )
