"""The hybrid decoder: embedding, pre-norm blocks, final norm, head.

The model holds weights only. The recurrent state of the running rows and the KV cache come in as
arguments and go out as results, so a caller's `jit` can donate both.

Weights, ours and those of a Qwen3-Next checkpoint (`Qwen3NextForCausalLM`). Ours are `[in, out]`;
a PyTorch linear is `[out, in]`, so `.T` means a transpose. `L` is the block number.

| ours | checkpoint | change |
|---|---|---|
| `embed_tokens` | `model.embed_tokens.weight` | |
| `norm.weight` | `model.norm.weight` | |
| `lm_head.kernel` (absent when tied) | `lm_head.weight` | `.T` |
| `layers.L.input_norm.weight` | `model.layers.L.input_layernorm.weight` | |
| `layers.L.post_norm.weight` | `model.layers.L.post_attention_layernorm.weight` | |
| `layers.L.mixer.{q,k,v,o}_proj.kernel` | `….self_attn.{q,k,v,o}_proj.weight` | `.T`; q per head: query, gate |
| `layers.L.mixer.{q,k}_norm.weight` | `….self_attn.{q,k}_norm.weight` | |
| `layers.L.mixer.in_proj_qkvz.kernel` | `….linear_attn.in_proj_qkvz.weight` | `checkpoint.unfuse_qkvz`, `.T` |
| `layers.L.mixer.in_proj_ba.kernel` | `….linear_attn.in_proj_ba.weight` | `checkpoint.unfuse_ba`, `.T` |
| `layers.L.mixer.conv_weight` | `….linear_attn.conv1d.weight` `[channel, 1, tap]` | `[:, 0].T` |
| `layers.L.mixer.A_log`, `.dt_bias` | `….linear_attn.A_log`, `.dt_bias` | float32 |
| `layers.L.mixer.norm.weight` | `….linear_attn.norm.weight` | one-centred |
| `layers.L.mixer.out_proj.kernel` | `….linear_attn.out_proj.weight` | `.T` |
| `layers.L.mlp.{gate,up,down}_proj.kernel` (dense) | `….mlp.{gate,up,down}_proj.weight` | `.T` |
| `layers.L.mlp.router.kernel` | `….mlp.gate.weight` | `.T` |
| `layers.L.mlp.{gate,up,down}_proj` (MoE) `[e, in, out]` | `….mlp.experts.E.{gate,up,down}_proj.weight` | `.T`, stack |
| `layers.L.mlp.shared_expert.{…}.kernel` | `….mlp.shared_expert.{…}.weight` | `.T` |
| `layers.L.mlp.shared_expert_gate.kernel` | `….mlp.shared_expert_gate.weight` | `.T` |

Qwen3.5 checkpoints keep `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a` apart, each in our
order: concatenate qkv with z, and b with a, along the outputs; no reordering.
"""  # noqa: E501

from typing import Literal, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax import lax
from jax import numpy as jnp
from jaxtyping import Array, Float, Float32, Int32

from models.hybrid_gdn.attention import AttendFn, Cache, GatedAttention
from models.hybrid_gdn.config import CHUNK, HybridConfig
from models.hybrid_gdn.delta_net import GatedDeltaNet, LayerState
from models.hybrid_gdn.linear import Linear, normal, precision
from models.hybrid_gdn.mlp import MLP
from models.hybrid_gdn.moe import MoE
from models.hybrid_gdn.norm import RMSNorm
from models.hybrid_gdn.rope import Rope, rope_tables


class Recurrent(NamedTuple):
    """Live recurrent state of all rows.

    Attributes:
      conv: inputs of each convolution just before the current position, oldest first, before
        the activation; `config.dtype`.
      delta: state matrices of the delta rule; float32.
    """

    conv: Float[Array, "*k gdn_layer row tap channel"]
    delta: Float32[Array, "*k gdn_layer row head dk dv"]


class Output(NamedTuple):
    """What a call of the model returns.

    Attributes:
      logits: at each row's last valid token, or at every token; float32. Finite but meaningless
        where a row has no valid token there.
      recurrent: the state after each row's count.
      cache: what the last `attend` returned.
      boundary_states: states at `boundaries`, leaves `[k, gdn_layer, row, …]`; None if none were
        asked for.
    """

    logits: Float32[Array, "row vocab"] | Float32[Array, "row token vocab"]
    recurrent: Recurrent
    cache: Cache
    boundary_states: Recurrent | None


def recurrent_leaves(
    config: HybridConfig,
) -> tuple[tuple[str, tuple[int, ...], np.dtype], ...]:
    """Name, shape (layer axis first, no row axis) and dtype of what one snapshot holds."""
    layers = config.num_gdn_layers
    conv = (layers, config.linear_conv_kernel_dim - 1, config.conv_channels)
    delta = (
        layers,
        config.linear_num_value_heads,
        config.linear_key_head_dim,
        config.linear_value_head_dim,
    )
    return (
        ("conv", conv, np.dtype(config.dtype)),
        ("delta", delta, np.dtype(np.float32)),
    )


def init_recurrent(config: HybridConfig, num_rows: int) -> Recurrent:
    """The state of `num_rows` empty sequences: zeros."""
    leaves = {
        name: jnp.zeros((shape[0], num_rows, *shape[1:]), dtype)
        for name, shape, dtype in recurrent_leaves(config)
    }
    return Recurrent(**leaves)


class Block(nnx.Module):
    """A mixer and an MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config: HybridConfig, layer: int, *, rngs: nnx.Rngs):
        is_attention = config.is_attention_layer(layer)
        self.input_norm = RMSNorm(config, config.hidden_size)
        self.mixer = (GatedAttention if is_attention else GatedDeltaNet)(config, rngs=rngs)
        self.post_norm = RMSNorm(config, config.hidden_size)
        if config.num_experts:
            self.mlp = MoE(config, rngs=rngs)
        else:
            self.mlp = MLP(config, config.intermediate_size, rngs=rngs)

    def add_mlp(self, x: Float[Array, "row token hidden"]) -> Float[Array, "row token hidden"]:
        """The second half of the block."""
        return x + self.mlp(self.post_norm(x))


class HybridGDN(nnx.Module):
    """The decoder. See the module's docstring for its weights and `__call__` for its use."""

    def __init__(self, config: HybridConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embed_tokens = nnx.Param(
            normal(rngs, (config.vocab_size, config.hidden_size), 1.0, config.dtype)
        )
        self.layers = nnx.List(
            [Block(config, layer, rngs=rngs) for layer in range(config.num_hidden_layers)]
        )
        self.norm = RMSNorm(config, config.hidden_size)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(
                config, config.hidden_size, config.vocab_size, rngs=rngs, gain=config.logit_scale
            )

    def __call__(
        self,
        tokens: Int32[Array, "row token"],
        positions: Int32[Array, "row"],
        counts: Int32[Array, "row"],
        recurrent: Recurrent,
        cache: Cache,
        attend: AttendFn,
        *,
        boundaries: Int32[Array, "k"] | None = None,
        logits_at: Literal["last", "all"] = "last",
    ) -> Output:
        """Advances every row by `counts[row]` tokens.

        One token takes the recurrent step; more take the delta rule in chunks of 64. A row whose
        count is 0 keeps its recurrent state bit for bit, and what stands in `tokens` past a row's
        count changes nothing at all.

        Args:
          tokens: token ids; ids outside the vocabulary are clamped to it.
          positions: position of each row's first token, in tokens; used by RoPE only.
          counts: valid tokens per row, in [0, token].
          recurrent: the state before the first token.
          cache: the KV cache, any pytree; only `attend` looks into it.
          attend: how to append to and read from the cache.
          boundaries: token offsets in this call whose recurrent state to hand out: multiples of
            64 in (0, token]. Any other value (-1, say) gives zeros. A boundary past a row's count
            gives that row's state after its count. Traced: other values do not recompile.
          logits_at: "last" gives the logits at each row's last valid token; "all" at all tokens.

        Raises:
          ValueError: while tracing, if `token` is neither 1 nor a multiple of 64, if `boundaries`
            come with a single token, or if the shapes of the arguments disagree.
        """
        self._check(tokens, positions, counts, recurrent, boundaries, logits_at)
        num_tokens = tokens.shape[1]
        valid = jnp.arange(num_tokens) < counts[:, None]
        ids = jnp.clip(jnp.where(valid, tokens, 0), 0, self.config.vocab_size - 1)
        x = self.embed_tokens[...][ids]
        rope = rope_tables(self.config, positions, num_tokens)
        x, recurrent, cache, kept = self._blocks(
            x, rope, valid, counts, recurrent, cache, attend, boundaries
        )
        return Output(
            logits=self._logits(x, counts, logits_at),
            recurrent=recurrent,
            cache=cache,
            boundary_states=kept,
        )

    def _blocks(self, x, rope: Rope, valid, counts, recurrent, cache, attend, boundaries):
        """All blocks in turn; (x, recurrent, cache, boundary states or None)."""
        kept: list[LayerState] = []
        for layer, block in enumerate(self.layers):
            mixed = block.input_norm(x)
            if self.config.is_attention_layer(layer):
                cache, mixed = self._attend(block, layer, mixed, rope, valid, cache, attend)
            else:
                mixed, recurrent, at_boundaries = self._recur(
                    block, layer, mixed, recurrent, counts, boundaries
                )
                if at_boundaries is not None:
                    kept.append(at_boundaries)
            x = block.add_mlp(x + mixed)
        if not kept:
            return x, recurrent, cache, None
        leaves = zip(*kept, strict=True)
        return x, recurrent, cache, Recurrent(*(jnp.stack(leaf, axis=1) for leaf in leaves))

    def _attend(self, block, layer, x, rope: Rope, valid, cache, attend):
        def guarded(cache, layer, q, k, v):
            # A fully masked softmax may give NaN at padding; keep it out of the residual stream.
            cache, out = attend(cache, layer, q, k, v)
            return cache, jnp.where(valid[..., None, None], out, 0)

        number = (layer + 1) // self.config.full_attention_interval - 1
        return block.mixer(x, rope, cache, number, guarded)

    def _recur(self, block, layer, x, recurrent: Recurrent, counts, boundaries):
        number = layer - (layer + 1) // self.config.full_attention_interval
        # Without the barrier XLA fuses this read, shifted by a token, into the write below and
        # then has to copy the conv states of all layers first.
        conv = lax.optimization_barrier(recurrent.conv[number])
        state = LayerState(conv, recurrent.delta[number])
        mixed, state, kept = block.mixer(x, state, counts, boundaries)
        recurrent = Recurrent(
            conv=recurrent.conv.at[number].set(state.conv),
            delta=recurrent.delta.at[number].set(state.delta),
        )
        return mixed, recurrent, kept

    def _logits(self, x: Array, counts: Array, logits_at: str) -> Array:
        if logits_at == "last":
            last = jnp.clip(counts - 1, 0, x.shape[1] - 1)
            x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
        x = self.norm(x)
        if not self.config.tie_word_embeddings:
            return self.lm_head(x, dtype=jnp.float32)
        return jnp.matmul(
            x,
            self.embed_tokens[...].T,
            precision=precision(self.config.dtype),
            preferred_element_type=jnp.float32,
        )

    def _check(self, tokens, positions, counts, recurrent, boundaries, logits_at):
        num_rows, num_tokens = tokens.shape
        if num_tokens != 1 and (num_tokens % CHUNK or not num_tokens):
            raise ValueError(f"token={num_tokens} is neither 1 nor a multiple of {CHUNK}: pad it.")
        if boundaries is not None and num_tokens == 1:
            raise ValueError("boundaries need a prefill: a single token reaches no multiple of 64.")
        if positions.shape != (num_rows,) or counts.shape != (num_rows,):
            raise ValueError(
                f"positions {positions.shape} and counts {counts.shape} must be ({num_rows},)."
            )
        if logits_at not in ("last", "all"):
            raise ValueError(f"logits_at={logits_at!r} is neither 'last' nor 'all'.")
        expected = jax.eval_shape(lambda: init_recurrent(self.config, num_rows))
        for name, got, want in zip(Recurrent._fields, recurrent, expected, strict=True):
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                raise ValueError(
                    f"recurrent.{name} is {got.dtype}{got.shape}, not {want.dtype}{want.shape}."
                )


class Apply:
    """The model as a pure function of its weights: `apply(params, tokens, …) -> Output`.

    Hashable and comparable by structure, so it may be a static argument of a `jit`: two models of
    one config share a compile.
    """

    def __init__(self, graphdef: nnx.GraphDef):
        self._graphdef = graphdef
        self._hash = hash(graphdef)  # walks the whole model; `jit` asks at every call

    def __call__(self, params: nnx.State, *args, **kwargs) -> Output:
        """Calls the model rebuilt from `params`; arguments as for `HybridGDN.__call__`."""
        return nnx.merge(self._graphdef, params)(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Apply) and self._graphdef == other._graphdef

    def __hash__(self) -> int:
        return self._hash


def functional(model: HybridGDN) -> tuple[Apply, nnx.State]:
    """Splits a model into a pure function and its weights (a pytree)."""
    graphdef, params = nnx.split(model, nnx.Param)
    return Apply(graphdef), params
