"""Overwrites everything that nobody owns, so that a read of it cannot go unnoticed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from pallas_kernels.banks import is_host
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


def poison_free(state: CacheState, spec: CacheSpec, *, byte: int = 0xFF) -> CacheState:
    """Fills all free storage with one byte value, outside `jit`; by default NaNs in every float.

    Trash slots are filled, too. Copies the pools: for tests.

    Args:
      state: the cache; not changed.
      spec: the geometry.
      byte: in [0, 255].
    """
    free = free_storage(state)
    trash = np.ones(1, bool)
    return state._replace(
        pages=state.pages._replace(
            payload=jax.tree.map(lambda x: _fill(x, free.pages, 0, byte), state.pages.payload)
        ),
        cold=state.cold._replace(
            bank=_fill(state.cold.bank, np.concatenate([free.slots, trash]), 0, byte)
        ),
        snapshots=state.snapshots._replace(
            leaves=tuple(_fill(x, free.snapshots, 0, byte) for x in state.snapshots.leaves)
        ),
        host=state.host._replace(
            pages=_fill(state.host.pages, np.concatenate([free.host_pages, trash]), 0, byte),
            snapshots=_fill(
                state.host.snapshots, np.concatenate([free.host_snapshots, trash]), 0, byte
            ),
        ),
        live=tuple(_fill(x, free.rows, 1, byte) for x in state.live),
    )


def _fill(leaf: Array, mask, axis: int, byte: int) -> Array:
    data = np.array(leaf)
    where = (slice(None),) * axis + (np.asarray(mask),)
    data[where] = np.full(data.dtype.itemsize, byte, np.uint8).view(data.dtype)[0]
    put = jax.device_put(data, leaf.sharding)
    assert is_host(put) == is_host(leaf)
    return put
