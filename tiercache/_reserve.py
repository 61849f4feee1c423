"""`reserve`: pages for the tokens that come, and copies of shared pages about to be written."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from tiercache._transfer import NOTHING, copy_pages, num_true, take_free
from tiercache.ids import HOLE, entry_to_page
from tiercache.reasons import Reason, first_reason
from tiercache.spec import CacheSpec
from tiercache.state import CacheState, count


class ReserveInfo(NamedTuple):
    """What `reserve` gave.

    Attributes:
      granted: rows that have their pages; True also for a row that asked for nothing.
      reason: per row, `OK`, `ROW_FULL`, `PAGES_FULL` or `NOT_RESERVED`.
      shortfall: pages that refused rows wanted and the pool did not have.
      copied: shared pages copied before a write.
    """

    granted: Bool[Array, "row"]
    reason: Int32[Array, "row"]
    shortfall: Int32[Array, ""]
    copied: Int32[Array, ""]


def reserve(
    state: CacheState, counts: Int32[Array, "row"], *, max_tokens: int, spec: CacheSpec
) -> tuple[CacheState, ReserveInfo]:
    """Gives each row exclusive hot pages for `counts` tokens after its last one.

    A last page that is only partly full and shared is copied first, so that no page with two owners
    is ever written. Asking twice gives nothing new. Rows are served in order; a row is served
    whole or not at all.

    Args:
      state: the cache.
      counts: tokens to come per row, in [0, max_tokens]; 0 leaves a row alone.
      max_tokens: the most of any row; static.
      spec: the geometry.

    Returns:
      The state, and per row whether it may go on. Read `info.granted`.

    Raises:
      ValueError: while tracing, if `max_tokens` is not in [1, spec.max_tokens].
    """
    if not 1 <= max_tokens <= spec.max_tokens:
        raise ValueError(f"max_tokens={max_tokens} is not in [1, {spec.max_tokens}].")
    size, table, refs = spec.page_size, state.table, state.pages.refs
    counts = jnp.clip(counts, 0, max_tokens)
    have = -(-table.lengths // size)
    until = -(-(table.lengths + counts) // size)

    window = have[:, None] + jnp.arange(-(-max_tokens // size) + 1)
    held = jnp.take_along_axis(table.entries, jnp.clip(window, 0, spec.max_pages - 1), axis=1)
    lacking = (window < until[:, None]) & (held == HOLE)

    last = jnp.take_along_axis(
        table.entries, jnp.clip(table.lengths // size, 0, spec.max_pages - 1)[:, None], axis=1
    )[:, 0]
    writes_last = (counts > 0) & (table.lengths % size > 0)
    shared = writes_last & (refs.at[entry_to_page(last)].get(mode="fill", fill_value=0) > 1)

    wanted = jnp.concatenate([shared[:, None], lacking], axis=1)
    too_long = (until > spec.max_pages) & (counts > 0)
    closed = writes_last & (last < 0)
    need = jnp.where(too_long | closed, 0, jnp.sum(wanted, axis=1, dtype=jnp.int32))
    free = num_true(refs == 0)
    short = (need > 0) & (jnp.cumsum(need) > free)
    reason = first_reason(
        (too_long, Reason.ROW_FULL), (closed, Reason.NOT_RESERVED), (short, Reason.PAGES_FULL)
    )
    granted = reason == Reason.OK
    wanted &= granted[:, None]
    new_ids = take_free(refs == 0, wanted.reshape(-1)).reshape(wanted.shape)

    copy_ids, fresh_ids = new_ids[:, 0], new_ids[:, 1:]
    copied = wanted[:, 0]
    payload = copy_pages(state.pages.payload, last, copy_ids, copied)
    refs = refs.at[new_ids].add(1, mode="drop")
    refs = refs.at[jnp.where(copied, last, NOTHING)].add(-1, mode="drop")

    rows = jnp.arange(spec.max_rows)
    entries = table.entries.at[rows[:, None], jnp.where(wanted[:, 1:], window, NOTHING)].set(
        fresh_ids, mode="drop"
    )
    entries = entries.at[rows, jnp.where(copied, table.lengths // size, NOTHING)].set(
        copy_ids, mode="drop"
    )
    info = ReserveInfo(granted, reason, jnp.maximum(jnp.sum(need) - free, 0), num_true(copied))
    return (
        state._replace(
            pages=state.pages._replace(payload=payload, refs=refs),
            table=table._replace(entries=entries),
            counters=count(state.counters, reason),
        ),
        info,
    )
