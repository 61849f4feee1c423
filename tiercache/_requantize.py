"""`requantize`: hot pages become cold slots, wherever their ids stand."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from pallas_kernels.requantize import pack
from tiercache._transfer import NOTHING, num_true, take_free
from tiercache.ids import HOLE, NO_PAGE, NO_SLOT, entry_to_page, slot_to_entry
from tiercache.prefix import relocate
from tiercache.reasons import Reason, first_reason
from tiercache.spec import CacheSpec
from tiercache.state import BlockTable, CacheState, count


class RequantizeInfo(NamedTuple):
    """What became cold.

    Attributes:
      slot_ids: the slot of each page asked for; `NO_SLOT` where it stayed hot or none was asked.
      reason: per page, `OK`, `SLOTS_FULL`, `NOT_FINITE`, `BAD_ID` for a page that is free, or
        `OPEN_PAGE` for one that a row has not filled yet.
    """

    slot_ids: Int32[Array, "n"]
    reason: Int32[Array, "n"]


def requantize(
    state: CacheState, page_ids: Int32[Array, "n"], *, spec: CacheSpec
) -> tuple[CacheState, RequantizeInfo]:
    """Packs hot pages into cold slots and frees them; rows and nodes then name the slots.

    A page moves as a whole: if one value of one layer is not finite, it stays where it was. Every
    row entry and node that named the page names its slot afterwards, and the slot takes over the
    page's reference count. A node's exact host copy stays, and is what restoring it uses.

    Args:
      state: the cache.
      page_ids: pages, each at most once; `NO_PAGE` is skipped.
      spec: the geometry; its policy must have cold slots.

    Raises:
      ValueError: while tracing, if the spec has no cold slots.
    """
    if not spec.num_cold_slots:
        raise ValueError("requantize needs num_cold_slots above 0.")
    refs = state.pages.refs
    asked = page_ids != NO_PAGE
    page_ids = jnp.where(page_ids >= 0, page_ids, NO_PAGE)
    held = refs.at[page_ids].get(mode="fill", fill_value=0) > 0
    still_open = _open_pages(state, spec).at[page_ids].get(mode="fill", fill_value=False)
    slot_ids = take_free(state.cold.refs == 0, asked & held & ~still_open)
    has_slot = slot_ids != NOTHING
    # A page that is not finite keeps its place; its slot stays free, whatever is in it.
    bank, finite = pack(
        state.pages.payload, state.cold.bank, page_ids, slot_ids,
        source=spec.hot_layout, target=spec.cold_layout,
    )  # fmt: skip
    reason = first_reason(
        (asked & ~held, Reason.BAD_ID),
        (asked & still_open, Reason.OPEN_PAGE),
        (asked & ~has_slot, Reason.SLOTS_FULL),
        (asked & ~finite, Reason.NOT_FINITE),
    )
    moved = asked & (reason == Reason.OK)
    page_ids = jnp.where(moved, page_ids, NO_PAGE)
    slot_ids = jnp.where(moved, slot_ids, NO_SLOT)

    taken_over = refs.at[page_ids].get(mode="fill", fill_value=0)
    state = state._replace(
        pages=state.pages._replace(refs=refs.at[page_ids].set(0, mode="drop")),
        cold=state.cold._replace(
            bank=bank, refs=state.cold.refs.at[slot_ids].set(taken_over, mode="drop")
        ),
        table=_publish(state.table, page_ids, slot_ids, spec),
        index=relocate(state.index, page_ids, slot_ids),
        counters=count(state.counters, reason, pages_to_cold=num_true(moved)),
    )
    return state, RequantizeInfo(slot_ids, reason)


def _open_pages(state: CacheState, spec: CacheSpec) -> Bool[Array, "page"]:
    """Pages that some row writes to, or will."""
    table = state.table
    is_open = jnp.arange(spec.max_pages) >= (table.lengths // spec.page_size)[:, None]
    page_ids = jnp.where(is_open, entry_to_page(table.entries), NO_PAGE)
    return jnp.zeros(spec.num_pages, bool).at[page_ids].set(True, mode="drop")


def _publish(table: BlockTable, page_ids, slot_ids, spec: CacheSpec) -> BlockTable:
    """Replaces the moved pages in every row; a row's cold part counts as committed."""
    moved_to = jnp.full(spec.num_pages, HOLE, jnp.int32)
    moved_to = moved_to.at[page_ids].set(slot_to_entry(slot_ids), mode="drop")
    sentinel = moved_to.at[entry_to_page(table.entries)].get(mode="fill", fill_value=HOLE)
    entries = jnp.where(sentinel < HOLE, sentinel, table.entries)
    depth = jnp.where(entries < HOLE, 1 + jnp.arange(spec.max_pages), 0)
    committed = jnp.maximum(table.committed, jnp.max(depth, axis=1) * spec.page_size)
    return table._replace(entries=entries, committed=committed.astype(jnp.int32))
