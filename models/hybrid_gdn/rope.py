"""Rotary position embedding over the leading channels of a head (arXiv 2104.09864)."""

from typing import NamedTuple

from jax import numpy as jnp
from jaxtyping import Array, Float, Int32

from models.hybrid_gdn.config import HybridConfig


class Rope(NamedTuple):
    """Rotation tables of one call, shared by all attention layers.

    Attributes:
      cos: cosines, one per token and channel pair; float32.
      sin: sines, alike.
    """

    cos: Float[Array, "row token half"]
    sin: Float[Array, "row token half"]


def rope_tables(config: HybridConfig, positions: Int32[Array, "row"], num_tokens: int) -> Rope:
    """Tables for tokens at `positions[row] + 0..num_tokens-1`.

    Channel pair i turns by `position * theta ** (-2 i / rotary_dim)`, computed in float32.
    """
    half = config.rotary_dim // 2
    frequency = config.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    steps = positions[:, None] + jnp.arange(num_tokens, dtype=jnp.int32)
    angles = steps[:, :, None].astype(jnp.float32) * frequency
    return Rope(cos=jnp.cos(angles), sin=jnp.sin(angles))


def apply_rope(
    x: Float[Array, "row token head dim"], rope: Rope
) -> Float[Array, "row token head dim"]:
    """Rotates the leading `2 * half` channels of every head; the others pass unchanged.

    Channel i is paired with channel i + half (the split-half convention of the checkpoints, not
    the interleaved one). Computes in float32, returns `x.dtype`.
    """
    half = rope.cos.shape[-1]
    first = x[..., :half].astype(jnp.float32)
    second = x[..., half : 2 * half].astype(jnp.float32)
    cos, sin = rope.cos[:, :, None], rope.sin[:, :, None]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([turned.astype(x.dtype), x[..., 2 * half :]], axis=-1)
