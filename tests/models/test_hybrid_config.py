"""Geometry: published shapes, snapshot sizes, what is refused, and checkpoint layouts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import hybrid_gdn
from models.hybrid_gdn import HybridGDN, init_recurrent, recurrent_leaves
from models.hybrid_gdn.checkpoint import unfuse_ba, unfuse_qkvz

MIB = 2**20


def num_parameters(config):
    model = nnx.eval_shape(lambda: HybridGDN(config, rngs=nnx.Rngs(0)))
    return sum(np.prod(x.shape) for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


# Parameters without the vision tower and the extra multi-token-prediction layer.
@pytest.mark.parametrize(
    ("preset", "attention", "gdn", "kv", "delta_mib", "conv_bytes", "billions"),
    [
        (hybrid_gdn.qwen3_next_80b_a3b, 12, 36, (2, 256), 72, 36 * 3 * 8192 * 2, 79.67),
        (hybrid_gdn.qwen3_5_27b, 16, 48, (4, 256), 144, 48 * 3 * 10_240 * 2, 26.90),
        (hybrid_gdn.small, 4, 12, (2, 256), 12, 12 * 3 * 4096 * 2, 0.27),
        (hybrid_gdn.tiny, 2, 6, (2, 64), 3 / 32, 6 * 3 * 256 * 4, 0.0015),
    ],
)
def test_presets_have_the_published_shapes(
    preset, attention, gdn, kv, delta_mib, conv_bytes, billions
):
    config = preset()
    assert (config.num_attention_layers, config.num_gdn_layers) == (attention, gdn)
    assert (config.num_key_value_heads, config.head_dim) == kv
    sizes = {name: np.prod(shape) * d.itemsize for name, shape, d in recurrent_leaves(config)}
    assert sizes == {"conv": conv_bytes, "delta": delta_mib * MIB}
    assert num_parameters(config) / 1e9 == pytest.approx(billions, rel=0.02)


def test_live_state_has_the_snapshot_leaves_with_a_row_axis():
    config = hybrid_gdn.qwen3_5_27b()
    live = jax.eval_shape(lambda: init_recurrent(config, 7))._asdict()
    for name, shape, dtype in recurrent_leaves(config):
        assert live[name].shape == (shape[0], 7, *shape[1:])
        assert live[name].dtype == dtype


def test_attention_sits_at_every_fourth_layer():
    config = hybrid_gdn.tiny()
    kinds = [config.is_attention_layer(layer) for layer in range(8)]
    assert kinds == [False, False, False, True] * 2
    odd = hybrid_gdn.tiny(num_hidden_layers=10)
    assert (odd.num_attention_layers, odd.num_gdn_layers) == (2, 8)


def test_a_config_is_hashable_and_frozen():
    assert hash(hybrid_gdn.tiny()) == hash(hybrid_gdn.tiny(dtype="float32"))
    assert hybrid_gdn.tiny() != hybrid_gdn.tiny(rope_theta=5.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        hybrid_gdn.tiny().head_dim = 3  # pyright: ignore


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"hidden_size": 0}, "hidden_size=0 must be at least 1"),
        ({"num_experts": -1}, "num_experts=-1 must be at least 0"),
        ({"num_attention_heads": 5}, "num_attention_heads=5 is not a multiple .*=2"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads=3 is not a multiple .*=2"),
        ({"partial_rotary_factor": 1.5}, r"partial_rotary_factor=1\.5 of head_dim=64 rotates 96"),
        ({"partial_rotary_factor": 0.01}, "rotates 0 channels"),
        ({"head_dim": 20}, "head_dim=20 rotates 5 channels"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim=1 is below 2"),
        ({"full_attention_interval": 1}, "full_attention_interval=1 leaves no Gated DeltaNet"),
        ({"num_experts": 4}, r"num_experts_per_tok=0 is not in \[1, num_experts=4\]"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok=5"),
        ({"num_experts": 4, "num_experts_per_tok": 2}, "moe_intermediate_size=0"),
        ({"dtype": jnp.int32}, "dtype=int32"),
        ({"rope_theta": 0.0}, r"rope_theta=0\.0"),
    ],
)
def test_contradictions_are_refused(knobs, message):
    with pytest.raises(ValueError, match=message):
        hybrid_gdn.tiny(**knobs)


def test_fused_projections_are_put_into_our_order():
    config = hybrid_gdn.tiny(linear_key_head_dim=3, linear_value_head_dim=5)  # 2 key, 4 value heads
    want_qkvz, want_ba, fused_qkvz, fused_ba = {}, {}, [], []
    for key_head in range(2):
        values = [2 * key_head, 2 * key_head + 1]
        fused_qkvz += [("q", key_head, c) for c in range(3)]
        fused_qkvz += [("k", key_head, c) for c in range(3)]
        fused_qkvz += [(kind, h, c) for kind in "vz" for h in values for c in range(5)]
        fused_ba += [(kind, h, 0) for kind in "ba" for h in values]
    want_qkvz = [("q", h, c) for h in range(2) for c in range(3)]
    want_qkvz += [("k", h, c) for h in range(2) for c in range(3)]
    want_qkvz += [(kind, h, c) for kind in "vz" for h in range(4) for c in range(5)]
    want_ba = [(kind, h, 0) for kind in "ba" for h in range(4)]
    for unfuse, fused, want in [
        (unfuse_qkvz, fused_qkvz, want_qkvz),
        (unfuse_ba, fused_ba, want_ba),
    ]:
        weight = np.stack([np.arange(len(fused)), np.arange(len(fused))], axis=1)
        got = unfuse(weight, config)
        assert got.shape == weight.shape
        assert [fused[i] for i in got[:, 0]] == want
        with pytest.raises(ValueError, match="2 key heads"):
            unfuse(weight[1:], config)
