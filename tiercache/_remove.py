"""How copies leave the index: ids given back, snapshots of dead nodes freed, nodes forgotten."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from tiercache import prefix
from tiercache._transfer import NOTHING, num_true
from tiercache.ids import HOLE, NO_HOST, NO_NODE, NO_SNAP, entry_to_page, entry_to_slot
from tiercache.prefix import PrefixIndex
from tiercache.state import FREE, CacheState, count


class RemoveInfo(NamedTuple):
    """What left.

    Attributes:
      pages: hot pages freed.
      slots: cold slots given up.
      host_pages: host pages freed.
      tombstones: nodes whose device copy left and whose host copy stays.
      dropped: pages that no tier holds any more.
    """

    pages: Int32[Array, ""]
    slots: Int32[Array, ""]
    host_pages: Int32[Array, ""]
    tombstones: Int32[Array, ""]
    dropped: Int32[Array, ""]


def remove_copies(
    state: CacheState, device: Bool[Array, "node"], host: Bool[Array, "node"]
) -> tuple[CacheState, RemoveInfo]:
    """Takes device copies and host copies of page from nodes, and forgets what dies of it.

    A node without any copy is dead, and so is all below it: a prefix cannot be read past a missing
    page. Copies and snapshots of the dead go too. Only unpinned nodes may be named; what is below
    an unpinned node is unpinned.
    """
    index = state.index
    on_device, on_host = index.entry != HOLE, index.host_id < NO_HOST
    alive = (on_device & ~device) | (on_host & ~host)
    dead = _below(index, (on_device | on_host) & ~alive)
    device = (device | dead) & on_device
    host = (host | dead) & on_host

    entries = jnp.where(device, index.entry, HOLE)
    host_ids = jnp.where(host, index.host_id, NO_HOST)
    info = RemoveInfo(
        pages=num_true(entries >= 0),
        slots=num_true(entries < HOLE),
        host_pages=num_true(host),
        tombstones=num_true(device & ~dead),
        dropped=num_true(dead & (on_device | on_host)),
    )
    index = index._replace(
        entry=jnp.where(device, HOLE, index.entry),
        host_id=jnp.where(host, NO_HOST, index.host_id),
    )
    state = state._replace(
        pages=state.pages._replace(
            refs=state.pages.refs.at[entry_to_page(entries)].add(-1, mode="drop")
        ),
        cold=state.cold._replace(
            refs=state.cold.refs.at[entry_to_slot(entries)].add(-1, mode="drop")
        ),
        host=state.host._replace(
            page_node=state.host.page_node.at[host_ids].set(NO_NODE, mode="drop")
        ),
        index=index,
    )
    state = remove_snapshots(state, dead, dead)
    index, forgotten = prefix.drop_dead(state.index)
    counters = count(
        state.counters,
        pages_dropped=info.dropped,
        cold_dropped=info.slots,
        host_pages_dropped=info.host_pages,
        tombstones=info.tombstones,
        nodes_dropped=forgotten,
    )
    return state._replace(index=index, counters=counters), info


def remove_snapshots(
    state: CacheState, device: Bool[Array, "node"], host: Bool[Array, "node"]
) -> CacheState:
    """Takes device and host snapshots from nodes and frees them."""
    index = state.index
    snap_ids = jnp.where(device, index.snap_id, NO_SNAP)
    host_ids = jnp.where(host, index.host_snap_id, NO_SNAP)
    kept_host = ~host & (index.host_snap_id < NO_SNAP)
    gone = (snap_ids < NO_SNAP) & ~kept_host
    return state._replace(
        snapshots=state.snapshots._replace(
            owner=state.snapshots.owner.at[snap_ids].set(FREE, mode="drop")
        ),
        host=state.host._replace(
            snapshot_node=state.host.snapshot_node.at[host_ids].set(NO_NODE, mode="drop")
        ),
        index=index._replace(
            snap_id=jnp.where(device, NO_SNAP, index.snap_id),
            host_snap_id=jnp.where(host, NO_SNAP, index.host_snap_id),
        ),
        counters=count(
            state.counters,
            snapshots_dropped=num_true(gone),
            host_snapshots_dropped=num_true(host_ids < NO_SNAP),
        ),
    )


def _below(index: PrefixIndex, marked: Bool[Array, "node"]) -> Bool[Array, "node"]:
    """The marked nodes and all nodes below them, by doubling the step up."""

    def step(carry):
        marked, above, _ = carry
        more = marked | marked.at[above].get(mode="fill", fill_value=False)
        above = above.at[above].get(mode="fill", fill_value=NO_NODE)
        return more, above, jnp.any(above != NO_NODE)

    start = (marked, index.parent, jnp.any(marked))
    return lax.while_loop(lambda carry: carry[2], step, start)[0]


def node_mask(
    index: PrefixIndex, node_ids: Int32[Array, "n"], keep: Bool[Array, "n"]
) -> Bool[Array, "node"]:
    """The nodes that are listed where `keep` holds, as a mask over all nodes."""
    mask = jnp.zeros(index.depth.shape, bool)
    return mask.at[jnp.where(keep, node_ids, NOTHING)].set(True, mode="drop")
