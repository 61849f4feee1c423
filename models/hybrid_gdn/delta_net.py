"""The Gated DeltaNet mixer: projections, causal convolution, gated delta rule, gated norm."""

from functools import partial
from typing import NamedTuple

import jax
from flax import nnx
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from models.hybrid_gdn.config import HybridConfig
from models.hybrid_gdn.gated_delta import (
    causal_conv,
    chunk_gated_delta_rule,
    conv_state,
    is_boundary,
    recurrent_gated_delta_step,
)
from models.hybrid_gdn.linear import Linear, normal
from models.hybrid_gdn.norm import GatedRMSNorm, l2_normalize


class LayerState(NamedTuple):
    """The recurrent state of one layer.

    Attributes:
      conv: last inputs of the convolution, oldest first; `config.dtype`.
      delta: state matrices; float32.
    """

    conv: Float[Array, "*batch tap channel"]
    delta: Float[Array, "*batch head dk dv"]


@partial(jax.jit, static_argnames="num_heads")
def _initial_decay(key: Array, num_heads: int) -> tuple[Array, Array]:
    """(A_log, dt_bias) with A uniform in (0, 16) and softplus(dt_bias) log-uniform."""
    for_rate, for_step = jax.random.split(key)
    rate = jax.random.uniform(for_rate, (num_heads,), minval=1e-3, maxval=16.0)
    log_range = jnp.log(jnp.array([1e-3, 1e-1]))
    step = jnp.exp(jax.random.uniform(for_step, (num_heads,), jnp.float32, *log_range))
    return jnp.log(rate), step + jnp.log(-jnp.expm1(-step))


class GatedDeltaNet(nnx.Module):
    """One recurrent mixer. No biases but `dt_bias`.

    Decay rates start as in the paper's code: `A` uniform in (0, 16), and `dt_bias` such that the
    step sizes are log-uniform in [1e-3, 1e-1]. Some heads then forget within a few tokens and
    some remember thousands.
    """

    def __init__(self, config: HybridConfig, *, rngs: nnx.Rngs):
        self.config = config
        num_heads = config.linear_num_value_heads
        # Output channels side by side: all queries, all keys, all values, all gates.
        self.in_proj_qkvz = Linear(
            config, config.hidden_size, config.conv_channels + config.value_dim, rngs=rngs
        )
        # All write strengths, then all step sizes.
        self.in_proj_ba = Linear(config, config.hidden_size, 2 * num_heads, rngs=rngs)
        kernel = config.linear_conv_kernel_dim
        self.conv_weight = nnx.Param(
            normal(rngs, (kernel, config.conv_channels), kernel**-0.5, config.dtype)
        )
        A_log, dt_bias = _initial_decay(rngs.params(), num_heads)
        self.A_log, self.dt_bias = nnx.Param(A_log), nnx.Param(dt_bias)
        self.norm = GatedRMSNorm(config, config.linear_value_head_dim)
        self.out_proj = Linear(config, config.value_dim, config.hidden_size, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "row token hidden"],
        state: LayerState,
        counts: Int32[Array, "row"],
        boundaries: Int32[Array, "k"] | None,
    ) -> tuple[Float[Array, "row token hidden"], LayerState, LayerState | None]:
        """Mixes tokens through the layer's state.

        Args:
          x: inputs; those past a row's count do not matter.
          state: the state before the first token, leaves `[row, …]`.
          counts: valid tokens per row.
          boundaries: offsets whose states to hand out, as in `chunk_gated_delta_rule`.

        Returns:
          The mixed tokens; the state after each row's count; the states at `boundaries`, with
          leaves `[k, row, …]`.
        """
        config = self.config
        num_tokens = x.shape[1]
        valid = jnp.arange(num_tokens) < counts[:, None]
        x = jnp.where(valid[..., None], x, 0)
        qkv, z = jnp.split(self.in_proj_qkvz(x), [config.conv_channels], axis=-1)
        mixed, joined = causal_conv(qkv, state.conv, self.conv_weight[...])
        kernel = config.linear_conv_kernel_dim
        counts = jnp.clip(counts, 0, num_tokens)
        conv = conv_state(joined, counts, kernel)
        q, k, v = self._heads(mixed, valid)
        g, beta = self._gates(x, valid)
        kept = None
        if num_tokens == 1:
            now = (q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0])
            out, delta = recurrent_gated_delta_step(*now, state.delta)
            out = out[:, None]
        else:
            out, delta, kept_delta = chunk_gated_delta_rule(
                q, k, v, g, beta, state.delta, boundaries=boundaries
            )
            if boundaries is not None and kept_delta is not None:
                kept = LayerState(_conv_at(joined, boundaries, counts, kernel), kept_delta)
        z = z.reshape(*out.shape)
        mixed = self.norm(out, z).reshape(*x.shape[:2], config.value_dim)
        return self.out_proj(mixed), LayerState(conv, delta), kept

    def _heads(
        self, mixed: Float[Array, "row token channel"], valid: Bool[Array, "row token"]
    ) -> tuple[Array, Array, Array]:
        """Splits the convolved channels into normalised q and k (one per value head), and v."""
        config = self.config
        mixed = jnp.where(valid[..., None], mixed, 0)
        query, key, value = jnp.split(mixed, [config.key_dim, 2 * config.key_dim], axis=-1)
        batch = mixed.shape[:2]
        dk = config.linear_key_head_dim
        group = config.linear_num_value_heads // config.linear_num_key_heads
        query = l2_normalize(query.reshape(*batch, -1, dk)) * dk**-0.5
        key = l2_normalize(key.reshape(*batch, -1, dk))
        value = value.reshape(*batch, -1, config.linear_value_head_dim).astype(jnp.float32)
        return jnp.repeat(query, group, axis=2), jnp.repeat(key, group, axis=2), value

    def _gates(
        self, x: Float[Array, "row token hidden"], valid: Bool[Array, "row token"]
    ) -> tuple[Array, Array]:
        """Log decay and write strength of every value head; both 0 at idle tokens."""
        b, a = jnp.split(self.in_proj_ba(x, dtype=jnp.float32), 2, axis=-1)
        g = -jnp.exp(self.A_log[...]) * jax.nn.softplus(a + self.dt_bias[...])
        mask = valid[..., None]
        return jnp.where(mask, g, 0), jnp.where(mask, jax.nn.sigmoid(b), 0)


def _conv_at(joined: Array, boundaries: Array, counts: Array, kernel: int) -> Array:
    """Conv states after `min(boundary, count)` tokens, `[k, row, tap, channel]`; else zeros."""
    num_tokens = joined.shape[1] - (kernel - 1)

    def at(boundary):
        return conv_state(joined, jnp.minimum(boundary, counts), kernel)

    states = jax.vmap(at)(boundaries)
    return jnp.where(is_boundary(boundaries, num_tokens)[:, None, None, None], states, 0)
