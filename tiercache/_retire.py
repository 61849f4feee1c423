"""`retire`: the decode-boundary pass that turns a row's old pages cold and gives them back."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from tiercache._requantize import RequantizeInfo, requantize
from tiercache._transfer import num_true
from tiercache.ids import NO_PAGE, NO_SLOT, entry_to_page
from tiercache.spec import CacheSpec
from tiercache.state import CacheState


class RetireInfo(NamedTuple):
    """What was retired.

    Attributes:
      page_ids: pages that became cold and are free now; `NO_PAGE` where none.
      slot_ids: the slot of each.
      reason: per page looked at, as in `RequantizeInfo`.
      left: pages old enough that still are hot: over `most`, or refused.
    """

    page_ids: Int32[Array, "most"]
    slot_ids: Int32[Array, "most"]
    reason: Int32[Array, "most"]
    left: Int32[Array, ""]


def retire(state: CacheState, *, most: int, spec: CacheSpec) -> tuple[CacheState, RetireInfo]:
    """Moves up to `most` pages that are older than `keep_tokens` in every row to cold slots.

    A page is old in a row when all its tokens lie before the row's newest `keep_tokens`. A page
    that several rows share is retired once, when it is old in each of them. The freed pages are
    anyone's at once. For an index on another device, apply `prefix.relocate` with the ids of the
    info there.

    Args:
      state: the cache, after `advance`.
      most: pages per call; static. One per row keeps up with decoding.
      spec: the geometry, with `keep_tokens`.

    Raises:
      ValueError: while tracing, if the spec has no `keep_tokens`.
    """
    if spec.keep_tokens is None:
        raise ValueError("retire needs keep_tokens in the spec.")
    old = old_pages(state, spec)
    size = min(most, spec.num_pages)
    # A page that cannot be packed stays a candidate for ever: each step starts elsewhere, so that
    # such pages never keep the others waiting.
    start = jnp.sum(state.table.lengths) % spec.num_pages
    (turned,) = jnp.nonzero(jnp.roll(old, -start), size=size, fill_value=NO_PAGE)
    page_ids = jnp.where(turned == NO_PAGE, NO_PAGE, (turned + start) % spec.num_pages)
    page_ids = page_ids.astype(jnp.int32)
    # Most steps of a decode loop have nothing to retire: a loop of one turn or none, not a `cond`,
    # so that the pools stay where they are.
    nothing = RequantizeInfo(jnp.full(size, NO_SLOT, jnp.int32), jnp.zeros(size, jnp.int32))
    state, info = lax.fori_loop(
        0,
        jnp.any(old).astype(jnp.int32),
        lambda _, carry: requantize(carry[0], page_ids, spec=spec),
        (state, nothing),
    )
    moved = info.slot_ids != NO_SLOT
    page_ids = jnp.where(moved, page_ids, NO_PAGE)
    return state, RetireInfo(page_ids, info.slot_ids, info.reason, num_true(old) - num_true(moved))


def old_pages(state: CacheState, spec: CacheSpec) -> Bool[Array, "page"]:
    """Pages that some row holds and that are past the keep window of every row that does."""
    assert spec.keep_tokens is not None
    table = state.table
    ends = (1 + jnp.arange(spec.max_pages)) * spec.page_size
    old = ends <= table.lengths[:, None] - spec.keep_tokens
    page_ids = entry_to_page(table.entries)
    none = jnp.zeros(spec.num_pages, jnp.int32)
    rows = none.at[page_ids].add(1, mode="drop")
    young = none.at[jnp.where(old, NO_PAGE, page_ids)].add(1, mode="drop")
    return (rows > 0) & (young == 0)
