"""Values of a tile that is stored as floats: rows of a pool in bfloat16, and what a model gives."""

from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Int32

from pallas_kernels.codecs import bits
from pallas_kernels.tiles.lanes import Lanes, Tile, each, split_pairs
from pallas_kernels.tiles.scales import f16_to_float

Words = tuple[Int32[Array, "row words"], ...]

_LARGEST: Final = 255 / 128 * 2.0**127  # of bfloat16, and so of 8 significant bits


def decode_floats(dtype: jnp.dtype, halves: Words) -> Tile:
    """The values of float rows in float32.

    Args:
      dtype: bfloat16, float16 or float32.
      halves: words of channels [0, dim/2) and of the rest.

    Raises:
      ValueError: another dtype.
    """
    lanes = {"bfloat16": bf16_lanes, "float16": f16_lanes, "float32": f32_lanes}
    if dtype.name not in lanes:
        raise ValueError(f"rows are float32, bfloat16 or float16, not {dtype}.")
    low, high = map(lanes[dtype.name], halves)
    return Tile(low, high)


def bf16_lanes(words: Int32[Array, "row words"]) -> Lanes:
    """Words of two bfloat16 each."""

    def low(w):
        return bits.bits_float(w << 16)

    def high(w):
        return bits.bits_float(w & -65536)

    first, second = split_pairs(words)
    return low(first), high(first), low(second), high(second)


def f16_lanes(words: Int32[Array, "row words"]) -> Lanes:
    """Words of two float16 each."""

    def low(w):
        return f16_to_float(w & 0xFFFF)

    def high(w):
        return f16_to_float((w >> 16) & 0xFFFF)

    first, second = split_pairs(words)
    return low(first), high(first), low(second), high(second)


def f32_lanes(words: Int32[Array, "row words"]) -> Lanes:
    """Words of one float32 each."""
    even, odd = (split_pairs(half) for half in split_pairs(bits.bits_float(words)))
    return even[0], odd[0], even[1], odd[1]


def made_finite(tile: Tile) -> Tile:
    """A tile whose NaNs are zeros and whose infinities are past the range of every codec.

    So `encode` stores what a codec's own stores of any row: see `bits.split_sign`.
    """

    def finite(x):
        is_nan = (bits.float_bits(x) & bits.MAGNITUDE_MASK) > bits.INF_BITS
        # NaNs first: what the minimum of one and a number is depends on the backend.
        return jnp.maximum(jnp.minimum(jnp.where(is_nan, 0.0, x), _LARGEST), -_LARGEST)

    return each(finite, tile)
