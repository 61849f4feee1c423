"""Leases: paths that no victim may come from."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from tiercache.ids import HOLE, NO_HOST, NO_LEASE, NO_NODE, NO_SNAP
from tiercache.prefix import codes
from tiercache.prefix._match import Plan
from tiercache.prefix._touch import stamp
from tiercache.prefix.arrays import add, gather, keep_ids, put
from tiercache.prefix.index import FREE, PrefixIndex, max_pages
from tiercache.reasons import Reason, first_reason


class PinInfo(NamedTuple):
    """Whether a lease changed.

    Attributes:
      ok: whether it did what was asked.
      reason: `Reason` of a refusal; OK otherwise.
    """

    ok: Bool[Array, ""]
    reason: Int32[Array, ""]


def pin(index: PrefixIndex, plan: Plan, lease_id: Int32[Array, ""]) -> tuple[PrefixIndex, PinInfo]:
    """Holds a plan's resumable path, root included, under a lease, and touches it.

    A plan that resumes nothing pins its namespace root; one of an unknown namespace pins nothing,
    and the lease stays free.

    Refuses, and changes nothing, when the lease id is out of range (BAD_ID) or holds a path
    (LEASE_BUSY), or when the plan is stale (STALE_PLAN): a node was freed since, a page that it
    counts on has no copy left, or its snapshot is another one or gone.
    """
    lease_id, exists = _valid_lease(index, lease_id)
    busy = _lease_path(index, lease_id)[0] < NO_NODE
    reason = first_reason(
        (~exists, Reason.BAD_ID),
        (busy, Reason.LEASE_BUSY),
        (_is_stale(index, plan), Reason.STALE_PLAN),
    )
    ok = reason == Reason.OK
    position = jnp.arange(plan.node_ids.shape[0], dtype=jnp.int32)
    path = _path(plan.root_id, keep_ids(plan.node_ids, position < plan.num_pages))
    path = keep_ids(path, ok)
    index = index._replace(
        pins=add(index.pins, path, 1),
        leases=put(index.leases, jnp.where(ok, lease_id, NO_LEASE), path),
    )
    return stamp(index, path, ok.astype(jnp.int32)), PinInfo(ok, reason)


def unpin(index: PrefixIndex, lease_id: Int32[Array, ""]) -> tuple[PrefixIndex, PinInfo]:
    """Frees a lease. Refuses, and changes nothing, when it is out of range or holds nothing."""
    lease_id, exists = _valid_lease(index, lease_id)
    path = _lease_path(index, lease_id)
    reason = first_reason((~exists, Reason.BAD_ID), (path[0] == NO_NODE, Reason.NOT_HELD))
    index = index._replace(
        pins=add(index.pins, path, -1), leases=put(index.leases, lease_id, NO_NODE)
    )
    return index, PinInfo(reason == Reason.OK, reason)


def repin(
    index: PrefixIndex,
    lease_id: Int32[Array, ""],
    node_ids: Int32[Array, "page"],
    num_pages: Int32[Array, ""],
) -> tuple[PrefixIndex, PinInfo]:
    """Replaces what a lease holds by the first `num_pages` nodes of a path, and touches these.

    A free lease is taken; zero pages leave it free. Refuses, and changes nothing, when the lease
    id is out of range or the nodes are not a path from depth 1 down (BAD_ID).
    """
    lease_id, exists = _valid_lease(index, lease_id)
    position = jnp.arange(node_ids.shape[0], dtype=jnp.int32)
    node_ids = keep_ids(node_ids, position < num_pages)
    root_id = gather(index.parent, node_ids[0], NO_NODE)
    path = _path(root_id, node_ids)
    asked = position < num_pages
    linked = gather(index.depth, path[1:], FREE) == position + 1
    linked &= gather(index.parent, path[1:], NO_NODE) == path[:-1]
    fits = (num_pages >= 0) & (num_pages <= node_ids.shape[0]) & jnp.all(linked | ~asked)
    ok = exists & fits
    reason = first_reason((~ok, Reason.BAD_ID))
    path = keep_ids(path, ok)
    pins = add(index.pins, keep_ids(_lease_path(index, lease_id), ok), -1)
    index = index._replace(
        pins=add(pins, path, 1),
        leases=put(index.leases, jnp.where(ok, lease_id, NO_LEASE), path),
    )
    return stamp(index, path, ok.astype(jnp.int32)), PinInfo(ok, reason)


def _path(root_id: Int32[Array, ""], node_ids: Int32[Array, "page"]) -> Int32[Array, "path"]:
    return jnp.concatenate([root_id[None], node_ids])


def _valid_lease(
    index: PrefixIndex, lease_id: Int32[Array, ""]
) -> tuple[Int32[Array, ""], Bool[Array, ""]]:
    """The lease id, or NO_LEASE, and whether it is in range."""
    exists = (lease_id >= 0) & (lease_id < index.leases.shape[0])
    return jnp.where(exists, lease_id, NO_LEASE), exists


def _lease_path(index: PrefixIndex, lease_id: Int32[Array, ""]) -> Int32[Array, "path"]:
    return gather(index.leases, lease_id, NO_NODE)


def _is_stale(index: PrefixIndex, plan: Plan) -> Bool[Array, ""]:
    """Whether a node of the resumable path was freed, or a copy that the plan needs is gone."""
    position = jnp.arange(max_pages(index), dtype=jnp.int32)
    counts = position < plan.num_pages
    moved = gather(index.epoch, plan.node_ids, -1) != plan.epochs
    entries = gather(index.entry, plan.node_ids, HOLE)
    host_ids = gather(index.host_id, plan.node_ids, NO_HOST)
    moved |= (entries == HOLE) & (host_ids == NO_HOST)
    stale = jnp.any(moved & counts)
    stale |= gather(index.epoch, plan.root_id, 0) != plan.root_epoch
    last = gather(
        plan.node_ids, jnp.where(plan.num_pages > 0, plan.num_pages - 1, NO_NODE), NO_NODE
    )
    device_gone = gather(index.snap_id, last, NO_SNAP) != plan.snap_id
    host_gone = gather(index.host_snap_id, last, NO_SNAP) != plan.host_snap_id
    stale |= (plan.snapshot_source == codes.SNAPSHOT_DEVICE) & device_gone
    return stale | ((plan.snapshot_source == codes.SNAPSHOT_HOST) & host_gone)
