"""Single layers against float64 NumPy: RoPE, norms, mixture of experts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.hybrid_gdn import tiny
from models.hybrid_gdn.moe import MoE
from models.hybrid_gdn.norm import GatedRMSNorm, RMSNorm
from models.hybrid_gdn.rope import apply_rope, rope_tables
from tests.models import oracles
from tests.models.conftest import EXPERTS


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("factor", [0.25, 0.5, 1.0])
def test_rope_turns_the_leading_channels_only(factor):
    config = tiny(partial_rotary_factor=factor, rope_theta=1e7)
    x = normal(2, 3, 4, 64)
    positions = np.array([0, 1000], np.int32)
    got = apply_rope(x, rope_tables(config, positions, 3))
    dim = int(64 * factor)
    for row in range(2):
        want = oracles.rope(x[row].astype(float), positions[row] + np.arange(3), dim, 1e7)
        np.testing.assert_allclose(got[row], want, atol=5e-4)
    np.testing.assert_array_equal(got[..., dim:], x[..., dim:])
    np.testing.assert_array_equal(got[0, 0], x[0, 0])  # position 0 is not turned


def test_norms_use_their_weights_as_the_checkpoints_do():
    config, x, z = tiny(), normal(3, 8), normal(3, 8, seed=1)
    norm, gated = RMSNorm(config, 8), GatedRMSNorm(config, 8)
    weight = normal(8, seed=2)
    norm.weight[...] = gated.weight[...] = jnp.asarray(weight)
    want = oracles.rms(x.astype(float), 1e-6)
    np.testing.assert_allclose(norm(x), want * (1 + weight), rtol=1e-5)
    np.testing.assert_allclose(gated(x, z), want * weight * oracles.silu(z), rtol=1e-5)
    assert norm(jnp.asarray(x, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_experts_equal_a_loop_over_tokens(norm_topk_prob):
    config = tiny(hidden_size=20, **EXPERTS, norm_topk_prob=norm_topk_prob)
    moe = MoE(config, rngs=nnx.Rngs(0))
    x = normal(2, 11, 20)
    x[1, :6] = x[0, 0]  # many tokens for one expert
    weights = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(moe, nnx.Param)))
    want = oracles.moe(weights, config, x.reshape(-1, 20).astype(float))
    np.testing.assert_allclose(jax.jit(lambda x: moe(x))(x).reshape(-1, 20), want, atol=1e-4)
