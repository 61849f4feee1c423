"""Quotients by a scale, exact where a rounding turns on them, and rounding by the adder.

A GPU divides inexactly. But what has at most 18 significant bits, divided by a scale of at most 11,
is either exactly at a cut between two codes or 2**-19 of itself away from it. So a product with a
reciprocal in two parts decides as the true quotient does: its error is 2**-27 at most, and where
the true quotient is a cut, which is a float32 of few bits, rounding gives just that.
"""

from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from pallas_kernels import instructions
from pallas_kernels.codecs import bits

# Added to a number from 0 on, it rounds it to an integer, ties to even, which then is in the low
# bits of the sum.
TO_INTEGER: Final = 2.0**23
BASE: Final = 0x4B000000  # the bits of 2**23
_SIGNED: Final = 1.5 * 2.0**23

Split = tuple[Float32[Array, "..."], Float32[Array, "..."]]


def split_reciprocal(scale: Float32[Array, "..."]) -> Split:
    """(high, low): high has 6 significant bits, and high + low is 1 / scale to 2**-27 of it.

    `scale` is positive and has at most 18 significant bits.
    """
    inverse = instructions.approximate_reciprocal(scale)
    high = bits.bits_float(bits.float_bits(inverse) & -(1 << 18))
    return high, (1.0 - scale * high) * inverse  # the difference is exact


def quotient(
    high: Float32[Array, "..."], low: Float32[Array, "..."], x: Float32[Array, "..."]
) -> Float32[Array, "..."]:
    """x / scale for an x of at most 18 significant bits; the product with `high` is exact."""
    return instructions.multiply_add(x, high, x * low)


def e2m1_code(q: Float32[Array, "..."]) -> Int32[Array, "..."]:
    """`BASE` plus the E2M1 code of q >= 0: nearest, ties to even, at most 7.

    It is the least of three roundings: in steps of 1/2 from code 0, of 1 from 2, of 2 from 4.
    """

    def rounded(steps: float, first: float):
        return instructions.multiply_add(
            q, jnp.full_like(q, steps), jnp.full_like(q, TO_INTEGER + first)
        )

    least = jnp.minimum(jnp.minimum(rounded(2.0, 0.0), q + (TO_INTEGER + 2.0)), rounded(0.5, 4.0))
    return bits.float_bits(jnp.minimum(least, TO_INTEGER + 7.0))


def int4_code(q: Float32[Array, "..."]) -> Int32[Array, "..."]:
    """`BASE` plus q >= 0 rounded to an integer, ties to even, at most 7."""
    return bits.float_bits(jnp.minimum(q + TO_INTEGER, TO_INTEGER + 7.0))


def signed_byte(q: Float32[Array, "..."]) -> Int32[Array, "..."]:
    """|q| <= 127 rounded to an integer, ties to even, as a byte in two's complement."""
    return bits.float_bits(q + _SIGNED) & 0xFF


def e4m3_of_sixth(amax: Float32[Array, "..."]) -> Int32[Array, "..."]:
    """The E4M3 code of the scale that `e2m1.BY_SIX` gives amax <= 6 * 448, of at most 18 bits.

    From 2**-6 on it is amax/6, rounded. Below, in units of 2**-9, it is amax/6 rounded, but 1 up to
    an amax of 7 and at least 2 from there on.
    """
    q = amax * _SIXTH_HIGH + amax * _SIXTH_LOW
    units = jnp.maximum(_in_tiny_steps(q), jnp.where(amax > 7 * bits.E4M3_TINY, 2, 1))
    return jnp.where(units < 8, units, jnp.maximum(_by_mantissa(q), 8))


def e4m3_code(x: Float32[Array, "..."]) -> Int32[Array, "..."]:
    """The E4M3 code nearest to any x, ties to even; 0 <= x <= 448. As `bits.round_to_e4m3`."""
    return jnp.where(x < 2.0**-6, _in_tiny_steps(x), _by_mantissa(x))


def _in_tiny_steps(x: Float32[Array, "..."]) -> Int32[Array, "..."]:
    return bits.float_bits(x * 2.0**9 + TO_INTEGER) - BASE


def _by_mantissa(x: Float32[Array, "..."]) -> Int32[Array, "..."]:
    pattern = bits.float_bits(x)
    return ((pattern + 0x7FFFF + ((pattern >> 20) & 1)) >> 20) - (120 << 3)


def e4m3_value(code: Int32[Array, "..."]) -> Float32[Array, "..."]:
    """The value of an E4M3 code in [0, 126]."""
    tiny = code.astype(jnp.float32) * bits.E4M3_TINY
    return jnp.where(code < 8, tiny, bits.bits_float((code << 20) + (120 << 23)))


_SIXTH_HIGH: Final = 42 / 256  # 6 significant bits of 1/6
_SIXTH_LOW: Final = 1 / 6 - 42 / 256
