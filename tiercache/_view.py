"""`view`: where one step reads and writes, computed once for all layers."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int32

from tiercache.ids import HOLE, NO_PAGE, entry_to_page
from tiercache.prefix.arrays import gather
from tiercache.spec import CacheSpec
from tiercache.state import CacheState


class View(NamedTuple):
    """What `append` and `attend` need of some rows for one step.

    Attributes:
      entries: the block table of these rows.
      lengths: tokens before the step; the position of the step's first token.
      counts: valid tokens of the step per row.
      write_pages: the page of each new token; `NO_PAGE` where none is to be written.
      write_offsets: its place in the page, in [0, page_size).
    """

    entries: Int32[Array, "n page"]
    lengths: Int32[Array, "n"]
    counts: Int32[Array, "n"]
    write_pages: Int32[Array, "n token"]
    write_offsets: Int32[Array, "n token"]


def view(
    state: CacheState,
    row_ids: Int32[Array, "n"],
    counts: Int32[Array, "n"],
    *,
    num_tokens: int,
    spec: CacheSpec,
) -> View:
    """The step of `num_tokens` tokens that `counts` of are valid, for the rows `row_ids`.

    A token is written only to a hot page that its row alone holds: without `reserve`, or after a
    refusal, or into a shared page, it is dropped, and `append` says so.

    Args:
      state: the cache, after `reserve`.
      row_ids: rows, each at most once; a row that does not exist reads as empty.
      counts: valid tokens per row, in [0, num_tokens].
      num_tokens: the step's width, 1 for decode; static.
      spec: the geometry.
    """
    if not 1 <= num_tokens <= spec.max_tokens:
        raise ValueError(f"num_tokens={num_tokens} is not in [1, {spec.max_tokens}].")
    entries = gather(state.table.entries, row_ids, HOLE)
    lengths = gather(state.table.lengths, row_ids, 0)
    positions = lengths[:, None] + jnp.arange(num_tokens)
    entry = jnp.take_along_axis(
        entries, jnp.clip(positions // spec.page_size, 0, spec.max_pages - 1), axis=1
    )
    pages = entry_to_page(entry)
    exclusive = state.pages.refs.at[pages].get(mode="fill", fill_value=0) == 1
    valid = jnp.arange(num_tokens) < counts[:, None]
    valid &= positions < spec.max_tokens
    return View(
        entries,
        lengths,
        counts,
        jnp.where(valid & exclusive, pages, NO_PAGE),
        positions % spec.page_size,
    )
