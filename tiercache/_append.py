"""`append` and `advance`: the new K and V of a step, layer by layer, then its commit."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from pallas_kernels.append_quantized import append_quantized
from pallas_kernels.page_layout import K, Payload, V
from tiercache._view import View
from tiercache.ids import NO_PAGE, entry_to_page
from tiercache.reasons import Reason, first_reason
from tiercache.spec import CacheSpec
from tiercache.state import CacheState, count


class AppendInfo(NamedTuple):
    """What `append` left out.

    Attributes:
      dropped: valid tokens per row that had no exclusive page and were not written.
    """

    dropped: Int32[Array, "n"]


class AdvanceInfo(NamedTuple):
    """Which rows took their tokens.

    Attributes:
      reason: per row, `OK`, or `NOT_RESERVED` where a page of the step is missing or shared.
    """

    reason: Int32[Array, "row"]


def append(
    state: CacheState,
    view: View,
    layer: int,
    k: Float[Array, "n token head dim"],
    v: Float[Array, "n token head dim"],
    *,
    spec: CacheSpec,
) -> tuple[CacheState, AppendInfo]:
    """Writes one layer's K and V of the step into the rows' pages, in the layer's formats.

    Lengths stay: call it for every layer, then `advance` once. Writing a token again before that
    replaces it.

    Args:
      state: the cache, after `reserve`.
      view: the step.
      layer: attention layer, in [0, spec.num_layers); static.
      k, v: after normalisation and RoPE; any float dtype.
      spec: the geometry.

    Raises:
      ValueError: while tracing, if the shapes are not those of the spec and the view.
    """
    want = (*view.write_pages.shape, spec.num_kv_heads, spec.head_dim)
    if k.shape != want or v.shape != want:
        raise ValueError(f"k {k.shape} and v {v.shape} are not {want}.")
    payload = _write(state.pages.payload, view, layer, (k, v), spec)
    valid = jnp.arange(want[1]) < view.counts[:, None]
    dropped = jnp.sum(valid & (view.write_pages == NO_PAGE), axis=1, dtype=jnp.int32)
    pages = state.pages._replace(payload=payload)
    return state._replace(pages=pages), AppendInfo(dropped)


def _write(payload: Payload, view: View, layer: int, new, spec: CacheSpec) -> Payload:
    """K and V in their places; in one go where both have one format."""
    planes: dict[int, list[tuple[int, Array]]] = {}
    for kv, x in ((K, new[0]), (V, new[1])):
        number, plane = spec.hot_layout.find(layer, kv)
        planes.setdefault(number, []).append((plane, x))
    written = list(payload)
    for number, rows in planes.items():
        written[number] = append_quantized(
            payload[number],
            tuple(x for _, x in rows),
            view.write_pages,
            view.write_offsets,
            planes=tuple(plane for plane, _ in rows),
            codec=spec.hot_layout.groups[number].codec,
        )
    return tuple(written)


def is_writable(
    state: CacheState, counts: Int32[Array, "row"], *, spec: CacheSpec
) -> Bool[Array, "row"]:
    """Whether each row alone holds hot pages for `counts` tokens after its last one."""
    table, size = state.table, spec.page_size
    page = jnp.arange(spec.max_pages)
    first, until = table.lengths // size, -(-(table.lengths + counts) // size)
    needed = (page >= first[:, None]) & (page < until[:, None])
    refs = state.pages.refs.at[entry_to_page(table.entries)].get(mode="fill", fill_value=0)
    fits = (table.lengths + counts <= spec.max_tokens) & (counts >= 0)
    return jnp.all(~needed | (refs == 1), axis=1) & fits


def advance(
    state: CacheState, counts: Int32[Array, "row"], *, spec: CacheSpec
) -> tuple[CacheState, AdvanceInfo]:
    """Commits a step: every row becomes `counts` tokens longer.

    Args:
      state: the cache, after `append` of every layer.
      counts: tokens per row; 0 leaves a row as it is.
      spec: the geometry.
    """
    ok = is_writable(state, counts, spec=spec)
    reason = first_reason(((counts != 0) & ~ok, Reason.NOT_RESERVED))
    lengths = state.table.lengths + jnp.where(ok, counts, 0)
    state = state._replace(
        table=state.table._replace(lengths=lengths), counters=count(state.counters, reason)
    )
    return state, AdvanceInfo(reason)
