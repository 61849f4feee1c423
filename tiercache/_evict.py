"""`evict`: the least recently used pages leave the device, to a lower tier or for good."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from tiercache._host_room import host_room
from tiercache._remove import node_mask, remove_copies
from tiercache._requantize import requantize
from tiercache._transfer import num_true, store_pages, take_free
from tiercache.ids import HOLE, NO_HOST, NO_NODE, NO_PAGE, entry_to_page, entry_to_slot
from tiercache.prefix import set_host_ids, victims
from tiercache.reasons import Reason, first_reason
from tiercache.spec import CacheSpec
from tiercache.state import CacheState, count

Target = Literal["host", "cold", "drop"]


class EvictInfo(NamedTuple):
    """What left the device.

    Attributes:
      node_ids: nodes whose device copy left, in victim order; `NO_NODE` elsewhere.
      freed: pages (or cold slots) that are free now.
      stored: pages copied to host memory by this call.
      packed: pages packed into cold slots by this call.
      dropped: pages that no tier holds any more.
      shortfall: pages asked for that stay.
      reason: `OK`, or why some stay: `ALL_PINNED` (nothing left that may go), `HOST_PAGES_FULL`,
        `SLOTS_FULL` or `NOT_FINITE`.
    """

    node_ids: Int32[Array, "most"]
    freed: Int32[Array, ""]
    stored: Int32[Array, ""]
    packed: Int32[Array, ""]
    dropped: Int32[Array, ""]
    shortfall: Int32[Array, ""]
    reason: Int32[Array, ""]


def evict(
    state: CacheState,
    number: Int32[Array, ""],
    *,
    most: int,
    to: Target = "host",
    tier: Literal["hot", "cold"] = "hot",
    spec: CacheSpec,
) -> tuple[CacheState, EvictInfo]:
    """Frees `number` pages that only the index holds, in the order (last_use, -depth).

    To "host": a page that has a host copy is let go; another is copied there first, and stays if
    it cannot be. A full bank drops its own oldest unpinned copies, or the victim itself where that
    is older than all of them. To "cold": the page is packed into a cold slot. To "drop": the page
    is let go; one without a host copy is gone, and so is what hangs below it.

    Args:
      state: the cache.
      number: pages wanted, in [0, most].
      most: the most per call; static.
      to: where the pages go; static.
      tier: "hot" frees pages, "cold" frees cold slots (only to "drop"); static.
      spec: the geometry.

    Raises:
      ValueError: while tracing, for a target that the spec has no room for at all.
    """
    _check_target(to, tier, spec)
    index = state.index
    if tier == "hot":
        sole = state.pages.refs.at[entry_to_page(index.entry)].get(mode="fill", fill_value=0) == 1
    else:
        sole = state.cold.refs.at[entry_to_slot(index.entry)].get(mode="fill", fill_value=0) == 1
    node_ids = victims(index, sole, want=min(most, spec.num_nodes))
    if most > spec.num_nodes:
        node_ids = jnp.pad(node_ids, (0, most - spec.num_nodes), constant_values=NO_NODE)
    chosen = (node_ids != NO_NODE) & (jnp.arange(most) < number)
    node_ids = jnp.where(chosen, node_ids, NO_NODE)
    if to == "host":
        return _to_host(state, node_ids, chosen, number, spec)
    if to == "cold":
        return _to_cold(state, node_ids, chosen, number, spec)
    return _drop(state, node_ids, chosen, number)


def _check_target(to: str, tier: str, spec: CacheSpec):
    if to not in ("host", "cold", "drop") or tier not in ("hot", "cold"):
        raise ValueError(f"to={to!r}, tier={tier!r}: not a target and a tier.")
    if to == "host" and not spec.num_host_pages:
        raise ValueError("evict to 'host' with num_host_pages=0.")
    if to == "cold" and not spec.num_cold_slots:
        raise ValueError("evict to 'cold' with num_cold_slots=0.")
    if tier == "cold" and to != "drop":
        raise ValueError(f"evict of tier 'cold' to {to!r}: cold slots can only be dropped.")


def _to_host(state: CacheState, node_ids, chosen: Bool[Array, "most"], number, spec: CacheSpec):
    index, host = state.index, state.host
    host_ids = index.host_id.at[node_ids].get(mode="fill", fill_value=NO_HOST)
    room = host_room(
        index,
        node_ids,
        chosen & (host_ids == NO_HOST),
        (index.host_id < NO_HOST) & (index.pins == 0),
        num_true(host.page_node == NO_NODE),
    )
    leaving = chosen & ~room.refused
    page_ids = entry_to_page(index.entry.at[node_ids].get(mode="fill", fill_value=HOLE))
    # Publish nothing before it is complete: copies first, then their names, then the release.
    free = (host.page_node == NO_NODE).at[
        jnp.where(room.evicted, index.host_id, NO_HOST)
    ].set(True, mode="drop")  # fmt: skip
    new_ids = take_free(free, room.stored)
    bank = store_pages(state.pages.payload, host.pages, page_ids, new_ids, room.stored)
    state = state._replace(host=host._replace(pages=bank))
    state, removed = remove_copies(
        state,
        node_mask(index, node_ids, leaving & ~room.stored),
        room.evicted,
    )
    known = state.index.depth.at[node_ids].get(mode="fill", fill_value=-1) > 0
    stored_ids = jnp.where(room.stored & known, node_ids, NO_NODE)
    state = state._replace(
        index=set_host_ids(state.index, stored_ids, new_ids),
        host=state.host._replace(
            page_node=state.host.page_node.at[new_ids].set(stored_ids, mode="drop")
        ),
    )
    state, released = remove_copies(
        state, node_mask(index, node_ids, room.stored), jnp.zeros_like(room.evicted)
    )
    reason = first_reason(
        (jnp.any(room.refused), Reason.HOST_PAGES_FULL),
        (number > num_true(chosen), Reason.ALL_PINNED),
    )
    counters = count(state.counters, reason, pages_to_host=num_true(room.stored))
    info = EvictInfo(
        jnp.where(leaving, node_ids, NO_NODE),
        removed.pages + released.pages,
        num_true(room.stored),
        jnp.int32(0),
        removed.dropped,
        number - num_true(leaving),
        reason,
    )
    return state._replace(counters=counters), info


def _to_cold(state: CacheState, node_ids, chosen, number, spec: CacheSpec):
    entries = state.index.entry.at[node_ids].get(mode="fill", fill_value=HOLE)
    page_ids = jnp.where(chosen, entry_to_page(entries), NO_PAGE)
    state, moved = requantize(state, page_ids, spec=spec)
    left = moved.slot_ids != NO_PAGE
    worst = jnp.max(moved.reason)
    reason = first_reason((number > num_true(chosen), Reason.ALL_PINNED))
    reason = jnp.where(worst > 0, worst, reason)
    info = EvictInfo(
        jnp.where(left, node_ids, NO_NODE),
        num_true(left),
        jnp.int32(0),
        num_true(left),
        jnp.int32(0),
        number - num_true(left),
        reason,
    )
    short = first_reason(((number > num_true(chosen)), Reason.ALL_PINNED))
    return state._replace(counters=count(state.counters, short)), info


def _drop(state: CacheState, node_ids, chosen, number):
    nothing = jnp.zeros(state.index.depth.shape, bool)
    state, removed = remove_copies(state, node_mask(state.index, node_ids, chosen), nothing)
    reason = first_reason((number > num_true(chosen), Reason.ALL_PINNED))
    info = EvictInfo(
        node_ids,
        removed.pages + removed.slots,
        jnp.int32(0),
        jnp.int32(0),
        removed.dropped,
        jnp.maximum(number - num_true(chosen), 0),
        reason,
    )
    return state._replace(counters=count(state.counters, reason)), info
