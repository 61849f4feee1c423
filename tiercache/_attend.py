"""`attend`: one layer's attention over everything that the rows hold."""

from typing import Literal

from jaxtyping import Array, Float

from pallas_kernels.page_layout import K, V
from pallas_kernels.paged_attention import ColdPlane, HotPlane, paged_attention
from tiercache._view import View
from tiercache.spec import CacheSpec
from tiercache.state import CacheState


def attend(
    state: CacheState,
    view: View,
    layer: int,
    q: Float[Array, "n token q_head dim"],
    *,
    scale: float | None = None,
    block_pages: int = 8,
    implementation: Literal["reference"] | None = None,
    spec: CacheSpec,
) -> Float[Array, "n token q_head dim"]:
    """Causal attention of the step's tokens over hot pages of any format and cold slots.

    One call for decode (one token a row) and for prefill over a cached prefix. Holes have weight
    zero. Softmax and sums are in float32.

    Where a verb of the same program writes what this reads (`retire` after the last layer, say),
    let it wait: `state, out = lax.optimization_barrier((state, out))`. Else XLA may keep both
    versions of the bank, which costs a copy of it: on CPUs it does.

    Args:
      state: the cache, after `append` of this layer.
      view: the step.
      layer: attention layer; static.
      q: queries after normalisation and RoPE; q_head is a multiple of the K/V heads.
      scale: of the scores; head_dim ** -0.5 by default.
      block_pages: pages read at a time; the order of the sum, and so its rounding, follows it.
      implementation: of `paged_attention`; None takes the first able.
      spec: the geometry.

    Returns:
      In the dtype of `q`; zero for tokens that are not valid.
    """
    cold_k, cold_v = (_cold_plane(state, layer, kv, spec) for kv in (K, V))
    return paged_attention(
        q,
        _hot_plane(state, layer, K, spec),
        _hot_plane(state, layer, V, spec),
        view.entries,
        view.lengths,
        view.counts,
        cold_k=cold_k,
        cold_v=cold_v,
        scale=scale,
        block_pages=block_pages,
        implementation=implementation,
    )


def _hot_plane(state: CacheState, layer: int, kv: int, spec: CacheSpec) -> HotPlane:
    number, plane = spec.hot_layout.find(layer, kv)
    return HotPlane(state.pages.payload[number], plane, spec.hot_layout.groups[number].codec)


def _cold_plane(state: CacheState, layer: int, kv: int, spec: CacheSpec) -> ColdPlane | None:
    if not spec.num_cold_slots:
        return None
    field = spec.cold_layout.plane_fields[layer, kv]
    return ColdPlane(state.cold.bank, field.codes_offset, field.scales_offset, field.codec)
