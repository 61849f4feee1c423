"""A plain KV cache for the model tests: one dense array per layer, float32 softmax."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from models.hybrid_gdn import HybridConfig


class DenseCache(NamedTuple):
    """Keys and values `[layer, row, position, kv_head, head_dim]`."""

    k: jax.Array
    v: jax.Array


def init_dense(config: HybridConfig, num_rows: int, length: int) -> DenseCache:
    shape = (
        config.num_attention_layers,
        num_rows,
        length,
        config.num_key_value_heads,
        config.head_dim,
    )
    return DenseCache(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype))


def dense_attend(positions: jax.Array, counts: jax.Array):
    """An AttendFn for rows at `positions` with `counts` valid tokens."""

    def attend(cache: DenseCache, layer, q, k, v):
        num_rows, num_tokens = q.shape[:2]
        length = cache.k.shape[2]
        steps = jnp.arange(num_tokens)
        at = jnp.where(steps < counts[:, None], positions[:, None] + steps, length)
        rows = jnp.arange(num_rows)[:, None]
        cache = DenseCache(
            cache.k.at[layer, rows, at].set(k, mode="drop"),
            cache.v.at[layer, rows, at].set(v, mode="drop"),
        )
        group = q.shape[2] // k.shape[2]
        keys = jnp.repeat(cache.k[layer], group, axis=2).astype(jnp.float32)
        values = jnp.repeat(cache.v[layer], group, axis=2).astype(jnp.float32)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q.astype(jnp.float32), keys) * q.shape[-1] ** -0.5
        seen = jnp.arange(length) <= (positions[:, None] + steps)[..., None]
        scores = jnp.where(seen[:, None], scores, -jnp.inf)
        out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), values)
        return cache, out.astype(q.dtype)

    return attend
