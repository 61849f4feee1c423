"""4-bit codes of a tile: as few operations per value as can be, since they set the speed."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from pallas_kernels.codecs import Codec, bits, e2m1, four_bit, int4_g16
from pallas_kernels.codecs.e2m1 import E2m1
from pallas_kernels.codecs.four_bit import FourBit
from pallas_kernels.tiles import quotients
from pallas_kernels.tiles.lanes import (
    Grouped,
    Lanes,
    Tile,
    all_finite,
    each,
    each_grouped,
    group_max,
    reduce_groups,
)


class Packed(NamedTuple):
    """A tile as 4-bit codes.

    Attributes:
      words: of codes, [row, dim/8].
      scales: E4M3 bit patterns.
      finite: whether every value was.
    """

    words: Int32[Array, "row words"]
    scales: Grouped
    finite: Bool[Array, ""]


def split_nibbles(words: Int32[Array, "row words"]) -> Tile:
    """The words, shifted until each lane's nibble is the lowest; a byte's low one is of the low
    half."""

    def half(shift: int) -> Lanes:
        a, b, c, d = (words >> (8 * i + shift) for i in range(4))
        return a, b, c, d

    return Tile(half(0), half(4))


def join_nibbles(codes: Tile, base: int, values: Tile) -> Int32[Array, "row words"]:
    """Words of nibbles: magnitude codes 0..7 above `base`, with the signs of values, and no -0.

    What the bases add up to is taken off at the end; sums wrap around.
    """
    word = sign = jnp.zeros_like(codes.low[0])
    bases = 0
    for lane in reversed(range(4)):
        for half in (1, 0):
            word = (word << 4) + codes[half][lane]
            top = lax.shift_right_logical(bits.float_bits(values[half][lane]), 28)
            sign = (sign << 4) | top
            bases = ((bases << 4) + base) & 0xFFFFFFFF
    magnitudes = word - bits.signed(bases)
    not_zero = (magnitudes + bits.BELOW_NIBBLE_TOPS) & bits.NIBBLE_TOPS
    return magnitudes | (sign & not_zero)


def value(codec: FourBit, word: Int32[Array, "..."]) -> Float32[Array, "..."]:
    """The value of the lowest nibble of each word, without its scale.

    E2M1 is the top of a float16 but for the exponent's bias, subnormals included.
    """
    if isinstance(codec, E2m1):
        pattern = ((word << 9) & 0x0E00) | ((word << 12) & 0x8000)
        half = lax.bitcast_convert_type(pattern.astype(jnp.uint16), jnp.float16)
        return half.astype(jnp.float32) * 2.0**14
    magnitude = bits.float_bits(codec.code_values(word & 7))
    return bits.bits_float(magnitude | ((word & 8) << 28))


def encode(codec: FourBit, tile: Tile, dim: int, *, short: bool) -> Packed:
    """Stores a tile; `short` as in `tiles.encode`."""
    magnitude = each(jnp.abs, tile)
    largest = group_max(magnitude, codec.group, dim)
    if short and not searches(codec):
        words, scales = _encode_short(codec, tile, magnitude, largest)
        return Packed(words, scales, all_finite(largest))
    limit = codec.max_code_value * bits.E4M3_MAX
    amax = Grouped(*(jnp.minimum(x, limit) for x in largest))
    magnitude = each(lambda m: jnp.minimum(m, limit), magnitude)
    codes, scale = _encode_any(codec, magnitude, amax, dim)
    scales = Grouped(*map(bits.round_to_e4m3, scale))
    return Packed(join_nibbles(codes, 0, tile), scales, all_finite(largest))


def searches(codec: Codec) -> bool:
    """Whether each group takes the better of two scales."""
    return isinstance(codec, E2m1) and codec.search


def _encode_short(codec: FourBit, tile: Tile, magnitude: Tile, largest: Grouped):
    """(words, scales) of a tile of short values."""
    scales, kept = short_scales(codec, largest)
    split = [quotients.split_reciprocal(quotients.e4m3_value(s)) for s in scales]
    high, low = (Grouped(*parts) for parts in zip(*split, strict=True))
    q = each_grouped(quotients.quotient, (high, low), magnitude)
    code_of = quotients.e2m1_code if isinstance(codec, E2m1) else quotients.int4_code
    words = join_nibbles(each(code_of, q), quotients.BASE, tile)
    return words, kept


def short_scales(codec: FourBit, largest: Grouped) -> tuple[Grouped, Grouped]:
    """E4M3 codes of scales without `search`, to divide by and to store.

    What is stored is 0 where all codes of the group are: there the scale is the smallest, 2**-9,
    and the largest quotient rounds to 0.

    Args:
      codec: of the groups.
      largest: magnitudes, of at most 18 significant bits; also past the codec's range.
    """
    amax = [jnp.minimum(x, codec.max_code_value * bits.E4M3_MAX) for x in largest]
    if isinstance(codec, E2m1):
        scales, zero_up_to = map(quotients.e4m3_of_sixth, amax), 2.0**-11
    else:
        scales = (bits.round_to_e4m3(four_bit.group_scale(x, int4_g16.BY_SEVEN)) for x in amax)
        zero_up_to = 2.0**-10
    scales = Grouped(*scales)
    kept = (jnp.where(x > zero_up_to, s, 0) for x, s in zip(amax, scales, strict=True))
    return scales, Grouped(*kept)


def _encode_any(codec: FourBit, magnitude: Tile, amax: Grouped, dim: int) -> tuple[Tile, Grouped]:
    """Magnitude codes 0..7, and scales, 0 for a group of zeros."""
    if not isinstance(codec, E2m1):
        codes, scale = _codes(magnitude, amax, int4_g16.BY_SEVEN, int4_g16.CODE_CUTS)
    else:
        codes, scale = _codes(magnitude, amax, e2m1.BY_SIX, e2m1.CODE_CUTS)
        if searches(codec):
            codes, scale = _search(codec, magnitude, amax, codes, scale, dim)
    largest = group_max(codes, codec.group, dim)
    return codes, Grouped(*(jnp.where(c > 0, s, 0.0) for c, s in zip(largest, scale, strict=True)))


def _codes(magnitude: Tile, amax: Grouped, rule, cuts) -> tuple[Tile, Grouped]:
    scale = Grouped(*(four_bit.group_scale(x, rule) for x in amax))
    codes = each_grouped(lambda s, m: four_bit.count_past(m, cuts, s), (scale,), magnitude)
    return codes, scale


def _search(codec, magnitude, amax, codes, scale, dim) -> tuple[Tile, Grouped]:
    """The better of amax/6 and amax/4, as `E2m1.encode_groups` chooses."""
    codes4, scale4 = _codes(magnitude, amax, e2m1.BY_FOUR, e2m1.CODE_CUTS)
    error = _squared_error(codec, magnitude, codes, scale, amax, dim)
    error4 = _squared_error(codec, magnitude, codes4, scale4, amax, dim)
    fits = each(lambda c: ((c == 0) | (c == 3) | (c == 5) | (c == 7)).astype(jnp.int32), codes)
    fits = reduce_groups(jnp.minimum, jnp.min, fits, codec.group, dim)
    also = Grouped(*(e2m1.has_raised_scale(s) & (f == 1) for s, f in zip(scale, fits, strict=True)))
    codes = each_grouped(lambda a, c: jnp.where(a, jnp.maximum(c - 1, 0), c), (also,), codes)
    scale = Grouped(*(jnp.where(a, 1.5 * s, s) for a, s in zip(also, scale, strict=True)))
    by_four = Grouped(*(e4 < e for e4, e in zip(error4, error, strict=True)))
    codes = each_grouped(jnp.where, (by_four,), codes4, codes)
    return codes, Grouped(*map(jnp.where, by_four, scale4, scale))


def _squared_error(codec, magnitude, codes, scale, amax, dim) -> Grouped:
    unit = Grouped(*map(e2m1.error_unit, amax))
    values = each_grouped(lambda s, c: e2m1.code_values(c) * s, (scale,), codes)
    errors = each_grouped(e2m1.error_in_units, (unit,), magnitude, values)
    squares = each(lambda e: e * e, errors)
    return reduce_groups(jnp.add, jnp.sum, squares, codec.group, dim)
