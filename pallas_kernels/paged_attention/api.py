"""The op's signature and its implementations."""

from typing import Final, Literal

from jaxtyping import Array, Float, Int32

from pallas_kernels import dispatch
from pallas_kernels.paged_attention import reference
from pallas_kernels.paged_attention.types import ColdPlane, HotPlane

IMPLEMENTATIONS: Final = {  # fastest first; the reference runs anywhere and ends the list
    "reference": reference.paged_attention,
}


def paged_attention(
    q: Float[Array, "row token q_head dim"],
    k: HotPlane,
    v: HotPlane,
    entries: Int32[Array, "row page"],
    positions: Int32[Array, "row"],
    counts: Int32[Array, "row"],
    *,
    cold_k: ColdPlane | None = None,
    cold_v: ColdPlane | None = None,
    scale: float | None = None,
    block_pages: int = 8,
    implementation: Literal["reference"] | None = None,
) -> Float[Array, "row token q_head dim"]:
    """Causal attention of new tokens over everything their rows hold.

    Decode is `token` = 1, prefill over a cached prefix `token` > 1. The keys and values of the new
    tokens are already in their pages. Softmax and sums are in float32.

    Args:
      q: queries; q_head is a multiple of the K/V heads (GQA).
      k, v: the layer's hot planes.
      entries: per row and page >= 0 a page id, -1 a hole (weight zero), <= -2 slot -2 - entry.
      positions: position of each row's first new token.
      counts: valid new tokens per row; the output of the others is zero.
      cold_k, cold_v: the layer's cold planes; None reads cold entries as holes.
      scale: of the scores; head_dim ** -0.5 by default.
      block_pages: pages read at a time. The sum is taken in this order, so results depend on it.
      implementation: None takes the first able here; a name, that one or NotImplementedError.

    Returns:
      In the dtype of `q`. What a row gets does not depend on the other rows.

    Raises:
      ValueError: while tracing, if q_head is not a multiple of the K/V heads.
    """
    kv_heads = k.pool.codes.shape[2]
    if q.shape[2] % kv_heads:
        raise ValueError(f"q has {q.shape[2]} heads, not a multiple of {kv_heads} K/V heads.")
    return dispatch.call(
        IMPLEMENTATIONS, implementation, q, k, v, entries, positions, counts,
        cold_k=cold_k, cold_v=cold_v,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        block_pages=min(block_pages, entries.shape[1]),
    )  # fmt: skip
