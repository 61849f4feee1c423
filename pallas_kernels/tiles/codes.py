"""Codes of a tile, per codec: words to values, and values to words and scales."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from pallas_kernels.codecs import Codec, bits, fp8_e4m3, int8_g64
from pallas_kernels.codecs.bf16 import Bf16
from pallas_kernels.codecs.four_bit import FourBit
from pallas_kernels.codecs.fp8_e4m3 import Fp8E4m3
from pallas_kernels.codecs.int8_g64 import Int8G64
from pallas_kernels.instructions import pick_bytes
from pallas_kernels.launch import WORD
from pallas_kernels.tiles import four_bit, quotients, scales
from pallas_kernels.tiles.floats import Words, bf16_lanes
from pallas_kernels.tiles.lanes import (
    Grouped,
    Lanes,
    Tile,
    each,
    each_grouped,
    group_max,
    is_finite,
    join_bytes,
    join_pairs,
    split_bytes,
)


class Stored(NamedTuple):
    """A tile as it is stored.

    Attributes:
      codes: `num_parts` of them, each [row, words].
      scales: words of all rows, flat, or the narrower units that `encode` was asked for; None where
        the codec has none.
      finite: whether every value was.
    """

    codes: Words
    scales: Int32[Array, "units"] | None
    finite: Bool[Array, ""]


def words_per_row(codec: Codec, dim: int) -> int:
    """Words of codes that one token of one head takes."""
    return codec.code_width(dim) * jnp.dtype(codec.code_dtype).itemsize // WORD


def num_parts(codec: Codec) -> int:
    """In how many parts the words of a row are read and written: its halves, or as a whole."""
    return 1 if isinstance(codec, FourBit) else 2


def decode(codec: Codec, codes: Words, by_group: Grouped | None, dim: int) -> Tile:
    """The values of a tile, in float32.

    Args:
      codec: that it is stored in.
      codes: `num_parts` of them, each [row, words].
      by_group: scales, from `scales.unpack`; None where the codec has none.
      dim: channels.
    """
    if isinstance(codec, Bf16):
        low, high = map(bf16_lanes, codes)
        return Tile(low, high)
    assert by_group is not None
    if isinstance(codec, FourBit):
        nibbles = four_bit.split_nibbles(codes[0])
        return each_grouped(lambda s, w: four_bit.value(codec, w) * s, (by_group,), nibbles)
    each_byte = Tile(*map(split_bytes, codes))
    if isinstance(codec, Int8G64):
        return each_grouped(lambda s, c: _signed(c).astype(jnp.float32) * s, (by_group,), each_byte)
    if isinstance(codec, Fp8E4m3):
        return each_grouped(lambda s, c: _e4m3_to_float(c) * s, (by_group,), each_byte)
    raise NotImplementedError(f"no tiles of {codec.name}.")


def _e4m3_to_float(code: Int32[Array, "..."]) -> Array:
    """As `bits.e4m3_to_float`. It is a float16 but for the bias and the missing mantissa bits,
    subnormals included."""
    half = scales.f16_to_float(((code & 0x7F) << 7) | ((code & 0x80) << 8))
    return jnp.where((code & 0x7F) == 0x7F, jnp.nan, half * 2.0**8)


def _signed(byte: Int32[Array, "..."]) -> Int32[Array, "..."]:
    return (byte << 24) >> 24


def encode(
    codec: Codec, tile: Tile, dim: int, *, short: bool, narrow: bool = False, unit: int = WORD
) -> Stored:
    """Stores a tile.

    Bytes of a tile that is not finite are unspecified.

    Args:
      codec: to store it in.
      tile: values.
      dim: channels.
      short: whether no value has more than 18 significant bits, as nothing decoded has; codes then
        cost less.
      narrow: whether no value has more than 8, so that bfloat16 holds them all.
      unit: bytes of what scales are packed into; 1, 2 or 4.
    """
    if isinstance(codec, Bf16):
        return _encode_bf16(tile, narrow)
    if isinstance(codec, FourBit):
        packed = four_bit.encode(codec, tile, dim, short=short)
        return Stored((packed.words,), scales.pack(codec, packed.scales, dim, unit), packed.finite)
    if isinstance(codec, Int8G64):
        words, scale_bits = _encode_int8(tile, dim, short)
    elif isinstance(codec, Fp8E4m3):
        words, scale_bits = _encode_fp8(tile, dim)
    else:
        raise NotImplementedError(f"no tiles of {codec.name}.")
    return Stored(words, scales.pack(codec, scale_bits, dim, unit), is_finite(tile))


def is_narrow(codec: Codec) -> bool:
    """Whether what is decoded from a codec has at most 8 significant bits."""
    return not isinstance(codec, Int8G64)


def most_rows(codec: Codec) -> int:
    """Token rows of a tile that are encoded without spilling registers."""
    if four_bit.searches(codec):
        return 8
    return 32 if isinstance(codec, Fp8E4m3) else 64


def _encode_bf16(tile: Tile, narrow: bool) -> Stored:
    patterns = each(bits.float_bits, tile if narrow else each(bits.round_to_bf16, tile))

    def words(lanes: Lanes) -> Array:
        def pair(low, high):
            return lax.shift_right_logical(low, 16) | (high & -65536)

        a, b, c, d = lanes
        return join_pairs(pair(a, b), pair(c, d))

    return Stored(tuple(map(words, patterns)), None, is_finite(tile))


def _encode_int8(tile: Tile, dim: int, short: bool) -> tuple[Words, Grouped]:
    magnitude = each(jnp.abs, tile)

    def scale_of(x):
        return int8_g64.group_scale(jnp.minimum(x, int8_g64.MAX_MAGNITUDE))

    def any_code(s, m, x):
        code = int8_g64.divide_to_int(jnp.minimum(m, int8_g64.MAX_MAGNITUDE)[..., None], s)[..., 0]
        return jnp.where(bits.float_bits(x) < 0, -code, code) & 0xFF

    def short_code(high, low, x):
        q = jnp.minimum(quotients.quotient(high, low, x), float(int8_g64.MAX_CODE))
        return quotients.signed_byte(jnp.maximum(q, -float(int8_g64.MAX_CODE)))

    scale = Grouped(*map(scale_of, group_max(magnitude, int8_g64.GROUP, dim)))
    if not short:
        codes = each_grouped(any_code, (scale,), magnitude, tile)
    else:
        divisors = (jnp.where(s > 0, s, 1.0) for s in scale)  # a group of scale 0 rounds to 0
        split = zip(*map(quotients.split_reciprocal, divisors), strict=True)
        codes = each_grouped(short_code, tuple(Grouped(*parts) for parts in split), tile)
    return tuple(map(join_bytes, codes)), Grouped(*map(scales.f16_bits, scale))


def _encode_fp8(tile: Tile, dim: int) -> tuple[Words, Grouped]:
    magnitude = each(jnp.abs, tile)

    def normal(x):
        return jnp.where(bits.float_bits(x) >= (1 << 23), x, 0.0)

    amax = [jnp.minimum(normal(x), fp8_e4m3.MAX_MAGNITUDE) for x in group_max(magnitude, dim, dim)]
    scale = [fp8_e4m3.token_scale(x) for x in amax]
    inverse = [bits.bits_float((254 << 23) - bits.float_bits(s)) for s in scale]
    # Scaled magnitudes are at most that of amax, since what is past the range is stored as its end.
    limit = [jnp.minimum(x * i, bits.E4M3_MAX) for x, i in zip(amax, inverse, strict=True)]

    def code_of(inverse, limit, m):
        return quotients.e4m3_code(jnp.minimum(normal(m) * inverse, limit))

    codes = each_grouped(code_of, (Grouped(*inverse), Grouped(*limit)), magnitude)
    kept = (  # a token of which the largest code is not 0
        jnp.where(quotients.e4m3_code(x) > 0, s, 0.0) for x, s in zip(limit, scale, strict=True)
    )
    words = tuple(_with_signs(*both) for both in zip(codes, tile, strict=True))
    return words, Grouped(*map(bits.float_bits, kept))


def _with_signs(codes: Lanes, values: Lanes) -> Int32[Array, "row words"]:
    """Words of magnitude codes of 7 bits, with the signs of values; no -0."""
    a, b, c, d = map(bits.float_bits, values)
    signs = pick_bytes(pick_bytes(a, b, 0x73), pick_bytes(c, d, 0x73), 0x5410)
    magnitudes = join_bytes(codes)
    return magnitudes | (signs & (magnitudes + 0x7F7F7F7F) & bits.BYTE_TOPS)
