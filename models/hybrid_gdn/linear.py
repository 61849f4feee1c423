"""Bias-free projections with one rule for precision and initialisation."""

from functools import partial

import jax
from flax import nnx
from jax import lax
from jax import numpy as jnp
from jaxtyping import Array, Float

from models.hybrid_gdn.config import HybridConfig


def precision(dtype) -> lax.Precision:
    """Full float32 products for a float32 model (no TF32 on GPUs), the fast path otherwise."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT


@partial(jax.jit, static_argnames=("shape", "dtype"))
def _draw(key: Array, std: Array, shape: tuple[int, ...], dtype) -> Array:
    return (std * jax.random.normal(key, shape, jnp.float32)).astype(dtype)


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], std: float, dtype) -> Array:
    """Draws from N(0, std²) in float32 and rounds to `dtype`. One compile per shape."""
    return _draw(rngs.params(), jnp.float32(std), shape, dtype)


class Linear(nnx.Module):
    """`y = x @ kernel`, accumulated in float32, returned in the model's dtype.

    The kernel is `[in, out]`, the transpose of a PyTorch weight. It starts as N(0, gain²/in),
    which keeps unit inputs at standard deviation `gain`.
    """

    def __init__(
        self, config: HybridConfig, size_in: int, size_out: int, *, rngs: nnx.Rngs, gain: float = 1
    ):
        self.precision = precision(config.dtype)
        self.kernel = nnx.Param(
            normal(rngs, (size_in, size_out), gain * size_in**-0.5, config.dtype)
        )

    def __call__(self, x: Float[Array, "*batch in"], *, dtype=None) -> Float[Array, "*batch out"]:
        kernel = self.kernel[...]
        y = jnp.matmul(x, kernel, precision=self.precision, preferred_element_type=jnp.float32)
        return y.astype(x.dtype if dtype is None else dtype)
