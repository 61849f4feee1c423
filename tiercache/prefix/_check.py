"""What must hold of an index after every operation."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from tiercache.ids import HOLE, NO_HOST, NO_NODE, NO_SNAP
from tiercache.prefix.arrays import add, gather, keep_ids
from tiercache.prefix.copies import has_copy
from tiercache.prefix.index import FREE, PrefixIndex
from tiercache.prefix.lookup import bucket_of, candidates, fingerprint_of


class PrefixCheck(NamedTuple):
    """Invariants; each is true of a sound index.

    Attributes:
      parents: each page's parent is in use, one less deep; roots and free nodes have none.
      children: child counts equal the nodes that name a parent.
      pins: pins equal the leases whose path holds the node.
      leases: leases hold paths of nodes in use, from a root down.
      buckets: each node in use is found by its key, and the table holds nothing else.
      recency: no node was used later than its parent, nor later than the clock.
      paths: no page copy lies below a page without a copy.
      unique: no page, slot, host page or snapshot hangs at two nodes.
      free: free nodes hold no copies, pins, children or parent; roots hold no copies.
    """

    parents: Bool[Array, ""]
    children: Bool[Array, ""]
    pins: Bool[Array, ""]
    leases: Bool[Array, ""]
    buckets: Bool[Array, ""]
    recency: Bool[Array, ""]
    paths: Bool[Array, ""]
    unique: Bool[Array, ""]
    free: Bool[Array, ""]


def check(index: PrefixIndex) -> PrefixCheck:
    """Checks the invariants of an index; usable under `jit`."""
    used = index.depth > FREE
    is_page = index.depth > 0
    parents = index.parent
    zeros = jnp.zeros_like(index.children)
    held = keep_ids(index.leases, index.leases != NO_NODE)
    parent_depth = gather(index.depth, parents, FREE)
    parent_use = gather(index.last_use, parents, jnp.iinfo(jnp.int32).max)
    alive = has_copy(index)
    parent_alive = gather(alive, parents, False) | (parent_depth == 0)
    return PrefixCheck(
        parents=jnp.all(jnp.where(is_page, (parent_depth == index.depth - 1), parents == NO_NODE)),
        children=jnp.all(add(zeros, keep_ids(parents, used), 1) == index.children),
        pins=jnp.all(add(zeros, held, 1) == index.pins),
        leases=_leases_are_paths(index),
        buckets=_buckets_are_right(index),
        recency=jnp.all(index.last_use <= jnp.minimum(parent_use, index.clock)),
        paths=jnp.all(parent_alive | ~(alive & is_page)),
        unique=_ids_are_unique(index),
        free=_nothing_hangs_at_free_nodes(index),
    )


def _leases_are_paths(index: PrefixIndex) -> Bool[Array, ""]:
    leases = index.leases
    position = jnp.arange(leases.shape[1], dtype=jnp.int32)
    deep = gather(index.depth, leases, FREE) == position
    linked = gather(index.parent, leases[:, 1:], NO_NODE) == leases[:, :-1]
    held = leases != NO_NODE
    ends_once = held[:, :-1] | ~held[:, 1:]
    return jnp.all(deep | ~held) & jnp.all(linked | ~held[:, 1:]) & jnp.all(ends_once)


def _buckets_are_right(index: PrefixIndex) -> Bool[Array, ""]:
    used = index.depth > FREE
    node_ids = jnp.arange(used.shape[0], dtype=jnp.int32)
    found = jnp.any(candidates(index, index.key) == node_ids[:, None], axis=1)
    stored = index.table[:, 1]
    times = add(jnp.zeros_like(index.depth), stored.reshape(-1), 1)
    keys = gather(index.key, stored, 0)
    at_home = bucket_of(index, keys) == jnp.arange(stored.shape[0], dtype=jnp.int32)[:, None]
    at_home &= fingerprint_of(keys) == index.table[:, 0]
    return jnp.all(found | ~used) & jnp.all(times == used) & jnp.all(at_home | (stored == NO_NODE))


def _ids_are_unique(index: PrefixIndex) -> Bool[Array, ""]:
    def unique(ids: Int32[Array, "node"], nothing: int) -> Bool[Array, ""]:
        ordered = jnp.sort(ids)
        repeated = (ordered[1:] == ordered[:-1]) & (ordered[1:] != nothing)
        return ~jnp.any(repeated)

    return (
        unique(index.entry, HOLE)
        & unique(index.host_id, NO_HOST)
        & unique(index.snap_id, NO_SNAP)
        & unique(index.host_snap_id, NO_SNAP)
    )


def _nothing_hangs_at_free_nodes(index: PrefixIndex) -> Bool[Array, ""]:
    bare = ~has_copy(index) & (jnp.minimum(index.snap_id, index.host_snap_id) == NO_SNAP)
    bare &= index.parked == 0
    idle = (index.pins == 0) & (index.children == 0) & (index.parent == NO_NODE)
    return jnp.all(jnp.where(index.depth > 0, True, bare)) & jnp.all(idle | (index.depth > FREE))
