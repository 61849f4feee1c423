"""Encode and decode are fit for a kernel's body: they hold only what a Triton lowering knows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from pallas_kernels import codecs

ROWS = jax.ShapeDtypeStruct((16, 128), jnp.bfloat16)


def round_trip_kernel(codec: codecs.Codec, interpret: bool):
    def body(x_ref, codes_ref, scales_ref, values_ref):
        enc = codec.encode(x_ref[...])
        codes_ref[...], scales_ref[...] = enc
        values_ref[...] = codec.decode(enc)

    enc = jax.eval_shape(codec.encode, ROWS)
    values = jax.ShapeDtypeStruct(ROWS.shape, jnp.float32)
    return pl.pallas_call(
        body,
        out_shape=(enc.codes, enc.scales, values),
        interpret=interpret,
        compiler_params=plt.CompilerParams(),
    )


def abstract_h200():
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", codecs.CODECS[1:])
def test_bodies_lower_for_a_gpu(name):
    kernel = round_trip_kernel(codecs.get_codec(name), interpret=False)
    with abstract_h200():
        lowered = jax.jit(kernel).trace(ROWS).lower(lowering_platforms=("cuda",))
    assert "triton" in lowered.as_text()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["int8_g64", "nvfp4_g16+search"])
def test_bodies_give_the_same_bytes_inside_a_kernel(name):
    codec = codecs.get_codec(name)
    x = jnp.asarray(np.random.default_rng(4).standard_normal(ROWS.shape), jnp.bfloat16)
    codes, scales, values = jax.jit(round_trip_kernel(codec, interpret=True))(x)
    want = jax.jit(codec.encode)(x)
    np.testing.assert_array_equal(codes, want.codes)
    np.testing.assert_array_equal(scales, want.scales)
    np.testing.assert_array_equal(values, jax.jit(codec.decode)(want))
