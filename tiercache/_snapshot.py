"""`save_snapshot` and `load_snapshot`: copies between the live rows and the cached snapshots."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, Shaped

from pallas_kernels import page_copy
from tiercache._transfer import NOTHING, num_true, take_free
from tiercache.ids import NO_NODE, NO_SNAP
from tiercache.prefix import SNAPSHOT_DEVICE, SNAPSHOT_HOST, SNAPSHOT_NONE, Plan
from tiercache.reasons import Reason, first_reason
from tiercache.spec import CacheSpec
from tiercache.state import FREE, CacheState, SnapshotPool, count

Leaves = tuple[Shaped[Array, "..."], ...]


class SaveInfo(NamedTuple):
    """What was saved.

    Attributes:
      snap_ids: the snapshot of each one asked for; `NO_SNAP` where none was asked or refused.
      reason: per snapshot, `OK`, `SNAPSHOTS_FULL`, `BAD_ID`, or `DEPTH_MISMATCH` for a depth that
        is no page boundary.
    """

    snap_ids: Int32[Array, "n"]
    reason: Int32[Array, "n"]


class LoadInfo(NamedTuple):
    """Whether a row's recurrent state was set.

    Attributes:
      reason: `OK`, or why it was not: `BAD_ID`, `NOT_PINNED`, or `DEPTH_MISMATCH`.
      source: `SNAPSHOT_DEVICE`, `SNAPSHOT_HOST`, or `SNAPSHOT_NONE` for a state of zeros and for
        a refusal.
      tokens: the depth of the state that the row has now.
    """

    reason: Int32[Array, ""]
    source: Int32[Array, ""]
    tokens: Int32[Array, ""]


def save_snapshot(
    state: CacheState,
    row_ids: Int32[Array, "n"],
    tokens: Int32[Array, "n"],
    leaves: Leaves | None = None,
    *,
    replaces: Int32[Array, "n"] | None = None,
    spec: CacheSpec,
) -> tuple[CacheState, SaveInfo]:
    """Copies recurrent states into free snapshots; `insert` of the row hangs them at its nodes.

    Until then the snapshot waits under its row, and `release` of the row frees it. A row that saves
    the same depth twice before `insert` replaces the first; with `replaces` it takes the place of a
    shallower one, so that a decoding row needs one snapshot however long it runs.

    Args:
      state: the cache.
      row_ids: the row of each snapshot; a row that does not exist saves nothing.
      tokens: the exact depth of each; a multiple of page_size above 0.
      leaves: the states, [n, ...] per leaf of the spec; None takes the live states of the rows.
      replaces: depth of a waiting snapshot of the row that each takes the place of; 0 for none.
      spec: the geometry.

    Raises:
      ValueError: while tracing, if the spec has no snapshots, or leaves have other shapes.
    """
    if not spec.num_snapshots:
        raise ValueError("save_snapshot needs num_snapshots above 0.")
    pool = state.snapshots
    asked = row_ids != NOTHING
    bad_row = (row_ids < 0) | (row_ids >= spec.max_rows)
    bad_depth = (tokens <= 0) | (tokens % spec.page_size != 0)
    same = (pool.owner == row_ids[:, None]) & (pool.tokens == tokens[:, None])
    if replaces is not None:
        older = (pool.owner == row_ids[:, None]) & (pool.tokens == replaces[:, None])
        same = jnp.where(jnp.any(same, axis=1, keepdims=True), same, older)
    valid = asked & ~bad_row & ~bad_depth
    snap_ids = _places(pool, row_ids, tokens, same, valid)
    reason = first_reason(
        (asked & bad_row, Reason.BAD_ID),
        (asked & bad_depth, Reason.DEPTH_MISMATCH),
        (asked & (snap_ids == NOTHING), Reason.SNAPSHOTS_FULL),
    )
    saved = asked & (reason == Reason.OK)
    snap_ids = jnp.where(saved, snap_ids, NO_SNAP)
    pool = SnapshotPool(
        _copy_in(state, row_ids, leaves, snap_ids, saved, spec),
        pool.tokens.at[snap_ids].set(tokens, mode="drop"),
        pool.owner.at[snap_ids].set(row_ids, mode="drop"),
    )
    counters = count(state.counters, reason, snapshots_saved=num_true(saved))
    return state._replace(snapshots=pool, counters=counters), SaveInfo(snap_ids, reason)


def _places(pool: SnapshotPool, row_ids, tokens, same: Bool[Array, "n slot"], valid):
    """The snapshot that each valid request writes: a waiting one of `same`, or a free one.

    Within a call, one row and depth is one snapshot, which the last request writes; and a waiting
    snapshot has its place taken once, by the first. A request whose twin was refused may still
    have a place of its own to take.
    """
    earlier = jnp.tri(row_ids.shape[0], k=-1, dtype=bool) & valid
    twin = earlier & (row_ids[:, None] == row_ids) & (tokens[:, None] == tokens)
    waits, place = valid & jnp.any(same, axis=1), jnp.argmax(same, axis=1).astype(jnp.int32)
    claimed = jnp.any(earlier & waits & (place[:, None] == place), axis=1)
    repeated, again = valid & jnp.any(twin, axis=1), waits & ~claimed
    snap_ids = take_free(pool.owner == FREE, valid & ~again & ~repeated)
    snap_ids = jnp.where(again, place, snap_ids)
    served = twin & (snap_ids != NOTHING)
    return jnp.where(jnp.any(served, axis=1), snap_ids[jnp.argmax(served, axis=1)], snap_ids)


def _copy_in(state: CacheState, row_ids, leaves: Leaves | None, snap_ids, mask, spec: CacheSpec):
    """The snapshot leaves after the copies."""
    _check_leaves(leaves, row_ids.shape[0], spec)
    number = row_ids.shape[0]
    later = jnp.tri(number, k=-1, dtype=bool).T
    overwritten = jnp.any(later & mask & (snap_ids[:, None] == snap_ids), axis=1)
    snap_ids = jnp.where(mask & ~overwritten, snap_ids, NO_SNAP)
    pool = state.snapshots.leaves
    if leaves is None:
        return page_copy.copy_items(state.live, pool, row_ids, snap_ids, source_axis=1)
    return page_copy.copy_items(leaves, pool, jnp.arange(number, dtype=jnp.int32), snap_ids)


def _check_leaves(leaves: Leaves | None, number: int, spec: CacheSpec):
    if leaves is None:
        return
    have = [(x.shape, str(x.dtype)) for x in leaves]
    want = [((number, *leaf.shape), leaf.dtype) for leaf in spec.snapshot_leaves]
    if have != want:
        raise ValueError(f"leaves are {have}, not {want}.")


def load_snapshot(
    state: CacheState, plan: Plan, row_id: Int32[Array, ""], *, spec: CacheSpec
) -> tuple[CacheState, LoadInfo]:
    """Sets a row's live state to the snapshot of a plan that is pinned under the row's lease.

    A device snapshot is preferred to its host copy; both are exact. An empty plan gives the state
    of zeros that every sequence starts from. Refused, with the live state as it was, unless a
    snapshot of exactly the plan's depth hangs at the plan's last node.

    Args:
      state: the cache.
      plan: of `match`, pinned with `lease_id` = `row_id`.
      row_id: the row.
      spec: the geometry.
    """
    depth = plan.num_pages * spec.page_size
    last = plan.node_ids.at[jnp.where(plan.num_pages > 0, plan.num_pages - 1, NOTHING)].get(
        mode="fill", fill_value=NO_NODE
    )
    held = state.index.leases.at[row_id, plan.num_pages].get(mode="fill", fill_value=NO_NODE)
    snap_id = state.index.snap_id.at[last].get(mode="fill", fill_value=NO_SNAP)
    host_id = state.index.host_snap_id.at[last].get(mode="fill", fill_value=NO_SNAP)
    empty = plan.num_pages == 0
    on_device, on_host = snap_id < NO_SNAP, (snap_id == NO_SNAP) & (host_id < NO_SNAP)
    if spec.num_snapshots:
        recorded = state.snapshots.tokens.at[snap_id].get(mode="fill", fill_value=-1)
        on_device &= recorded == depth
    source = _source(empty, on_device, on_host)
    missing = spec.needs_snapshot & ~empty & (source == SNAPSHOT_NONE)
    reason = first_reason(
        ((row_id < 0) | (row_id >= spec.max_rows), Reason.BAD_ID),
        (~empty & (held != last), Reason.NOT_PINNED),
        (missing, Reason.DEPTH_MISMATCH),
    )
    ok = reason == Reason.OK
    live = _clear_rows(state.live, row_id, ok & (empty | (source == SNAPSHOT_NONE)))
    live = _from_device(state, live, row_id, snap_id, ok & (source == SNAPSHOT_DEVICE), spec)
    live = _from_host(state, live, row_id, host_id, ok & (source == SNAPSHOT_HOST), spec)
    counters = count(
        state.counters, reason,
        snapshots_from_device=ok & (source == SNAPSHOT_DEVICE),
        snapshots_from_host=ok & (source == SNAPSHOT_HOST),
    )  # fmt: skip
    state = state._replace(live=live, counters=counters)
    return state, LoadInfo(
        reason, jnp.where(ok, source, jnp.int32(SNAPSHOT_NONE)), jnp.where(ok, depth, 0)
    )


def _source(empty, on_device, on_host) -> Int32[Array, ""]:
    source = jnp.where(on_host, SNAPSHOT_HOST, SNAPSHOT_NONE)
    source = jnp.where(on_device, SNAPSHOT_DEVICE, source)
    return jnp.where(empty, SNAPSHOT_NONE, source).astype(jnp.int32)


def _set_row(live: Leaves, row_id, new: Leaves) -> Leaves:
    return tuple(
        lax.dynamic_update_index_in_dim(x, y, row_id, 1) for x, y in zip(live, new, strict=True)
    )


def _once(condition: Bool[Array, ""], update, live: Leaves) -> Leaves:
    """`update(live)` where `condition` holds: a loop of one turn or none, so nothing is copied."""
    return lax.fori_loop(0, condition.astype(jnp.int32), lambda _, x: update(x), live)


def _clear_rows(live: Leaves, row_id, condition) -> Leaves:
    zeros = tuple(jnp.zeros((x.shape[0], *x.shape[2:]), x.dtype) for x in live)
    return _once(condition, lambda live: _set_row(live, row_id, zeros), live)


def _from_device(state: CacheState, live, row_id, snap_id, condition, spec: CacheSpec):
    if not spec.num_snapshots:
        return live
    row_ids = jnp.where(condition, row_id, NOTHING)[None]
    return page_copy.copy_items(state.snapshots.leaves, live, snap_id[None], row_ids, target_axis=1)


def _from_host(state: CacheState, live, row_id, host_id, condition, spec: CacheSpec):
    if not spec.num_host_snapshots or not live:
        return live
    row_ids = jnp.where(condition, row_id, NOTHING)[None]
    return page_copy.load_records(live, state.host.snapshots, row_ids, host_id[None], axis=1)
