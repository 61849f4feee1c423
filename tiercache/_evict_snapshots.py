"""`evict_snapshots`: cached snapshots leave the device, to host memory or for good."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from pallas_kernels import page_copy
from tiercache._host_room import host_room
from tiercache._remove import node_mask, remove_snapshots
from tiercache._transfer import num_true, take_free
from tiercache.ids import NO_NODE, NO_SNAP
from tiercache.prefix import PrefixIndex, set_host_snapshots
from tiercache.reasons import Reason, first_reason
from tiercache.spec import CacheSpec
from tiercache.state import CacheState, HostPool, count


class EvictSnapshotsInfo(NamedTuple):
    """What left the device.

    Attributes:
      node_ids: nodes whose device snapshot left, in victim order; `NO_NODE` elsewhere.
      freed: device snapshots that are free now.
      stored: snapshots copied to host memory by this call.
      shortfall: snapshots asked for that stay.
      reason: `OK`, `ALL_PINNED` or `HOST_SNAPSHOTS_FULL`.
    """

    node_ids: Int32[Array, "most"]
    freed: Int32[Array, ""]
    stored: Int32[Array, ""]
    shortfall: Int32[Array, ""]
    reason: Int32[Array, ""]


def evict_snapshots(
    state: CacheState,
    number: Int32[Array, ""],
    *,
    most: int,
    to: Literal["host", "drop"] = "host",
    spec: CacheSpec,
) -> tuple[CacheState, EvictSnapshotsInfo]:
    """Frees `number` device snapshots of the index, in the order (last_use, depth).

    Unlike pages, the shallower of two goes first: a match touches a whole path, so all snapshots of
    a conversation are equally recent, and the deepest is the one that saves most. A snapshot that a
    lease ends at is in use and stays; one that waits under a row is not the index's yet.

    To "host": one with a host copy is let go; another is copied there first, and stays if it cannot
    be. A full bank drops its own oldest, or the victim itself where that is older. To "drop": the
    snapshot is let go.

    Args:
      state: the cache.
      number: snapshots wanted, in [0, most].
      most: the most per call; static.
      to: where they go; static.
      spec: the geometry.

    Raises:
      ValueError: while tracing, for a target that the spec has no room for at all.
    """
    if to not in ("host", "drop"):
        raise ValueError(f"to={to!r} is not 'host' or 'drop'.")
    if to == "host" and not spec.num_host_snapshots:
        raise ValueError("evict_snapshots to 'host' with num_host_snapshots=0.")
    index = state.index
    loose = ~is_lease_end(index)
    node_ids = oldest_snapshots(index, (index.snap_id < NO_SNAP) & loose, want=most)
    chosen = (node_ids != NO_NODE) & (jnp.arange(most) < number)
    node_ids = jnp.where(chosen, node_ids, NO_NODE)
    nothing = jnp.zeros(index.depth.shape, bool)
    short = first_reason((number > num_true(chosen), Reason.ALL_PINNED))
    stored, leaving = jnp.int32(0), chosen
    if to == "host":
        state, room = store_snapshots(state, node_ids, chosen, loose, spec)
        stored, leaving = num_true(room.stored), chosen & ~room.refused
        full = first_reason((jnp.any(room.refused), Reason.HOST_SNAPSHOTS_FULL))
        short = jnp.where(full > 0, full, short)
    state = remove_snapshots(state, node_mask(index, node_ids, leaving), nothing)
    info = EvictSnapshotsInfo(
        jnp.where(leaving, node_ids, NO_NODE),
        num_true(leaving),
        stored,
        jnp.maximum(number - num_true(leaving), 0),
        short,
    )
    return state._replace(counters=count(state.counters, short)), info


def store_snapshots(state: CacheState, node_ids, chosen, loose, spec: CacheSpec):
    """Copies the device snapshots of the chosen nodes to host memory, room permitting.

    Only `loose` nodes give a place up; a newcomer that is not, as a mirror's, outlives nothing.

    Returns:
      (state, room): nodes in `room.stored` have a host copy now, besides those that had one.
    """
    index, host = state.index, state.host

    def oldest(index, mask, *, want):
        return oldest_snapshots(index, mask & loose, want=want)

    backed = index.host_snap_id.at[node_ids].get(mode="fill", fill_value=0) < NO_SNAP
    room = host_room(
        index,
        node_ids,
        chosen & ~backed,
        (index.host_snap_id < NO_SNAP) & loose,
        num_true(host.snapshot_node == NO_NODE),
        choose=oldest,
    )
    state = remove_snapshots(state, jnp.zeros_like(room.evicted), room.evicted)
    new_ids = take_free(state.host.snapshot_node == NO_NODE, room.stored)
    snap_ids = index.snap_id.at[node_ids].get(mode="fill", fill_value=NO_SNAP)
    host_ids = jnp.where(room.stored, new_ids, NO_SNAP)
    bank = page_copy.store_records(state.snapshots.leaves, host.snapshots, snap_ids, host_ids)
    stored_ids = jnp.where(room.stored, node_ids, NO_NODE)
    return state._replace(
        host=HostPool(
            state.host.pages,
            state.host.page_node,
            bank,
            state.host.snapshot_node.at[new_ids].set(stored_ids, mode="drop"),
        ),
        index=set_host_snapshots(state.index, stored_ids, new_ids),
        counters=count(state.counters, snapshots_to_host=num_true(room.stored)),
    ), room


def is_lease_end(index: PrefixIndex) -> Bool[Array, "node"]:
    """The deepest node of each held path: where its holder resumes, or will."""
    length = jnp.sum(index.leases != NO_NODE, axis=1)
    last = jnp.take_along_axis(index.leases, jnp.maximum(length - 1, 0)[:, None], axis=1)[:, 0]
    return node_mask(index, last, length > 0)


def oldest_snapshots(
    index: PrefixIndex, mask: Bool[Array, "node"], *, want: int
) -> Int32[Array, "want"]:
    """The first `want` nodes of the mask in the order (last_use, depth, node id)."""
    node_ids = jnp.arange(mask.shape[0], dtype=jnp.int32)
    ages = jnp.where(mask, index.last_use, jnp.iinfo(jnp.int32).max)
    *_, order = lax.sort((ages, index.depth, jnp.where(mask, node_ids, NO_NODE)), num_keys=3)
    return jnp.pad(order, (0, max(want - order.shape[0], 0)), constant_values=NO_NODE)[:want]
