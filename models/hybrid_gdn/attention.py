"""Gated full attention: GQA with q/k norm, partial RoPE and a sigmoid gate on the output.

The layer does not know how keys and values are stored. It hands them to an `AttendFn`, which
appends them to whatever cache it closes over and returns the attention output.
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax import numpy as jnp
from jaxtyping import Array, Float

from models.hybrid_gdn.config import HybridConfig
from models.hybrid_gdn.linear import Linear
from models.hybrid_gdn.norm import RMSNorm
from models.hybrid_gdn.rope import Rope, apply_rope

type Cache = Any
"""Any pytree."""

type AttendFn = Callable[[Cache, int, Array, Array, Array], tuple[Cache, Array]]
"""`attend(cache, layer, q, k, v) -> (cache, out)`.

`layer` counts attention layers only, from 0, and is a Python int. `q` and `out` are
`[row, token, q_head, head_dim]`; `k` and `v` are `[row, token, kv_head, head_dim]`, normed and
rotated. The callee appends k and v at each row's current position and attends causally over all
of the row so far, with scale `head_dim ** -0.5` and a float32 softmax. Query head h reads K/V head
`h // (q_heads // kv_heads)`. Tokens past a row's count may hold anything, both ways.
"""


class GatedAttention(nnx.Module):
    """One full-attention mixer. No biases."""

    def __init__(self, config: HybridConfig, *, rngs: nnx.Rngs):
        self.config = config
        q_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        # Per head: head_dim query channels, then head_dim gate channels.
        self.q_proj = Linear(config, config.hidden_size, 2 * q_size, rngs=rngs)
        self.k_proj = Linear(config, config.hidden_size, kv_size, rngs=rngs)
        self.v_proj = Linear(config, config.hidden_size, kv_size, rngs=rngs)
        self.o_proj = Linear(config, q_size, config.hidden_size, rngs=rngs)
        self.q_norm = RMSNorm(config, config.head_dim)
        self.k_norm = RMSNorm(config, config.head_dim)

    def __call__(
        self,
        x: Float[Array, "row token hidden"],
        rope: Rope,
        cache: Cache,
        layer: int,
        attend: AttendFn,
    ) -> tuple[Cache, Float[Array, "row token hidden"]]:
        """Mixes tokens through the cache; `layer` counts attention layers only."""
        batch = x.shape[:2]
        head_dim = self.config.head_dim
        query, gate = jnp.split(self.q_proj(x).reshape(*batch, -1, 2 * head_dim), 2, axis=-1)
        key = self.k_proj(x).reshape(*batch, -1, head_dim)
        value = self.v_proj(x).reshape(*batch, -1, head_dim)
        query = apply_rope(self.q_norm(query), rope)
        key = apply_rope(self.k_norm(key), rope)
        cache, out = attend(cache, layer, query, key, value)
        if out.shape != query.shape:
            raise ValueError(f"attend returned {out.shape}, not the queries' {query.shape}.")
        out = out.astype(jnp.float32) * jax.nn.sigmoid(gate.astype(jnp.float32))
        return cache, self.o_proj(out.astype(x.dtype).reshape(*batch, -1))
