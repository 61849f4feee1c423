"""Where the copies of a node's page and snapshot are."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from tiercache.ids import HOLE, NO_HOST, NO_PAGE, NO_SLOT, NO_SNAP, slot_to_entry
from tiercache.prefix.arrays import add, gather, keep_ids, put
from tiercache.prefix.index import FREE, PrefixIndex
from tiercache.reasons import Reason, first_reason


class AttachInfo(NamedTuple):
    """Whether a snapshot was attached.

    Attributes:
      ok: whether it was.
      reason: `Reason` of a refusal; OK otherwise.
      replaced_id: the snapshot that hung there before and is now the caller's to free, or NO_SNAP.
    """

    ok: Bool[Array, ""]
    reason: Int32[Array, ""]
    replaced_id: Int32[Array, ""]


def has_copy(index: PrefixIndex) -> Bool[Array, "node"]:
    """Whether any tier holds a copy of a node's page."""
    return (index.entry != HOLE) | (index.host_id < NO_HOST)


def live_children(index: PrefixIndex) -> Int32[Array, "node"]:
    """How many children of each node have a page copy in any tier."""
    parents = keep_ids(index.parent, has_copy(index))
    return add(jnp.zeros_like(index.children), parents, 1)


def set_entries(
    index: PrefixIndex, node_ids: Int32[Array, "*n"], entries: Int32[Array, "*n"]
) -> PrefixIndex:
    """Sets where device copies are; HOLE takes one away. Ids that name no page are left out."""
    return index._replace(entry=put(index.entry, _page_nodes(index, node_ids), entries))


def set_host_ids(
    index: PrefixIndex, node_ids: Int32[Array, "*n"], host_ids: Int32[Array, "*n"]
) -> PrefixIndex:
    """Sets host pages; NO_HOST takes one away. Ids that name no page are left out."""
    return index._replace(host_id=put(index.host_id, _page_nodes(index, node_ids), host_ids))


def set_snapshots(
    index: PrefixIndex, node_ids: Int32[Array, "*n"], snap_ids: Int32[Array, "*n"]
) -> PrefixIndex:
    """Sets device snapshots; NO_SNAP takes one away. Ids that name no page are left out."""
    return index._replace(snap_id=put(index.snap_id, _page_nodes(index, node_ids), snap_ids))


def set_host_snapshots(
    index: PrefixIndex, node_ids: Int32[Array, "*n"], host_snap_ids: Int32[Array, "*n"]
) -> PrefixIndex:
    """Sets host snapshots; NO_SNAP takes one away. Ids that name no page are left out."""
    ids = _page_nodes(index, node_ids)
    return index._replace(host_snap_id=put(index.host_snap_id, ids, host_snap_ids))


def attach_snapshot(
    index: PrefixIndex,
    node_id: Int32[Array, ""],
    snap_id: Int32[Array, ""],
    num_tokens: Int32[Array, ""],
) -> tuple[PrefixIndex, AttachInfo]:
    """Hangs a device snapshot of exactly `num_tokens` tokens at a node.

    Refuses, and changes nothing, recency included, when the node or the snapshot does not exist
    (BAD_ID), or the snapshot's depth is not the node's (DEPTH_MISMATCH).
    """
    info = _attach_info(index, node_id, snap_id, num_tokens, index.snap_id)
    return set_snapshots(index, keep_ids(node_id, info.ok), snap_id), info


def attach_host_snapshot(
    index: PrefixIndex,
    node_id: Int32[Array, ""],
    host_snap_id: Int32[Array, ""],
    num_tokens: Int32[Array, ""],
) -> tuple[PrefixIndex, AttachInfo]:
    """Hangs a host snapshot at a node; refuses as `attach_snapshot` does."""
    info = _attach_info(index, node_id, host_snap_id, num_tokens, index.host_snap_id)
    return set_host_snapshots(index, keep_ids(node_id, info.ok), host_snap_id), info


def relocate(
    index: PrefixIndex, page_ids: Int32[Array, "moved"], slot_ids: Int32[Array, "moved"]
) -> PrefixIndex:
    """Publishes pages that became cold slots: each node that names the page names the slot.

    Args:
      index: the known prefixes.
      page_ids: hot pages that were requantized, each at most once; NO_PAGE pads.
      slot_ids: their cold slots; a pair that lacks either id is left out.
    """
    valid = (page_ids >= 0) & (page_ids < NO_PAGE) & (slot_ids >= 0) & (slot_ids < NO_SLOT)
    page_ids = jnp.where(valid, page_ids, NO_PAGE)
    order = jnp.argsort(page_ids)
    ordered = page_ids[order]
    at = jnp.searchsorted(ordered, index.entry)
    moved = (gather(ordered, at, NO_PAGE) == index.entry) & (index.entry > HOLE)
    new_entries = slot_to_entry(gather(slot_ids[order], at, NO_SLOT))
    return index._replace(entry=jnp.where(moved, new_entries, index.entry))


def _page_nodes(index: PrefixIndex, node_ids: Int32[Array, "*n"]) -> Int32[Array, "*n"]:
    """The ids that name a page in use, NO_NODE elsewhere."""
    return keep_ids(node_ids, gather(index.depth, node_ids, FREE) > 0)


def _attach_info(
    index: PrefixIndex,
    node_id: Int32[Array, ""],
    snap_id: Int32[Array, ""],
    num_tokens: Int32[Array, ""],
    field: Int32[Array, "node"],
) -> AttachInfo:
    depth = gather(index.depth, node_id, FREE)
    exists = (depth > 0) & (snap_id >= 0) & (snap_id < NO_SNAP)
    fits = num_tokens == depth * index.tokens.shape[1]
    reason = first_reason((~exists, Reason.BAD_ID), (~fits, Reason.DEPTH_MISMATCH))
    ok = reason == Reason.OK
    replaced_id = gather(field, keep_ids(node_id, ok), NO_SNAP)
    replaced_id = jnp.where(replaced_id == snap_id, NO_SNAP, replaced_id)
    return AttachInfo(ok=ok, reason=reason, replaced_id=replaced_id)
