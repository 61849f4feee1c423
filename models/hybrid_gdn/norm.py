"""RMS norms of the Qwen3-Next family; all compute in float32 and return the input's dtype."""

import jax
from flax import nnx
from jax import numpy as jnp
from jaxtyping import Array, Float

from models.hybrid_gdn.config import HybridConfig


def rms_normalize(x: Float[Array, "*batch dim"], eps: float) -> Float[Array, "*batch dim"]:
    """Scales the last axis to unit mean square; float32 out."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


def l2_normalize(x: Float[Array, "*batch dim"], eps: float = 1e-6) -> Float[Array, "*batch dim"]:
    """Scales the last axis to unit length (ε added to the squared length); float32 out."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + eps)


class RMSNorm(nnx.Module):
    """RMS norm with a zero-centred weight: `rms(x) * (1 + weight)`.

    Weights that sit near zero instead of near one survive weight decay (Qwen3-Next).
    """

    def __init__(self, config: HybridConfig, size: int):
        self.eps = config.rms_norm_eps
        self.weight = nnx.Param(jnp.zeros((size,), jnp.float32))

    def __call__(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        return (rms_normalize(x, self.eps) * (1 + self.weight[...])).astype(x.dtype)


class GatedRMSNorm(nnx.Module):
    """RMS norm of one value head, then a SiLU gate: `rms(x) * weight * silu(z)`.

    The weight is one-centred here and shared by all heads of the layer.
    """

    def __init__(self, config: HybridConfig, size: int):
        self.eps = config.rms_norm_eps
        self.weight = nnx.Param(jnp.ones((size,), jnp.float32))

    def __call__(
        self, x: Float[Array, "*batch dim"], z: Float[Array, "*batch dim"]
    ) -> Float[Array, "*batch dim"]:
        gate = jax.nn.silu(z.astype(jnp.float32))
        return (rms_normalize(x, self.eps) * self.weight[...] * gate).astype(z.dtype)
