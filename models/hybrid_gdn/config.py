"""The model's geometry: one frozen, hashable record, and the presets people ask for by name.

Field names follow the published checkpoints' `config.json`, so that a checkpoint can be read
without a dictionary of synonyms.
"""

import dataclasses
from typing import Any

import numpy as np
from jax import numpy as jnp

CHUNK = 64  # tokens per delta-rule chunk; prefill lengths and snapshot boundaries are multiples


@dataclasses.dataclass(frozen=True, kw_only=True)
class HybridConfig:
    """Geometry and numerics of one hybrid (attention + Gated DeltaNet) decoder.

    Every `full_attention_interval`-th layer (numbers 3, 7, … for interval 4, counted from zero)
    is gated full attention; the rest are Gated DeltaNet. `num_experts == 0` makes every MLP
    dense; otherwise every MLP is a mixture of experts with one shared expert.

    Attributes:
      vocab_size: rows of the embedding and of the output head.
      hidden_size: width of the residual stream.
      intermediate_size: width of the dense SwiGLU MLP; unused when there are experts.
      num_hidden_layers: blocks, both kinds together.
      full_attention_interval: distance between attention layers; 1 makes all layers attention.
      num_attention_heads: query heads of an attention layer.
      num_key_value_heads: K/V heads of an attention layer; divides the query heads.
      head_dim: channels per attention head.
      partial_rotary_factor: share of `head_dim` that is rotated; the rest carries no position.
      rope_theta: base of the rotary frequencies.
      linear_num_key_heads: query and key heads of a Gated DeltaNet layer.
      linear_num_value_heads: value (and state) heads; a multiple of the key heads.
      linear_key_head_dim: rows of one head's state matrix (dk).
      linear_value_head_dim: columns of one head's state matrix (dv).
      linear_conv_kernel_dim: taps of the causal depthwise convolution.
      num_experts: routed experts per MLP; 0 for a dense model.
      num_experts_per_tok: experts a token is sent to.
      moe_intermediate_size: width of one routed expert.
      shared_expert_intermediate_size: width of the expert every token passes.
      norm_topk_prob: whether the chosen experts' weights are scaled to sum to one.
      tie_word_embeddings: whether the output head is the transposed embedding.
      rms_norm_eps: epsilon of every RMS norm.
      dtype: dtype of the weights, the activations, K/V and the conv state. The delta state,
        decay gates, softmaxes and logits are float32 whatever it is.
      logit_scale: standard deviation of the logits of a randomly initialised model.

    Raises:
      ValueError: on contradictory values, naming the knob and the numbers.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    full_attention_interval: int = 4
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    partial_rotary_factor: float = 0.25
    rope_theta: float = 1e7
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int = 4
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    norm_topk_prob: bool = True
    tie_word_embeddings: bool = False
    rms_norm_eps: float = 1e-6
    dtype: Any = jnp.bfloat16
    logit_scale: float = 4.0

    def __post_init__(self):
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        self._check_positive()
        self._check_heads()
        self._check_experts()

    def _check_positive(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.default == 0 else 1  # what a dense model lacks is 0 by default
            if field.type is int and value < least:
                raise ValueError(f"{field.name}={value} must be at least {least}.")
        if not jnp.issubdtype(self.dtype, jnp.floating):
            raise ValueError(f"dtype={self.dtype} is not a floating-point dtype.")
        if not self.rope_theta > 0 or not self.rms_norm_eps > 0 or not self.logit_scale > 0:
            raise ValueError(
                f"rope_theta={self.rope_theta}, rms_norm_eps={self.rms_norm_eps} and "
                f"logit_scale={self.logit_scale} must be positive."
            )
        if self.linear_conv_kernel_dim < 2:
            raise ValueError(f"linear_conv_kernel_dim={self.linear_conv_kernel_dim} is below 2.")
        if self.num_gdn_layers < 1:
            raise ValueError(
                f"full_attention_interval={self.full_attention_interval} leaves no Gated DeltaNet "
                f"layer among num_hidden_layers={self.num_hidden_layers}."
            )

    def _check_heads(self):
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}."
            )
        if self.linear_num_value_heads % self.linear_num_key_heads:
            raise ValueError(
                f"linear_num_value_heads={self.linear_num_value_heads} is not a multiple of "
                f"linear_num_key_heads={self.linear_num_key_heads}."
            )
        if not 0 < self.partial_rotary_factor <= 1 or self.rotary_dim % 2 or self.rotary_dim < 2:
            raise ValueError(
                f"partial_rotary_factor={self.partial_rotary_factor} of head_dim={self.head_dim} "
                f"rotates {self.rotary_dim} channels; an even number in [2, head_dim] is needed."
            )

    def _check_experts(self):
        if not self.num_experts:
            return
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok={self.num_experts_per_tok} is not in "
                f"[1, num_experts={self.num_experts}]."
            )
        if not self.moe_intermediate_size or not self.shared_expert_intermediate_size:
            raise ValueError(
                f"moe_intermediate_size={self.moe_intermediate_size} and "
                f"shared_expert_intermediate_size={self.shared_expert_intermediate_size} must be "
                f"at least 1 when num_experts={self.num_experts}."
            )

    def is_attention_layer(self, layer: int) -> bool:
        """Whether block `layer` (0-based, both kinds counted) is full attention."""
        return (layer + 1) % self.full_attention_interval == 0

    @property
    def num_attention_layers(self) -> int:
        """Blocks with a KV cache."""
        return self.num_hidden_layers // self.full_attention_interval

    @property
    def num_gdn_layers(self) -> int:
        """Blocks with a recurrent state."""
        return self.num_hidden_layers - self.num_attention_layers

    @property
    def rotary_dim(self) -> int:
        """Leading channels of each attention head that RoPE rotates."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def key_dim(self) -> int:
        """Channels of all Gated DeltaNet keys (and of all queries)."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """Channels of all Gated DeltaNet values (and of the output gate z)."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: queries, keys and values side by side."""
        return 2 * self.key_dim + self.value_dim


def _preset(defaults: dict[str, Any], overrides: dict[str, Any]) -> HybridConfig:
    return HybridConfig(**{**defaults, **overrides})


def tiny(**overrides: Any) -> HybridConfig:
    """A byte-level toy (1.5M parameters, 8 layers) that runs in milliseconds on two CPU cores.

    float32, so that greedy choices do not hang on the order of additions.
    """
    defaults = {
        "vocab_size": 256,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rope_theta": 1e4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "dtype": jnp.float32,
    }
    return _preset(defaults, overrides)


def small(**overrides: Any) -> HybridConfig:
    """A byte-level model of about 0.27B parameters with full-sized heads, for one GPU."""
    defaults = {
        "vocab_size": 256,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 16,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }
    return _preset(defaults, overrides)


def qwen3_next_80b_a3b(**overrides: Any) -> HybridConfig:
    """Qwen3-Next-80B-A3B: the defaults of `Qwen3NextConfig` in `transformers`.

    `rope_theta` is 1e7 as in the checkpoint's own config; the class default there is 1e4.
    """
    defaults = {
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5120,  # no dense MLP uses it
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }
    return _preset(defaults, overrides)


def qwen3_5_27b(**overrides: Any) -> HybridConfig:
    """The text decoder of Qwen3.5-27B (dense).

    For text alone its sectioned rotary positions are all equal, which is plain RoPE.
    """
    defaults = {
        "vocab_size": 248_320,
        "hidden_size": 5120,
        "intermediate_size": 17_408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }
    return _preset(defaults, overrides)
