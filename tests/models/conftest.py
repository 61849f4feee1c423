"""The models under test: small, with at least two layers of each kind."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.hybrid_gdn import HybridGDN, functional, tiny
from tests.models.dense_cache import dense_attend

SMALL = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "full_attention_interval": 2,
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
NOWHERE = np.full(5, -1, np.int32)
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 32,
    "tie_word_embeddings": True,
}


@partial(jax.jit, static_argnames="apply", donate_argnames=("recurrent", "cache"))
def prefill(apply, params, tokens, positions, counts, recurrent, cache, boundaries=NOWHERE):
    """One donated call over a dense cache, with logits at all tokens.

    Tests share shapes (3 rows, 128 tokens, 5 boundaries), so that they share one compile.
    """
    attend = dense_attend(positions, counts)
    return apply(
        params, tokens, positions, counts, recurrent, cache, attend,
        boundaries=boundaries, logits_at="all",
    )  # fmt: skip


@partial(jax.jit, static_argnames="apply", donate_argnames=("recurrent", "cache"))
def decode(apply, params, tokens, positions, counts, recurrent, cache):
    """One donated single-token call over a dense cache."""
    attend = dense_attend(positions, counts)
    return apply(params, tokens, positions, counts, recurrent, cache, attend)


def build(**overrides):
    """(config, apply, params) of a small model with norms off their defaults.

    Filled by NumPy: a compile for each shape costs more than all the rest of a test.
    """
    config = tiny(**{**SMALL, **overrides})
    apply, params = functional(nnx.eval_shape(lambda: HybridGDN(config, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(0)

    def fill(path, x):
        name = jax.tree_util.keystr(path)
        if x.ndim == 1:  # norm weights start at 0 or 1, which would hide one missing or doubled
            start = {"A_log": 1.0, "dt_bias": -3.0}
            value = next((v for k, v in start.items() if k in name), 0.5)
            return jnp.asarray(value + 0.3 * rng.normal(size=x.shape), x.dtype)
        gain = 1 if "embed_tokens" in name else x.shape[-2] ** -0.5
        gain *= config.logit_scale if "lm_head" in name else 1
        return jnp.asarray(gain * rng.normal(size=x.shape), x.dtype)

    return config, apply, jax.tree_util.tree_map_with_path(fill, params)


@pytest.fixture(scope="session")
def dense_model():
    return build()


@pytest.fixture(scope="session")
def expert_model():
    return build(**EXPERTS)
