"""4-bit codes of a tile."""

import jax.numpy as jnp
from jaxtyping import Array, Int32

from pallas_kernels.codecs import bits, e2m1, four_bit, int4_g16
from pallas_kernels.codecs.e2m1 import E2m1
from pallas_kernels.codecs.four_bit import FourBit
from pallas_kernels.tiles.lanes import (
    Grouped,
    Lanes,
    Tile,
    each,
    each_grouped,
    group_max,
    join_bytes,
    reduce_groups,
)

_MAGIC = 2.0**23  # from here to twice it, float32 values are the integers
_MAGIC_BITS = 0x4B000000
_MANTISSAS = tuple(1.0 / (1.0 + m / 8) for m in range(8))


def split_nibbles(words: Int32[Array, "row words"]) -> Tile:
    """Nibbles 0..15 of 4-bit rows: a byte's low one is of the low half."""

    def half(shift: int) -> Lanes:
        a, b, c, d = ((words >> (8 * i + shift)) & 15 for i in range(4))
        return a, b, c, d

    return Tile(half(0), half(4))


def join_nibbles(tile: Tile) -> Int32[Array, "row words"]:
    """The inverse of `split_nibbles`."""
    low, high = (join_bytes(half) for half in tile)
    return low | (high << 4)


def value(codec: FourBit, nibble: Int32[Array, "..."]) -> Array:
    """The value of each nibble, without its scale."""
    magnitude = bits.float_bits(codec.code_values(nibble & 7))
    return bits.bits_float(magnitude | ((nibble & 8) << 28))


def with_sign(code: Int32[Array, "..."], x: Array) -> Int32[Array, "..."]:
    """The nibble of a magnitude code; there is no -0."""
    return code | jnp.where((code > 0) & (bits.float_bits(x) < 0), 8, 0)


def encode(
    codec: FourBit, magnitude: Tile, amax: Grouped, dim: int, *, short: bool
) -> tuple[Tile, Grouped]:
    """Magnitude codes 0..7, and scales as the codec has them: 0 for a group of zeros."""
    limit = codec.max_code_value * bits.E4M3_MAX
    amax = Grouped(*(jnp.minimum(x, limit) for x in amax))
    magnitude = each(lambda m: jnp.minimum(m, limit), magnitude) if _searches(codec) else magnitude
    if not isinstance(codec, E2m1):
        scale = _scales(amax, int4_g16.BY_SEVEN)
        codes = _codes(int4_g16.CODE_CUTS, _short_int4, magnitude, scale, short)
    else:
        scale = _scales(amax, e2m1.BY_SIX)
        codes = _codes(e2m1.CODE_CUTS, _short_e2m1, magnitude, scale, short)
        if _searches(codec):
            codes, scale = _search(codec, magnitude, amax, codes, scale, dim, short)
    largest = group_max(codes, codec.group, dim)
    return codes, Grouped(*(jnp.where(c > 0, s, 0.0) for c, s in zip(largest, scale, strict=True)))


def _searches(codec: FourBit) -> bool:
    return isinstance(codec, E2m1) and codec.search


def _scales(amax: Grouped, rule: four_bit.ScaleRule) -> Grouped:
    return Grouped(*(four_bit.group_scale(x, rule) for x in amax))


def _codes(cuts, short_codes, magnitude: Tile, scale: Grouped, short: bool) -> Tile:
    if not short:
        return each_grouped(lambda s, m: four_bit.count_past(m, cuts, s), scale, magnitude)
    return each_grouped(short_codes, Grouped(*map(reciprocal, scale)), magnitude)


def reciprocal(scale: Array) -> Array:
    """1 / scale to the nearest float32; scale is a positive E4M3 value."""
    pattern = bits.float_bits(scale)
    mantissa = (pattern >> 20) & 7
    inverse = jnp.full(scale.shape, _MANTISSAS[0], jnp.float32)
    for m in range(1, 8):
        inverse = jnp.where(mantissa == m, _MANTISSAS[m], inverse)
    return inverse * bits.bits_float((254 << 23) - (pattern & bits.INF_BITS))


def _quotient(inverse: Array, magnitude: Array) -> Array:
    """magnitude / scale, exactly where that is a cut between two codes.

    A quotient of a value of 18 significant bits and a scale of 4 is a cut, or 2**-18 of itself away
    from one. The product with the rounded reciprocal is within 2**-22 of it; dropping two bits,
    rounded, moves what is next to a cut onto it and nothing across.
    """
    product = bits.float_bits(magnitude * inverse)
    return bits.bits_float((product + 2) & -4)


def _short_e2m1(inverse: Array, magnitude: Array) -> Int32[Array, "..."]:
    """E2M1 codes: the least of the roundings in steps of 1/2, of 1 and of 2, where those start.

    Adding 2**23 rounds to an integer, ties to even, which the low bits then are.
    """
    q = _quotient(inverse, magnitude)
    code = jnp.minimum(q * 2.0 + _MAGIC, q + (_MAGIC + 2.0))
    code = jnp.minimum(code, jnp.minimum(q * 0.5 + (_MAGIC + 4.0), _MAGIC + 7.0))
    return bits.float_bits(code) - _MAGIC_BITS


def _short_int4(inverse: Array, magnitude: Array) -> Int32[Array, "..."]:
    code = jnp.minimum(_quotient(inverse, magnitude) + _MAGIC, _MAGIC + 7.0)
    return bits.float_bits(code) - _MAGIC_BITS


def _search(codec, magnitude, amax, codes, scale, dim, short) -> tuple[Tile, Grouped]:
    """The better of amax/6 and amax/4, as `E2m1.encode_groups` chooses."""
    scale4 = _scales(amax, e2m1.BY_FOUR)
    codes4 = _codes(e2m1.CODE_CUTS, _short_e2m1, magnitude, scale4, short)
    error = _squared_error(codec, magnitude, codes, scale, amax, dim)
    error4 = _squared_error(codec, magnitude, codes4, scale4, amax, dim)
    fits = each(lambda c: ((c == 0) | (c == 3) | (c == 5) | (c == 7)).astype(jnp.int32), codes)
    fits = reduce_groups(jnp.minimum, jnp.min, fits, codec.group, dim)
    also = Grouped(*(e2m1.has_raised_scale(s) & (f == 1) for s, f in zip(scale, fits, strict=True)))
    codes = each_grouped(lambda a, c: jnp.where(a, jnp.maximum(c - 1, 0), c), also, codes)
    scale = Grouped(*(jnp.where(a, 1.5 * s, s) for a, s in zip(also, scale, strict=True)))
    by_four = Grouped(*(e4 < e for e4, e in zip(error4, error, strict=True)))
    codes = each_grouped(jnp.where, by_four, codes4, codes)
    return codes, Grouped(*map(jnp.where, by_four, scale4, scale))


def _squared_error(codec, magnitude, codes, scale, amax, dim) -> Grouped:
    unit = Grouped(*map(e2m1.error_unit, amax))
    values = each_grouped(lambda s, c: e2m1.code_values(c) * s, scale, codes)
    errors = each_grouped(e2m1.error_in_units, unit, magnitude, values)
    squares = each(lambda e: e * e, errors)
    return reduce_groups(jnp.add, jnp.sum, squares, codec.group, dim)
