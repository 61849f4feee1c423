"""Codes at the ends of a format."""

import jax.numpy as jnp
import numpy as np

from pallas_kernels.codecs import bits


def test_e4m3_saturates_at_its_largest_value():
    x = jnp.array([447, 448, 464, 465, 480, 512, 3e38], jnp.float32)
    assert np.asarray(bits.round_to_e4m3(x)).tolist() == [0x7E] * 7
    assert float(bits.e4m3_to_float(jnp.int32(0x7E))) == 448
