"""`rehydrate`: a pinned plan becomes the start of a row, from whatever tier each page is in."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from pallas_kernels.requantize import restore as decode_slots
from tiercache._transfer import NOTHING, load_pages, num_true, take_free
from tiercache.ids import HOLE, NO_HOST, NO_NODE, entry_to_page, entry_to_slot
from tiercache.prefix import Plan, set_entries
from tiercache.reasons import Reason, first_reason
from tiercache.spec import CacheSpec
from tiercache.state import CacheState, count


class RehydrateInfo(NamedTuple):
    """What came back.

    Attributes:
      reason: `OK`, or why nothing changed: `BAD_ID` (no such row), `ROW_BUSY`, `NOT_PINNED`, or
        `PAGES_FULL`.
      num_hot: pages that were on the device still, now shared with the row.
      num_host: pages loaded bit for bit from host copies.
      num_cold: pages that only cold slots hold: restored, or shared as they are.
      shortfall: device pages that lacked.
    """

    reason: Int32[Array, ""]
    num_hot: Int32[Array, ""]
    num_host: Int32[Array, ""]
    num_cold: Int32[Array, ""]
    shortfall: Int32[Array, ""]


class _Sources(NamedTuple):
    """Where each page of the plan is now; the masks exclude each other."""

    entries: Int32[Array, "page"]
    host_ids: Int32[Array, "page"]
    is_hot: Bool[Array, "page"]
    is_host: Bool[Array, "page"]
    is_cold: Bool[Array, "page"]


def rehydrate(
    state: CacheState,
    plan: Plan,
    row_id: Int32[Array, ""],
    *,
    cold: Literal["hot", "share"] = "share",
    spec: CacheSpec,
) -> tuple[CacheState, RehydrateInfo]:
    """Starts a free row with the pages of a plan that is pinned under the row's lease.

    Hot pages are shared. Host copies are loaded into new pages, and their nodes live on the device
    again, first ones first, as far as `index_pages` allows; past that, the row alone holds them.
    A page with an exact host copy is never taken from its lossy cold slot. All or nothing:
    `evict` first if pages lack. The recurrent state comes with `load_snapshot`.

    Args:
      state: the cache.
      plan: of `match`, pinned with `lease_id` = `row_id`; an empty plan starts an empty row.
      row_id: a row without tokens.
      cold: what becomes of pages that only a cold slot holds: "share" lets the row read the slot,
        "hot" decodes it into a new page; static.
      spec: the geometry.

    Raises:
      ValueError: while tracing, if `cold` is neither.
    """
    if cold not in ("hot", "share"):
        raise ValueError(f"cold={cold!r} is not 'hot' or 'share'.")
    within = jnp.arange(spec.max_pages) < plan.num_pages
    node_ids = jnp.where(within, plan.node_ids, NO_NODE)
    sources = _sources(state, node_ids)
    restore = sources.is_cold & (cold == "hot")
    load = sources.is_host | restore
    refs = state.pages.refs
    shortfall = jnp.maximum(num_true(load) - num_true(refs == 0), 0)
    reason = first_reason(
        ((row_id < 0) | (row_id >= spec.max_rows), Reason.BAD_ID),
        (_is_busy(state, row_id), Reason.ROW_BUSY),
        (~_is_pinned(state, node_ids, row_id), Reason.NOT_PINNED),
        (shortfall > 0, Reason.PAGES_FULL),
    )
    ok = reason == Reason.OK
    sources = jax.tree.map(lambda x: x & ok if x.dtype == jnp.bool_ else x, sources)
    load, restore, within = load & ok, restore & ok, within & ok

    new_ids = take_free(refs == 0, load)
    payload = load_pages(
        state.pages.payload, state.host.pages, new_ids, sources.host_ids, sources.is_host
    )
    if spec.num_cold_slots:
        payload = decode_slots(
            payload, state.cold.bank, jnp.where(restore, new_ids, NOTHING),
            entry_to_slot(sources.entries), source=spec.hot_layout, target=spec.cold_layout,
        )  # fmt: skip

    entries = jnp.where(load, new_ids, sources.entries)
    budget = spec.index_pages - num_true(state.index.entry >= 0)
    known = load & (jnp.cumsum(load) <= budget)
    state = _publish(state, row_id, node_ids, within, known, entries, sources.entries, spec)
    num_host, num_cold = num_true(sources.is_host), num_true(sources.is_cold)
    state = state._replace(
        pages=state.pages._replace(payload=payload),
        counters=count(
            state.counters, reason, pages_from_host=num_host, pages_from_cold=num_true(restore)
        ),
    )
    info = RehydrateInfo(reason, num_true(sources.is_hot), num_host, num_cold, shortfall)
    return state, info


def _sources(state: CacheState, node_ids) -> _Sources:
    entries = state.index.entry.at[node_ids].get(mode="fill", fill_value=HOLE)
    host_ids = state.index.host_id.at[node_ids].get(mode="fill", fill_value=NO_HOST)
    is_hot = entries >= 0
    is_host = ~is_hot & (host_ids < NO_HOST)
    return _Sources(entries, host_ids, is_hot, is_host, ~is_host & (entries < HOLE))


def _is_busy(state: CacheState, row_id) -> Bool[Array, ""]:
    entries = state.table.entries.at[row_id].get(mode="fill", fill_value=HOLE)
    return jnp.any(entries != HOLE)


def _is_pinned(state: CacheState, node_ids, row_id) -> Bool[Array, ""]:
    """Whether the row's lease holds the plan's path: else its copies may be gone."""
    path = state.index.leases.at[row_id].get(mode="fill", fill_value=NO_NODE)
    return jnp.all(path[1:] == node_ids)


def _publish(
    state: CacheState, row_id, node_ids, within, known, entries, old_entries, spec: CacheSpec
) -> CacheState:
    """Names the pages in the row and, where `known`, in their nodes, and counts both."""
    page_refs, slot_refs = state.pages.refs, state.cold.refs
    shared = jnp.where(within, entries, HOLE)
    page_refs = page_refs.at[entry_to_page(shared)].add(1, mode="drop")
    slot_refs = slot_refs.at[entry_to_slot(shared)].add(1, mode="drop")
    page_refs = page_refs.at[jnp.where(known, entries, NOTHING)].add(1, mode="drop")
    replaced = jnp.where(known, old_entries, HOLE)
    slot_refs = slot_refs.at[entry_to_slot(replaced)].add(-1, mode="drop")

    row = jnp.where(jnp.any(within), row_id, NOTHING)
    tokens = num_true(within) * spec.page_size
    table = state.table
    return state._replace(
        pages=state.pages._replace(refs=page_refs),
        cold=state.cold._replace(refs=slot_refs),
        table=table._replace(
            entries=table.entries.at[row].set(shared, mode="drop"),
            lengths=table.lengths.at[row].set(tokens, mode="drop"),
            committed=table.committed.at[row].set(tokens, mode="drop"),
        ),
        index=set_entries(state.index, jnp.where(known, node_ids, NO_NODE), entries),
    )
