"""bfloat16 to 4-bit codes, two values per instruction.

A scale is an E4M3 value of four significant bits, and a cut has three in E2M1 and four in
`int4_g16`, so their product has at most eight: between it and the next bfloat16 there is 2**-8 of
it. The quotient of a bfloat16 by a scale, rounded to bfloat16, is therefore past the cut, at it or
below it as the true quotient is: the reciprocal in two parts errs by 2**-16, too little to reach
the cut or to leave it.
"""

from functools import reduce
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32

from pallas_kernels.codecs import bits
from pallas_kernels.codecs.e2m1 import E2m1
from pallas_kernels.codecs.four_bit import FourBit
from pallas_kernels.instructions import (
    approximate_reciprocal,
    bf16_pair_multiply,
    bf16_pair_multiply_add,
    max_pair,
    min_pair,
    pick_bytes,
)
from pallas_kernels.packed.pieces import (
    Packed,
    Piece,
    Pieces,
    alternate,
    follow,
    in_threads,
    of_words,
    shared,
)
from pallas_kernels.tiles import four_bit, quotients
from pallas_kernels.tiles.lanes import Grouped, all_finite

_MAGNITUDES: Final = 0x7FFF7FFF
_LOW_BYTES: Final = 0x6420  # of each pair, the low bytes
_HIGH_BYTES: Final = 0x7531


# Roundings to a multiple of 1 of which the least is the code: what a quotient is multiplied by, and
# the code that then is added. `quotients.e2m1_code` says why.
_ROUNDINGS_E2M1: Final = ((2.0, 0.0), (1.0, 2.0), (0.5, 4.0))
_ROUNDINGS_INT4: Final = ((1.0, 0.0),)


def to_four_bit(codec: FourBit, dim: int, parts: tuple[Pieces, ...], no_scales: None) -> Packed:
    """Stores rows of bfloat16 as `FourBit.encode` does, without `search`."""
    roundings = _ROUNDINGS_E2M1 if isinstance(codec, E2m1) else _ROUNDINGS_INT4
    magnitudes = [[words & _MAGNITUDES for words in part] for part in parts]
    largest = shared(jnp.maximum, [_largest(part) for part in magnitudes], codec.group, dim)
    amax = Grouped(*(bits.bits_float(x << 16) for x in largest))
    scales, kept = four_bit.short_scales(codec, amax)
    codes = [
        _codes(part, roundings, *_reciprocal(quotients.e4m3_value(scale)))
        for part, scale in zip(magnitudes, scales, strict=True)
    ]
    words = [
        follow(*(_join(*quarter) for quarter in _quarters(codes, parts, i)))
        for i in range(0, len(parts[0]), 2)
    ]
    return Packed((tuple(words),), kept, all_finite(amax))


def _largest(magnitudes: list[Piece]) -> Int32[Array, "row group"]:
    pairs = in_threads(max_pair, magnitudes)
    return jnp.max(jnp.maximum(pairs & 0xFFFF, lax.shift_right_logical(pairs, 16)), axis=2)


def _reciprocal(scale: Array) -> tuple[Array, Array]:
    """(high, low), each in both values of a pair, of which the sum is 1 / scale to 2**-16 of it."""
    inverse = approximate_reciprocal(scale)
    high = bits.float_bits(inverse) & -65536
    rest = (1.0 - scale * bits.bits_float(high)) * inverse  # the difference is exact
    return _twice(high), _twice(bits.float_bits(rest))


def _twice(pattern: Int32[Array, "..."]) -> Int32[Array, "..."]:
    return pick_bytes(pattern, pattern, 0x3232)


def _codes(magnitudes: list[Piece], roundings: Any, high: Array, low: Array) -> list[Piece]:
    """Pairs of 0x4300 plus the code of each value: bfloat16 has steps of 1 from 128 on."""
    like = magnitudes[0]
    high, low = of_words(high, like), of_words(low, like)

    def both(value: float) -> Piece:
        pattern = int(np.float32(value).view(np.uint32)) >> 16
        return jnp.full_like(like, pattern * 0x10001)

    def code(x: Piece) -> Piece:
        q = bf16_pair_multiply_add(x, high, bf16_pair_multiply(x, low))
        rounded = (
            bf16_pair_multiply_add(q, both(factor), both(128.0 + first))
            for factor, first in roundings
        )
        return reduce(min_pair, rounded, both(135.0))

    return [code(x) for x in magnitudes]


def _quarters(codes: list, parts: tuple[Pieces, ...], first: int):
    """For pieces `first` and the next: pairs of codes and of values, as even and odd words."""
    for i in (first, first + 1):
        yield (
            *alternate(codes[0][i]), *alternate(codes[1][i]),
            *alternate(parts[0][i]), *alternate(parts[1][i]),
        )  # fmt: skip


def _join(low0, low1, high0, high1, x0, x1, y0, y1) -> Int32[Array, "row group 2"]:
    """Words of nibbles, each of two words of the low half and of two of the high one; no -0."""
    magnitudes = pick_bytes(low0, low1, _LOW_BYTES) + pick_bytes(high0, high1, _LOW_BYTES) * 16
    low = lax.shift_right_logical(pick_bytes(x0, x1, _HIGH_BYTES), 4)
    signs = (pick_bytes(y0, y1, _HIGH_BYTES) & bits.BYTE_TOPS) | (low & ~bits.BYTE_TOPS)
    return magnitudes | (signs & (magnitudes + bits.BELOW_NIBBLE_TOPS) & bits.NIBBLE_TOPS)
