"""`int8_g64` to E2M1 by group of 64, four values per instruction.

A group has one scale before and one after, so the seven cuts between codes are seven integers that
a magnitude of at most 127 has to reach. Added to 128 less such an integer, a byte gets its top bit
if it does. The seven top bits of a value are a code in unary; adding modulo 2 makes it binary.
"""

from typing import Final

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int32

from pallas_kernels.codecs import bits, e2m1
from pallas_kernels.codecs.e2m1 import E2m1
from pallas_kernels.codecs.four_bit import Cut
from pallas_kernels.instructions import (
    approximate_reciprocal,
    byte_magnitudes,
    max_pair,
    multiply_add_within_1,
)
from pallas_kernels.packed.pieces import Packed, Piece, Pieces, in_threads, of_words, shared
from pallas_kernels.tiles import four_bit, quotients
from pallas_kernels.tiles.lanes import Grouped, all_finite

_NUDGE: Final = 2.0**-13
_LEAST: Final = 2.0**-8  # a group with a code that is no 0 has 448/65504 at least


def to_e2m1(codec: E2m1, dim: int, parts: tuple[Pieces, ...], scale: Grouped) -> Packed:
    """Stores rows of int8 under float16 scales as `E2m1.encode` of their values, no `search`."""
    magnitudes = [[byte_magnitudes(words) for words in part] for part in parts]
    largest = shared(jnp.maximum, [_largest(part) for part in magnitudes], codec.group, dim)
    amax = Grouped(*(x.astype(jnp.float32) * s for x, s in zip(largest, scale, strict=True)))
    scales, kept = four_bit.short_scales(codec, amax)
    ratios = [
        quotients.e4m3_value(new) * approximate_reciprocal(old)
        for new, old in zip(scales, scale, strict=True)
    ]
    planes = [
        _bit_planes(values, part, ratio)
        for values, part, ratio in zip(parts, magnitudes, ratios, strict=True)
    ]
    words = tuple(_join(low, high) for low, high in zip(*planes, strict=True))
    return Packed((words,), kept, all_finite(amax))


def _largest(magnitudes: list[Piece]) -> Int32[Array, "row group"]:
    # The high byte of a pair decides; the low ones get their turn as high ones.
    turns = (turn for words in magnitudes for turn in (words, words << 8))
    pairs = in_threads(max_pair, turns)
    return jnp.max(jnp.maximum((pairs >> 8) & 0xFF, (pairs >> 24) & 0xFF), axis=2)


def _addends(ratio: Float32[Array, "row group"]) -> list[Int32[Array, "row group"]]:
    """Per cut, in every byte: 128 less the least integer past it, but at least 0.

    A cut, in units of the old scale, is an integer or at least 2**-11 from one if it is above 1,
    for it is a number of 7 bits over one of 11. So half a step more or less, and then rounding,
    gives the integer whatever the last bits of the ratio are. Below `_LEAST` a ratio is of zeros.
    """
    ratio = jnp.maximum(ratio, _LEAST)

    def addend(cut: Cut) -> Int32[Array, "row group"]:
        nudge = -_NUDGE if cut.at_too else _NUDGE
        part, start = (jnp.full_like(ratio, x / 128) for x in (-cut.at, 127.5 - nudge))
        at = multiply_add_within_1(ratio, part, start)  # in units of 128
        number = bits.float_bits(at * 128.0 + quotients.TO_INTEGER)
        base = (quotients.BASE * bits.IN_EACH_BYTE) & 0xFFFFFFFF
        return number * bits.IN_EACH_BYTE - bits.signed(base)

    return [addend(cut) for cut in e2m1.CODE_CUTS]


def _bit_planes(values: Pieces, magnitudes: list[Piece], ratio: Array) -> list[tuple[Piece, ...]]:
    """Per piece the bits 0, 1 and 2 of the codes and their signs, in the top bits of bytes."""
    addends = [of_words(x, values[0]) for x in _addends(ratio)]

    def planes(words: Piece, magnitude: Piece) -> tuple[Piece, ...]:
        a, b, c, d, e, f, g = (magnitude + addend for addend in addends)
        middle = b ^ d ^ f
        return middle ^ g ^ (a ^ c ^ e), middle, d, words & a

    return [planes(*both) for both in zip(values, magnitudes, strict=True)]


def _join(low: tuple[Piece, ...], high: tuple[Piece, ...]) -> Piece:
    """Words of nibbles from their bits, lowest first."""
    word = None
    for in_low, in_high in zip(low, high, strict=True):
        bit = (in_high & bits.BYTE_TOPS) | (lax.shift_right_logical(in_low, 4) & ~bits.BYTE_TOPS)
        if word is None:
            word = bit
        else:
            rest = lax.shift_right_logical(word, 1) & ~bits.NIBBLE_TOPS
            word = (bit & bits.NIBBLE_TOPS) | rest
    assert word is not None
    return word
