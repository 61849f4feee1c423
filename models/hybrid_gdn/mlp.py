"""The dense SwiGLU MLP (arXiv 2002.05202)."""

import jax
from flax import nnx
from jaxtyping import Array, Float

from models.hybrid_gdn.config import HybridConfig
from models.hybrid_gdn.linear import Linear


class MLP(nnx.Module):
    """`down(silu(gate(x)) * up(x))`, without biases."""

    def __init__(self, config: HybridConfig, width: int, *, rngs: nnx.Rngs):
        self.gate_proj = Linear(config, config.hidden_size, width, rngs=rngs)
        self.up_proj = Linear(config, config.hidden_size, width, rngs=rngs)
        self.down_proj = Linear(config, width, config.hidden_size, rngs=rngs)

    def __call__(self, x: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))
