"""`insert`: a row's whole pages and waiting snapshots become known to the prefix index."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32

from tiercache import prefix
from tiercache._transfer import NOTHING, num_true
from tiercache.ids import HOLE, NO_HOST, NO_NODE, NO_SNAP, entry_to_page, entry_to_slot
from tiercache.prefix._touch import stamp
from tiercache.prefix.arrays import add, gather
from tiercache.prefix.lookup import find_chain
from tiercache.reasons import Reason, first_reason
from tiercache.spec import CacheSpec
from tiercache.state import FREE, CacheState, count


class InsertInfo(NamedTuple):
    """What became known.

    Attributes:
      num_pages: pages of the row that the index knows now.
      num_new: nodes made for them.
      num_snapshots: waiting snapshots that hang at nodes now.
      left_out: whole pages of the row beyond `num_pages`.
      reason: `OK`; `OVERSIZE` if the prefix was cut to what is affordable; or why nothing changed:
        `BAD_ID`, `ROW_EMPTY`, `TOKENS_MISMATCH`. A full index shortens the path: `OVERSIZE`.
    """

    num_pages: Int32[Array, ""]
    num_new: Int32[Array, ""]
    num_snapshots: Int32[Array, ""]
    left_out: Int32[Array, ""]
    reason: Int32[Array, ""]


def insert(
    state: CacheState,
    row_id: Int32[Array, ""],
    tokens: Int32[Array, "tokens"],
    namespace: UInt32[Array, "16"],
    *,
    spec: CacheSpec,
) -> tuple[CacheState, InsertInfo]:
    """Publishes the whole pages of a row, as far as they can be resumed.

    A model with recurrent state resumes only at snapshots, so the prefix is kept to the row's
    deepest waiting snapshot (or to what is known already). If nodes or `index_pages` do not
    suffice, it is cut to the longest affordable part that ends at a snapshot. Known nodes take the
    row's page where they have no device copy, or only a lossy one, and their host copies give way
    to it. A waiting snapshot whose node has one already is freed. The row's lease is moved to the
    path, so that what the row uses stays pinned; so are the leases of rows that share its pages.

    Args:
      state: the cache.
      row_id: the row.
      tokens: the row's tokens, padded to `spec.max_tokens`; `lengths[row_id]` of them count.
      namespace: `Namespace(...).lanes()`; the one that the row was matched in.
      spec: the geometry.
    """
    row = _row(state, row_id, spec)
    chain = find_chain(state.index, tokens, namespace, row.num_pages)
    mismatch = jnp.any((row.path[1:] != chain.node_ids) & (row.path[1:] != NO_NODE))
    affordable = _affordable(state, row, chain, tokens, namespace, spec)
    keep = _resumable(state, row_id, jnp.minimum(row.num_pages, affordable), chain, spec)
    oversize = affordable < _resumable(state, row_id, row.num_pages, chain, spec)
    refusal = first_reason(
        ((row_id < 0) | (row_id >= spec.max_rows), Reason.BAD_ID),
        (row.num_pages == 0, Reason.ROW_EMPTY),
        (mismatch, Reason.TOKENS_MISMATCH),
    )
    keep = jnp.where(refusal == Reason.OK, keep, 0)
    index, grown = prefix.extend(state.index, tokens, keep, namespace)
    # An extension by nothing ticks, too; a refusal changes nothing.
    index = index._replace(clock=jnp.where(keep > 0, index.clock, state.index.clock))
    refusal = jnp.where(refusal == Reason.OK, grown.reason, refusal)
    node_ids = jnp.where(refusal == Reason.OK, grown.node_ids, NO_NODE)
    keep = jnp.where(refusal == Reason.OK, keep, 0)
    state = _attach_pages(state._replace(index=index), node_ids, row.entries)
    state, num_snapshots = _attach_snapshots(state, row_id, node_ids, spec)
    state = _hold(state, row_id, node_ids, keep, spec)
    reason = jnp.where(refusal == Reason.OK, first_reason((oversize, Reason.OVERSIZE)), refusal)
    state = state._replace(counters=count(state.counters, reason))
    info = InsertInfo(keep, num_true(grown.is_new), num_snapshots, row.num_pages - keep, reason)
    return state, info


class _Row(NamedTuple):
    entries: Int32[Array, "page"]
    num_pages: Int32[Array, ""]  # whole pages before the first hole
    path: Int32[Array, "path"]  # of its lease, the root first


def _row(state: CacheState, row_id, spec: CacheSpec) -> _Row:
    entries = gather(state.table.entries, row_id, HOLE)
    length = gather(state.table.lengths, row_id, 0)
    whole = (jnp.arange(spec.max_pages) < length // spec.page_size) & (entries != HOLE)
    path = gather(state.index.leases, row_id, NO_NODE)
    return _Row(entries, jnp.sum(jnp.cumprod(whole), dtype=jnp.int32), path)


def _affordable(state, row: _Row, chain, tokens, namespace, spec: CacheSpec):
    """How many of the row's pages nodes, buckets and `index_pages` allow."""
    _, by_nodes = prefix.can_extend(state.index, tokens, row.num_pages, namespace)
    held = state.index.entry.at[chain.node_ids].get(mode="fill", fill_value=HOLE)
    costs = (row.entries >= 0) & (held < 0)
    budget = spec.index_pages - num_true(state.index.entry >= 0)
    fits = jnp.cumsum(costs) <= budget
    return jnp.minimum(by_nodes, jnp.sum(jnp.cumprod(fits), dtype=jnp.int32))


def _resumable(state: CacheState, row_id, limit, chain, spec: CacheSpec) -> Int32[Array, ""]:
    """The deepest page count up to `limit` at which the row could be resumed once inserted."""
    if not spec.needs_snapshot:
        return limit
    depth = state.snapshots.tokens // spec.page_size
    waiting = (state.snapshots.owner == row_id) & (depth <= limit)
    waiting_depth = jnp.max(jnp.where(waiting, depth, 0), initial=0)
    return jnp.maximum(waiting_depth, jnp.minimum(chain.num_known, limit))


def _attach_pages(state: CacheState, node_ids, entries) -> CacheState:
    """Gives nodes the row's copies where these are better than what the nodes have."""
    index = state.index
    held = index.entry.at[node_ids].get(mode="fill", fill_value=0)
    host_ids = index.host_id.at[node_ids].get(mode="fill", fill_value=NO_HOST)
    on_path = node_ids != NO_NODE
    hot = on_path & (entries >= 0) & (held < 0)
    cold = on_path & (entries < HOLE) & (held == HOLE)
    changed = hot | cold
    new_entries = jnp.where(changed, entries, HOLE)
    given_up = jnp.where(hot, held, HOLE)
    stale = jnp.where(hot, host_ids, NO_HOST)
    page_refs = state.pages.refs.at[entry_to_page(new_entries)].add(1, mode="drop")
    slot_refs = state.cold.refs.at[entry_to_slot(new_entries)].add(1, mode="drop")
    slot_refs = slot_refs.at[entry_to_slot(given_up)].add(-1, mode="drop")
    index = prefix.set_entries(index, jnp.where(changed, node_ids, NO_NODE), entries)
    index = prefix.set_host_ids(
        index, jnp.where(hot, node_ids, NO_NODE), jnp.full_like(host_ids, NO_HOST)
    )
    return state._replace(
        pages=state.pages._replace(refs=page_refs),
        cold=state.cold._replace(refs=slot_refs),
        host=state.host._replace(
            page_node=state.host.page_node.at[stale].set(NO_NODE, mode="drop")
        ),
        index=index,
        counters=count(state.counters, host_pages_dropped=num_true(stale < NO_HOST)),
    )


def _attach_snapshots(state: CacheState, row_id, node_ids, spec: CacheSpec):
    """Hangs the row's waiting snapshots at nodes of their depth: (state, how many)."""
    if not spec.num_snapshots:
        return state, jnp.int32(0)
    index, pool = state.index, state.snapshots
    at = pool.tokens // spec.page_size - 1
    exact = (pool.owner == row_id) & (pool.tokens % spec.page_size == 0) & (at >= 0)
    nodes = node_ids.at[jnp.where(exact, at, NOTHING)].get(mode="fill", fill_value=NO_NODE)
    mine = nodes != NO_NODE
    taken = index.snap_id.at[nodes].get(mode="fill", fill_value=0) < NO_SNAP
    hung = mine & ~taken
    hung_nodes = jnp.where(hung, nodes, NO_NODE)
    owner = jnp.where(hung, -2 - nodes, jnp.where(mine, FREE, pool.owner))
    stale = index.host_snap_id.at[hung_nodes].get(mode="fill", fill_value=NO_SNAP)
    snap_ids = jnp.arange(spec.num_snapshots, dtype=jnp.int32)
    index = prefix.set_snapshots(index, hung_nodes, snap_ids)
    index = prefix.set_host_snapshots(index, hung_nodes, jnp.full_like(snap_ids, NO_SNAP))
    state = state._replace(
        snapshots=pool._replace(owner=owner),
        host=state.host._replace(
            snapshot_node=state.host.snapshot_node.at[stale].set(NO_NODE, mode="drop")
        ),
        index=index,
        counters=count(state.counters, host_snapshots_dropped=num_true(stale < NO_SNAP)),
    )
    return state, num_true(hung)


def _hold(state: CacheState, row_id, node_ids, keep, spec: CacheSpec) -> CacheState:
    """Moves leases down the path and commits it, for the row and for each one that shares pages.

    A fork of the row reads pages that are known now. Its lease goes as deep as the two share, lest
    the nodes be taken for idle once the row is gone.
    """
    table, index = state.table, state.index
    published = gather(table.entries, row_id, HOLE)
    published = jnp.where(jnp.arange(spec.max_pages) < keep, published, HOLE)
    whole = jnp.arange(spec.max_pages) < (table.lengths // spec.page_size)[:, None]
    shared = whole & (table.entries == published) & (published != HOLE)
    depth = jnp.sum(jnp.cumprod(shared, axis=1), axis=1, dtype=jnp.int32)
    leases = index.leases[: spec.max_rows]
    moves = (depth > 0) & (depth >= jnp.sum(leases != NO_NODE, axis=1) - 1)
    path = jnp.concatenate([gather(index.parent, node_ids[:1], NO_NODE), node_ids])
    down_to = jnp.arange(path.shape[0]) <= depth[:, None]
    held = jnp.where(moves[:, None], jnp.where(down_to, path, NO_NODE), leases)
    index = index._replace(
        leases=index.leases.at[: spec.max_rows].set(held),
        pins=add(add(index.pins, leases, -1), held, 1),
    )
    touched = gather(moves, row_id, False)
    index = stamp(index, jnp.where(touched, path, NO_NODE), touched.astype(jnp.int32))
    committed = jnp.maximum(table.committed, depth * spec.page_size)
    return state._replace(index=index, table=table._replace(committed=committed))
