"""Forgetting nodes that no copy keeps alive."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from tiercache.ids import NO_NODE, NO_SNAP
from tiercache.prefix.arrays import add, gather, keep_ids, put
from tiercache.prefix.copies import has_copy
from tiercache.prefix.index import FREE, PrefixIndex
from tiercache.prefix.lookup import bucket_of


def stranded_snapshots(index: PrefixIndex) -> Bool[Array, "node"]:
    """Unpinned nodes without a page copy at which a snapshot still hangs.

    `drop_dead` keeps these, so that no snapshot id is lost: free the snapshots and clear them
    (`set_snapshots`, `set_host_snapshots`) first.
    """
    holds = jnp.minimum(index.snap_id, index.host_snap_id) < NO_SNAP
    return holds & ~has_copy(index) & (index.pins == 0)


def drop_dead(index: PrefixIndex) -> tuple[PrefixIndex, Int32[Array, ""]]:
    """Frees every node that nothing needs, namespace roots without children included.

    A node stays when it has a page copy, a pin or a snapshot, or when a node below it stays. A
    freed node's epoch rises, so plans that name it are stale.

    Returns:
      The index and how many nodes it freed.
    """
    needed = has_copy(index) | (index.pins > 0)
    needed |= jnp.minimum(index.snap_id, index.host_snap_id) < NO_SNAP
    dead = (index.depth > FREE) & ~_with_ancestors(index, needed & (index.depth > FREE))
    parents = keep_ids(index.parent, dead)
    return index._replace(
        parent=jnp.where(dead, NO_NODE, index.parent),
        depth=jnp.where(dead, FREE, index.depth),
        children=jnp.where(dead, 0, add(index.children, parents, -1)),
        last_use=jnp.where(dead, 0, index.last_use),
        epoch=index.epoch + dead,
        table=_without(index, dead),
    ), jnp.sum(dead, dtype=jnp.int32)


def _with_ancestors(index: PrefixIndex, needed: Bool[Array, "node"]) -> Bool[Array, "node"]:
    """The needed nodes and all nodes above them.

    Nodes with copies have ancestors with copies, so only what a pin or a snapshot holds climbs
    more than a step.
    """

    def climb(carry):
        needed, node_ids = carry
        above = gather(index.parent, node_ids, NO_NODE)
        above = keep_ids(above, ~gather(needed, above, True))
        return put(needed, above, True), above

    node_ids = keep_ids(jnp.arange(needed.shape[0], dtype=jnp.int32), needed)
    needed, _ = lax.while_loop(lambda carry: jnp.any(carry[1] < NO_NODE), climb, (needed, node_ids))
    return needed


def _without(index: PrefixIndex, dead: Bool[Array, "node"]) -> Int32[Array, "bucket 2 way"]:
    """The hash table after the dead nodes left their buckets."""
    node_ids = jnp.arange(dead.shape[0], dtype=jnp.int32)
    buckets = keep_ids(bucket_of(index, index.key), dead)
    rows = gather(index.table[:, 1], buckets, NO_NODE)
    ways = jnp.argmax(rows == node_ids[:, None], axis=1)
    return index.table.at[buckets, :, ways].set(NO_NODE, mode="drop")
