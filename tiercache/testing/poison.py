"""Overwrites everything that nobody owns, so that a read of it cannot go unnoticed."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from pallas_kernels import dispatch
from pallas_kernels.banks import num_slots
from pallas_kernels.page_copy.api import STORE
from pallas_kernels.page_copy.pairs import existing
from tiercache.ids import HOLE, NO_NODE
from tiercache.spec import CacheSpec
from tiercache.state import FREE, CacheState


class FreeStorage(NamedTuple):
    """What nobody owns.

    Attributes:
      pages: device pages.
      slots: cold slots.
      snapshots: device snapshots.
      host_pages, host_snapshots: records in host memory.
      rows: live recurrent states of rows that hold nothing.
    """

    pages: Bool[Array, "page"]
    slots: Bool[Array, "slot"]
    snapshots: Bool[Array, "snapshot"]
    host_pages: Bool[Array, "host_page"]
    host_snapshots: Bool[Array, "host_snapshot"]
    rows: Bool[Array, "row"]


def free_storage(state: CacheState) -> FreeStorage:
    """Masks of all storage that nothing refers to."""
    return FreeStorage(
        pages=state.pages.refs == 0,
        slots=state.cold.refs == 0,
        snapshots=state.snapshots.owner == FREE,
        host_pages=state.host.page_node == NO_NODE,
        host_snapshots=state.host.snapshot_node == NO_NODE,
        rows=jnp.all(state.table.entries == HOLE, axis=1),
    )


@functools.partial(jax.jit, static_argnames=("spec", "byte"))
def poison_free(state: CacheState, spec: CacheSpec, *, byte: int = 0xFF) -> CacheState:
    """Fills all free storage with one byte value; by default NaNs in every float.

    Trash slots are filled, too. Jitted, since tests call it after every step, also inside steps.

    Args:
      state: the cache; not changed.
      spec: the geometry.
      byte: in [0, 255]; static.
    """
    free = free_storage(state)
    return state._replace(
        pages=state.pages._replace(
            payload=jax.tree.map(lambda x: _fill(x, free.pages, 0, byte), state.pages.payload)
        ),
        cold=state.cold._replace(bank=_fill_bank(state.cold.bank, free.slots, byte)),
        snapshots=state.snapshots._replace(
            leaves=tuple(_fill(x, free.snapshots, 0, byte) for x in state.snapshots.leaves)
        ),
        host=state.host._replace(
            pages=_fill_bank(state.host.pages, free.host_pages, byte),
            snapshots=_fill_bank(state.host.snapshots, free.host_snapshots, byte),
        ),
        live=tuple(_fill(x, free.rows, 1, byte) for x in state.live),
    )


def _fill(leaf: Array, mask: Bool[Array, "n"], axis: int, byte: int) -> Array:
    """`leaf` with `byte` where the mask along `axis` says so. Bits, not numbers, are chosen from:
    a NaN that stays must keep its own."""
    bits = lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}"))
    filler = jnp.asarray(int.from_bytes(bytes([byte]) * leaf.dtype.itemsize), bits.dtype)
    where = mask.reshape(*[1] * axis, -1, *[1] * (leaf.ndim - axis - 1))
    return lax.bitcast_convert_type(jnp.where(where, filler, bits), leaf.dtype)


def _fill_bank(bank: Array, mask: Bool[Array, "n"], byte: int) -> Array:
    """`bank` with whole records of `byte` in free slots and in the trash slot.

    By the op that verbs write records with: XLA for GPUs aborts where a kernel and slice updates of
    one host bank meet in a loop.
    """
    if not bank.size:
        return bank
    count = num_slots(bank)
    slots = jnp.append(jnp.where(mask, jnp.arange(count, dtype=jnp.int32), HOLE), jnp.int32(count))
    pairs = existing(jnp.zeros_like(slots), 1, slots, count + 1)
    record = jnp.full((1, bank.shape[1]), byte, jnp.uint8)
    return dispatch.call(STORE, None, (record,), bank, pairs, axis=0)
