"""`mirror`: exact copies in host memory of what is on the device, before it has to leave."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int32

from tiercache._evict_snapshots import is_lease_end, store_snapshots
from tiercache._host_room import host_room
from tiercache._remove import remove_copies
from tiercache._transfer import compact, num_true, store_pages, take_free
from tiercache.ids import NO_HOST, NO_NODE, NO_SNAP, entry_to_page
from tiercache.prefix import set_host_ids
from tiercache.prefix.arrays import gather
from tiercache.reasons import Reason, first_reason
from tiercache.spec import CacheSpec
from tiercache.state import CacheState, count


class MirrorInfo(NamedTuple):
    """What was copied.

    Attributes:
      pages: pages that have a host copy now and had none before.
      snapshots: the same of snapshots.
      left: hot pages and snapshots of the path that still have none.
      reason: `OK`, `NOT_HELD`, `HOST_PAGES_FULL` or `HOST_SNAPSHOTS_FULL`.
    """

    pages: Int32[Array, ""]
    snapshots: Int32[Array, ""]
    left: Int32[Array, ""]
    reason: Int32[Array, ""]


def mirror(
    state: CacheState, lease_id: Int32[Array, ""], *, most: int, spec: CacheSpec
) -> tuple[CacheState, MirrorInfo]:
    """Copies the pages and snapshots of a lease's path to host memory: write-through.

    What is copied is what the pool holds, codes and scales, so a copy equals its page bit for bit.
    The device copies stay. A full bank drops its own oldest unpinned copies.

    Args:
      state: the cache, after `insert`.
      lease_id: the lease whose path is meant; a row's lease has the row's id.
      most: pages (and snapshots) per call; static.
      spec: the geometry.

    Raises:
      ValueError: while tracing, if the spec has no host pages.
    """
    if not spec.num_host_pages:
        raise ValueError("mirror needs num_host_pages above 0.")
    index = state.index
    path = gather(index.leases, lease_id, NO_NODE)
    entries = index.entry.at[path].get(mode="fill", fill_value=-1)
    backed = index.host_id.at[path].get(mode="fill", fill_value=0) < NO_HOST
    wanted = (entries >= 0) & ~backed
    _, node_ids = compact(wanted, path)
    node_ids = node_ids[:most]
    state, stored, refused = _mirror_pages(state, node_ids, spec)

    snapshots, snapshots_full = jnp.int32(0), jnp.bool_(False)
    wanted_snapshots = jnp.zeros_like(wanted)
    if spec.num_host_snapshots and spec.num_snapshots:
        snap = index.snap_id.at[path].get(mode="fill", fill_value=NO_SNAP) < NO_SNAP
        host_snap = index.host_snap_id.at[path].get(mode="fill", fill_value=0) < NO_SNAP
        wanted_snapshots = snap & ~host_snap
        # Deepest first: if only some fit, it is those that save most.
        _, snap_nodes = compact(wanted_snapshots[::-1], path[::-1])
        snap_nodes = snap_nodes[:most]
        loose = ~is_lease_end(state.index) & (state.index.pins == 0)
        state, room = store_snapshots(state, snap_nodes, snap_nodes != NO_NODE, loose, spec)
        snapshots, snapshots_full = num_true(room.stored), jnp.any(room.refused)
    reason = first_reason(
        (path[0] == NO_NODE, Reason.NOT_HELD),
        (refused, Reason.HOST_PAGES_FULL),
        (snapshots_full, Reason.HOST_SNAPSHOTS_FULL),
    )
    left = num_true(wanted) + num_true(wanted_snapshots) - stored - snapshots
    counters = count(state.counters, reason, pages_to_host=stored)
    return state._replace(counters=counters), MirrorInfo(stored, snapshots, left, reason)


def _mirror_pages(state: CacheState, node_ids, spec: CacheSpec):
    """(state, pages copied, whether some were refused)."""
    index = state.index
    room = host_room(
        index,
        node_ids,
        node_ids != NO_NODE,
        (index.host_id < NO_HOST) & (index.pins == 0),
        num_true(state.host.page_node == NO_NODE),
    )
    state, _ = remove_copies(state, jnp.zeros_like(room.evicted), room.evicted)
    new_ids = take_free(state.host.page_node == NO_NODE, room.stored)
    page_ids = entry_to_page(state.index.entry.at[node_ids].get(mode="fill", fill_value=-1))
    bank = store_pages(state.pages.payload, state.host.pages, page_ids, new_ids, room.stored)
    stored_ids = jnp.where(room.stored, node_ids, NO_NODE)
    host = state.host._replace(
        pages=bank, page_node=state.host.page_node.at[new_ids].set(stored_ids, mode="drop")
    )
    state = state._replace(host=host, index=set_host_ids(state.index, stored_ids, new_ids))
    return state, num_true(room.stored), jnp.any(room.refused)
