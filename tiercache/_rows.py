"""`fork`, `truncate` and `release`: what becomes of a whole row."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from tiercache import prefix
from tiercache._transfer import NOTHING, num_true
from tiercache.ids import HOLE, NO_LEASE, NO_NODE, entry_to_page, entry_to_slot
from tiercache.reasons import Reason, first_reason
from tiercache.spec import CacheSpec
from tiercache.state import FREE, CacheState, count


class RowInfo(NamedTuple):
    """Whether a row changed, and what it gave back.

    Attributes:
      reason: `OK`, or why nothing changed.
      pages: hot pages that are free now.
      slots: cold slots that are free now.
    """

    reason: Int32[Array, ""]
    pages: Int32[Array, ""]
    slots: Int32[Array, ""]


def fork(
    state: CacheState, source_id: Int32[Array, ""], target_id: Int32[Array, ""], *, spec: CacheSpec
) -> tuple[CacheState, RowInfo]:
    """Makes a free row a copy of another: pages and slots shared, live state copied.

    The pages stay as they are: whichever row writes first into the shared last page gets its own
    copy in `reserve`. Pages that the source has reserved ahead stay its own. The new row's lease
    holds the same path.

    Refused with `BAD_ID` if a row does not exist or both are one, `ROW_EMPTY` if the source holds
    nothing, `ROW_BUSY` if the target holds something, `LEASE_BUSY` if its lease does.
    """
    table = state.table
    entries = table.entries.at[source_id].get(mode="fill", fill_value=HOLE)
    length = table.lengths.at[source_id].get(mode="fill", fill_value=0)
    entries = jnp.where(jnp.arange(spec.max_pages) * spec.page_size < length, entries, HOLE)
    path = state.index.leases.at[source_id].get(mode="fill", fill_value=NO_NODE)
    target_entries = table.entries.at[target_id].get(mode="fill", fill_value=HOLE)
    target_path = state.index.leases.at[target_id].get(mode="fill", fill_value=NO_NODE)
    exists = _exists(source_id, spec) & _exists(target_id, spec) & (source_id != target_id)
    reason = first_reason(
        (~exists, Reason.BAD_ID),
        (~jnp.any(entries != HOLE), Reason.ROW_EMPTY),
        (jnp.any(target_entries != HOLE), Reason.ROW_BUSY),
        (target_path[0] != NO_NODE, Reason.LEASE_BUSY),
    )
    ok = reason == Reason.OK
    target = jnp.where(ok, target_id, NOTHING)
    entries, path = jnp.where(ok, entries, HOLE), jnp.where(ok, path, NO_NODE)

    def put(x):
        value = x.at[source_id].get(mode="fill", fill_value=0)
        return x.at[target].set(value, mode="drop")

    index = state.index
    state = state._replace(
        pages=state.pages._replace(
            refs=state.pages.refs.at[entry_to_page(entries)].add(1, mode="drop")
        ),
        cold=state.cold._replace(
            refs=state.cold.refs.at[entry_to_slot(entries)].add(1, mode="drop")
        ),
        table=table._replace(
            entries=table.entries.at[target].set(entries, mode="drop"),
            lengths=put(table.lengths),
            committed=put(table.committed),
        ),
        live=tuple(
            x.at[:, target].set(x.at[:, source_id].get(mode="clip"), mode="drop")
            for x in state.live
        ),
        index=index._replace(
            leases=index.leases.at[target].set(path, mode="drop"),
            pins=index.pins.at[path].add(1, mode="drop"),
        ),
        counters=count(state.counters, reason),
    )
    return state, RowInfo(reason, jnp.int32(0), jnp.int32(0))


def truncate(
    state: CacheState, row_id: Int32[Array, ""], length: Int32[Array, ""], *, spec: CacheSpec
) -> tuple[CacheState, RowInfo]:
    """Drops a row's tokens from `length` on, reserved pages past it too: speculative tokens.

    The recurrent state cannot be taken back: set the live state to that of the accepted token.

    Refused with `BELOW_COMMITTED` below what is shared, published or cold, `BAD_ID` if the row does
    not exist or is shorter than `length`.
    """
    table = state.table
    have = table.lengths.at[row_id].get(mode="fill", fill_value=0)
    committed = table.committed.at[row_id].get(mode="fill", fill_value=0)
    bad = ~_exists(row_id, spec) | (length > have) | (length < 0)
    reason = first_reason((bad, Reason.BAD_ID), (length < committed, Reason.BELOW_COMMITTED))
    ok = reason == Reason.OK
    past = jnp.arange(spec.max_pages) >= -(-length // spec.page_size)
    state, pages, slots = _give_back(state, jnp.where(ok, row_id, NOTHING), past)
    table = state.table
    row = jnp.where(ok, row_id, NOTHING)
    state = state._replace(
        table=table._replace(lengths=table.lengths.at[row].set(length, mode="drop")),
        snapshots=_free_waiting(state, row, length),
        counters=count(state.counters, reason),
    )
    return state, RowInfo(reason, pages, slots)


def release(
    state: CacheState, row_id: Int32[Array, ""], *, spec: CacheSpec
) -> tuple[CacheState, RowInfo]:
    """Ends a row, at any phase: its pages, slots, waiting snapshots and lease are given back.

    What the index holds stays there. A row that holds nothing is released without effect; only a
    row that does not exist is refused, with `BAD_ID`.
    """
    reason = first_reason((~_exists(row_id, spec), Reason.BAD_ID))
    row = jnp.where(reason == Reason.OK, row_id, NOTHING)
    state, pages, slots = _give_back(state, row, jnp.ones(spec.max_pages, bool))
    held = state.index.leases.at[row, 0].get(mode="fill", fill_value=NO_NODE) != NO_NODE
    index, _ = prefix.unpin(state.index, jnp.where(held, row, NO_LEASE))
    table = state.table
    state = state._replace(
        table=table._replace(
            lengths=table.lengths.at[row].set(0, mode="drop"),
            committed=table.committed.at[row].set(0, mode="drop"),
        ),
        snapshots=_free_waiting(state, row, jnp.int32(0)),
        index=index,
        counters=count(state.counters, reason),
    )
    return state, RowInfo(reason, pages, slots)


def _exists(row_id: Int32[Array, ""], spec: CacheSpec) -> Bool[Array, ""]:
    return (row_id >= 0) & (row_id < spec.max_rows)


def _give_back(state: CacheState, row_id, mask: Bool[Array, "page"]):
    """Takes entries from a row: (state, pages freed, slots freed)."""
    entries = state.table.entries.at[row_id].get(mode="fill", fill_value=HOLE)
    gone = jnp.where(mask, entries, HOLE)
    page_refs = state.pages.refs.at[entry_to_page(gone)].add(-1, mode="drop")
    slot_refs = state.cold.refs.at[entry_to_slot(gone)].add(-1, mode="drop")
    pages = num_true((page_refs == 0) & (state.pages.refs > 0))
    slots = num_true((slot_refs == 0) & (state.cold.refs > 0))
    kept = jnp.where(mask, HOLE, entries)
    state = state._replace(
        pages=state.pages._replace(refs=page_refs),
        cold=state.cold._replace(refs=slot_refs),
        table=state.table._replace(entries=state.table.entries.at[row_id].set(kept, mode="drop")),
    )
    return state, pages, slots


def _free_waiting(state: CacheState, row_id, length):
    """The snapshot pool without the row's waiting snapshots deeper than `length` tokens."""
    pool = state.snapshots
    gone = (pool.owner == row_id) & (pool.tokens > length)
    return pool._replace(owner=jnp.where(gone, FREE, pool.owner))
