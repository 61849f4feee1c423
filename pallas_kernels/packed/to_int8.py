"""E2M1 by group of 64 to `int8_g64`, four values per instruction.

A group has one scale before and one after, so its codes have eight magnitudes, and so have the
bytes that they become: a table of eight bytes, which is what picking bytes by nibbles looks up.
"""

from typing import Final

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int32

from pallas_kernels.codecs import bits, int8_g64
from pallas_kernels.codecs.e2m1 import E2m1
from pallas_kernels.instructions import multiply_add, pick_bytes
from pallas_kernels.packed.pieces import Packed, Piece, Pieces, in_threads, of_words, shared
from pallas_kernels.tiles import four_bit, quotients, scales
from pallas_kernels.tiles.lanes import Grouped, all_finite

_ONE_HOT: Final = (0x08040201, bits.signed(0x80402010))  # byte n is 1 << n
_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def from_e2m1(codec: E2m1, dim: int, parts: tuple[Pieces, ...], scale: Grouped) -> Packed:
    """Stores rows of E2M1 as `Int8G64.encode` of their values does."""
    (pieces,) = parts
    magnitudes = [words & bits.BELOW_NIBBLE_TOPS for words in pieces]
    present = in_threads(jnp.bitwise_or, [_one_hot(words) for words in magnitudes])
    present = present | lax.shift_right_logical(present, 16)
    # The largest of some numbers has the highest bit that any of them has.
    halves = [jnp.max((present >> shift) & 0xFF, axis=2) for shift in (0, 8)]
    halves = shared(jnp.maximum, halves, codec.group, dim)
    amax = Grouped(*(_largest(codec, x) * s for x, s in zip(halves, scale, strict=True)))
    new = [int8_g64.group_scale(jnp.minimum(x, int8_g64.MAX_MAGNITUDE)) for x in amax]
    tables = [
        [of_words(x, pieces[0]) for x in _table(s, n)] for s, n in zip(scale, new, strict=True)
    ]
    low, high = (jnp.where(n > 0, 0x07070707, 0) for n in new)  # zeros have no sign
    carry = of_words(low | (high << 4), pieces[0])
    words = [_bytes(*both, tables, carry) for both in zip(pieces, magnitudes, strict=True)]
    low, high = (tuple(half) for half in zip(*words, strict=True))
    return Packed((low, high), Grouped(*map(scales.f16_bits, new)), all_finite(amax))


def _one_hot(magnitudes: Piece) -> Piece:
    """Bit n of bytes 0 and 2: whether code n is there in the low half; of 1 and 3, in the high."""
    first, second = _ONE_HOT
    upper = lax.shift_right_logical(magnitudes, 16)
    return pick_bytes(first, second, magnitudes) | pick_bytes(first, second, upper)


def _largest(codec: E2m1, present: Int32[Array, "row group"]) -> Float32[Array, "row group"]:
    """The value of the largest code of which the bit is set."""
    # As a float, the highest bit is the exponent.
    return four_bit.value(codec, (bits.float_bits(present.astype(jnp.float32)) >> 23) - 127)


def _table(old: Array, new: Array) -> tuple[Int32[Array, "row group"], ...]:
    """Bytes 0 to 3 and 4 to 7: what each magnitude code becomes."""
    high, low = quotients.split_reciprocal(jnp.where(new > 0, new, 1.0))  # 0 makes all round to 0
    high, low = old * high, old * low  # the first is exact, and so are products with a value

    def code(value: float) -> Int32[Array, "row group"]:
        q = multiply_add(high, jnp.full_like(high, value), low * value)
        # A larger magnitude than any that is there may be anything.
        return bits.float_bits(jnp.minimum(q, float(int8_g64.MAX_CODE)) + quotients.TO_INTEGER)

    zero, *codes = (code(value) if value else jnp.zeros_like(old, jnp.int32) for value in _VALUES)
    return _lowest_bytes(zero, *codes[:3]), _lowest_bytes(*codes[3:])


def _lowest_bytes(a: Array, b: Array, c: Array, d: Array) -> Int32[Array, "row group"]:
    return pick_bytes(pick_bytes(a, b, 0x40), pick_bytes(c, d, 0x40), 0x5410)


def _bytes(
    words: Piece, magnitudes: Piece, tables: list[list[Piece]], carry: Piece
) -> tuple[Piece, Piece]:
    """The bytes of the low nibbles and those of the high ones.

    Added to a magnitude code that does not become zero, `carry` has the top bit of its nibble.
    """
    upper = lax.shift_right_logical(magnitudes, 16)
    signs = words & (magnitudes + carry) & bits.NIBBLE_TOPS

    def half(table: list[Piece], order: int, signs: Piece) -> Piece:
        first, second = table
        in_lower, in_upper = (pick_bytes(first, second, x) for x in (magnitudes, upper))
        picked = pick_bytes(in_lower, in_upper, order)
        negative = pick_bytes(signs, signs, 0xBA98)
        return (picked ^ negative) + (negative & bits.IN_EACH_BYTE)

    return half(tables[0], 0x6420, signs << 4), half(tables[1], 0x7531, signs)
