"""Allocation by reference count, and whole pages between tiers.

What moves is what there is to move, not what there might be: no id that does not exist is ever
written. On a GPU kernels do it, elsewhere loops: see `pallas_kernels.page_copy`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt8

from pallas_kernels import page_copy
from pallas_kernels.page_layout import Payload

NOTHING = 2**30  # past every pool


def num_true(mask: Bool[Array, "..."]) -> Int32[Array, ""]:
    """How many are true, as int32."""
    return jnp.sum(mask, dtype=jnp.int32)


def take_free(free: Bool[Array, "slot"], wanted: Bool[Array, "n"]) -> Int32[Array, "n"]:
    """Gives each wanted place a free id of its own, lowest first; `NOTHING` where none is left."""
    size = min(free.shape[0], wanted.shape[0])
    if size == 0:
        return jnp.full(wanted.shape, NOTHING, jnp.int32)
    (ids,) = jnp.nonzero(free, size=size, fill_value=NOTHING)
    rank = jnp.cumsum(wanted, dtype=jnp.int32) - 1
    rank = jnp.where(wanted, rank, NOTHING)
    return ids.astype(jnp.int32).at[rank].get(mode="fill", fill_value=NOTHING)


def compact(mask: Bool[Array, "n"], *columns: Int32[Array, "n"]):
    """(number of true, the columns with the true places first, in order)."""
    (order,) = jnp.nonzero(mask, size=mask.shape[0], fill_value=NOTHING)
    taken = [c.at[order].get(mode="fill", fill_value=NOTHING) for c in columns]
    return num_true(mask), *taken


def store_pages(
    payload: Payload,
    bank: UInt8[Array, "slots bytes"],
    page_ids: Int32[Array, "n"],
    slot_ids: Int32[Array, "n"],
    mask: Bool[Array, "n"],
) -> UInt8[Array, "slots bytes"]:
    """Copies pages, as records, to slots of a bank where `mask` holds and both ids exist."""
    slot_ids = jnp.where(mask, slot_ids, NOTHING)
    return page_copy.store_records(tuple(jax.tree.leaves(payload)), bank, page_ids, slot_ids)


def load_pages(
    payload: Payload,
    bank: UInt8[Array, "slots bytes"],
    page_ids: Int32[Array, "n"],
    slot_ids: Int32[Array, "n"],
    mask: Bool[Array, "n"],
) -> Payload:
    """Copies records of a bank into pages where `mask` holds and both ids exist."""
    page_ids = jnp.where(mask, page_ids, NOTHING)
    leaves, tree = jax.tree.flatten(payload)
    return tree.unflatten(page_copy.load_records(tuple(leaves), bank, page_ids, slot_ids))


def copy_pages(
    payload: Payload,
    source_ids: Int32[Array, "n"],
    target_ids: Int32[Array, "n"],
    mask: Bool[Array, "n"],
) -> Payload:
    """Copies pages within the pool where `mask` holds and both ids exist."""
    target_ids = jnp.where(mask, target_ids, NOTHING)
    leaves, tree = jax.tree.flatten(payload)
    return tree.unflatten(page_copy.copy_within(tuple(leaves), source_ids, target_ids))
