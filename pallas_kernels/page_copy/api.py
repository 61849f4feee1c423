"""The op's signatures, and their implementations."""

from typing import Final, Literal

import jax.numpy as jnp
from jaxtyping import Array, Int32, Shaped, UInt8

from pallas_kernels import dispatch
from pallas_kernels.banks import num_slots
from pallas_kernels.page_copy import pallas, reference
from pallas_kernels.page_copy.pairs import existing

Leaves = tuple[Shaped[Array, "..."], ...]
Implementation = Literal["pallas", "reference"] | None


def _implementations(name: str) -> dict:
    # Fastest first; the reference runs anywhere.
    kernel = dispatch.on_gpu(name, getattr(pallas, name))
    return {"pallas": kernel, "reference": getattr(reference, name)}


STORE: Final = _implementations("store_records")
LOAD: Final = _implementations("load_records")
COPY: Final = _implementations("copy_items")
WITHIN: Final = _implementations("copy_within")


def store_records(
    leaves: Leaves,
    bank: UInt8[Array, "slots bytes"],
    item_ids: Int32[Array, "n"],
    slot_ids: Int32[Array, "n"],
    *,
    axis: int = 0,
    implementation: Implementation = None,
) -> UInt8[Array, "slots bytes"]:
    """Copies items of a pool to slots of a bank, each as one record.

    A record is the little-endian bytes of every leaf of an item, one leaf after the other. With the
    bank donated, it is updated in place, in pinned host memory too: the kernel writes over the bus.

    Args:
      leaves: of the pool; `axis` counts its items.
      bank: one record per slot, and the trash slot; in device or pinned host memory.
      item_ids, slot_ids: what goes where. A pair of which one id does not exist is skipped. No slot
        twice.
      axis: the axis of the items in every leaf; static.
      implementation: None takes the first able one of "pallas" (GPUs) and "reference".

    Raises:
      ValueError: while tracing, if a record of the pool is not one of the bank, or the lists
        differ in length.
      NotImplementedError: the named implementation cannot run here; "pallas" moves words of 4
        bytes, and refuses leaves that are no whole words.
    """
    _check_records(leaves, bank, axis)
    if not item_ids.size:
        return bank
    pairs = existing(item_ids, leaves[0].shape[axis], slot_ids, num_slots(bank))
    return dispatch.call(STORE, implementation, leaves, bank, pairs, axis=axis)


def load_records(
    leaves: Leaves,
    bank: UInt8[Array, "slots bytes"],
    item_ids: Int32[Array, "n"],
    slot_ids: Int32[Array, "n"],
    *,
    axis: int = 0,
    implementation: Implementation = None,
) -> Leaves:
    """Copies records of a bank into items of a pool: the inverse of `store_records`.

    Args, skipping and what is raised are those of `store_records`. No item twice. With the pool
    donated, it is updated in place.
    """
    _check_records(leaves, bank, axis)
    if not item_ids.size:
        return leaves
    pairs = existing(slot_ids, num_slots(bank), item_ids, leaves[0].shape[axis])
    return dispatch.call(LOAD, implementation, leaves, bank, pairs, axis=axis)


def copy_items(
    sources: Leaves,
    targets: Leaves,
    source_ids: Int32[Array, "n"],
    target_ids: Int32[Array, "n"],
    *,
    source_axis: int = 0,
    target_axis: int = 0,
    implementation: Implementation = None,
) -> Leaves:
    """Copies items of one pool into another on the same device; returns the other.

    Args:
      sources, targets: leaves; without their axis of items, those of both have the same shapes.
      source_ids, target_ids: what goes where. A pair of which one id does not exist is skipped. No
        target twice.
      source_axis, target_axis: the axis of the items; static.
      implementation: None takes the first able one of "pallas" (GPUs) and "reference".

    Raises:
      ValueError: while tracing, if the shapes or dtypes of items differ.
    """
    have, want = _items(sources, source_axis), _items(targets, target_axis)
    if have != want:
        raise ValueError(f"items of {have} do not fit into items of {want}.")
    if not source_ids.size:
        return targets
    pairs = existing(
        source_ids, sources[0].shape[source_axis], target_ids, targets[0].shape[target_axis]
    )
    return dispatch.call(
        COPY, implementation, sources, targets, pairs,
        source_axis=source_axis, target_axis=target_axis,
    )  # fmt: skip


def copy_within(
    leaves: Leaves,
    source_ids: Int32[Array, "n"],
    target_ids: Int32[Array, "n"],
    *,
    implementation: Implementation = None,
) -> Leaves:
    """Copies items of a pool, [item, ...] per leaf, to other places in it.

    Args:
      leaves: of the pool.
      source_ids, target_ids: what goes where. A pair of which one id does not exist is skipped. No
        target twice, and none that is also a source.
      implementation: None takes the first able one of "pallas" (GPUs) and "reference".
    """
    if not source_ids.size:
        return leaves
    pairs = existing(source_ids, leaves[0].shape[0], target_ids, leaves[0].shape[0])
    return dispatch.call(WITHIN, implementation, leaves, pairs)


def _items(leaves: Leaves, axis: int) -> list[tuple[tuple[int, ...], str]]:
    return [((*x.shape[:axis], *x.shape[axis + 1 :]), str(x.dtype)) for x in leaves]


def _check_records(leaves: Leaves, bank: Array, axis: int) -> None:
    size = sum(x.size // x.shape[axis] * jnp.dtype(x.dtype).itemsize for x in leaves)
    if size != bank.shape[1]:
        raise ValueError(f"items of {size} bytes are no records of {bank.shape[1]} bytes.")
