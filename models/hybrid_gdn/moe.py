"""Mixture of experts: softmax router, top-k, and one shared expert behind a sigmoid gate."""

import jax
from flax import nnx
from jax import lax
from jax import numpy as jnp
from jaxtyping import Array, Float

from models.hybrid_gdn.config import HybridConfig
from models.hybrid_gdn.linear import Linear, normal, precision
from models.hybrid_gdn.mlp import MLP


class MoE(nnx.Module):
    """Sends each token to `num_experts_per_tok` experts and to the shared one.

    Token copies are sorted by expert and go through `lax.ragged_dot`, so no token is dropped and
    none has to wait for a capacity.
    """

    def __init__(self, config: HybridConfig, *, rngs: nnx.Rngs):
        self.config = config
        hidden, width = config.hidden_size, config.moe_intermediate_size
        experts = config.num_experts
        self.router = Linear(config, hidden, experts, rngs=rngs)
        # [expert, in, out]
        shape_in, shape_out = (experts, hidden, width), (experts, width, hidden)
        self.gate_proj = nnx.Param(normal(rngs, shape_in, hidden**-0.5, config.dtype))
        self.up_proj = nnx.Param(normal(rngs, shape_in, hidden**-0.5, config.dtype))
        self.down_proj = nnx.Param(normal(rngs, shape_out, width**-0.5, config.dtype))
        self.shared_expert = MLP(config, config.shared_expert_intermediate_size, rngs=rngs)
        self.shared_expert_gate = Linear(config, hidden, 1, rngs=rngs)

    def __call__(self, x: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
        tokens = x.reshape(-1, x.shape[-1])
        gate = jax.nn.sigmoid(self.shared_expert_gate(tokens, dtype=jnp.float32))
        shared = self.shared_expert(tokens).astype(jnp.float32)
        return (self._routed(tokens) + gate * shared).astype(x.dtype).reshape(x.shape)

    def _routed(self, x: Float[Array, "token hidden"]) -> Float[Array, "token hidden"]:
        """The weighted sum of the chosen experts; float32."""
        config = self.config
        top_k = config.num_experts_per_tok
        shares = jax.nn.softmax(self.router(x, dtype=jnp.float32), axis=-1)
        weights, experts = lax.top_k(shares, top_k)
        if config.norm_topk_prob:
            weights /= jnp.sum(weights, axis=-1, keepdims=True)
        order = jnp.argsort(experts.reshape(-1))  # copies, grouped by expert
        sizes = jnp.bincount(experts.reshape(-1), length=config.num_experts).astype(jnp.int32)
        copies = x[order // top_k]
        inner = jax.nn.silu(self._grouped(copies, self.gate_proj, sizes))
        inner = (inner * self._grouped(copies, self.up_proj, sizes)).astype(x.dtype)
        out = self._grouped(inner, self.down_proj, sizes)
        back = jnp.argsort(order)  # by gather: a row's sum never depends on other rows' order
        out = out[back].reshape(-1, top_k, x.shape[-1])
        return jnp.sum(out * weights[..., None], axis=1)

    def _grouped(self, x: Array, kernels: nnx.Param, sizes: Array) -> Array:
        return lax.ragged_dot(
            x,
            kernels[...],
            sizes,
            precision=precision(self.config.dtype),
            preferred_element_type=jnp.float32,
        )
