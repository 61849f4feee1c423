"""Scales of a tile: one to sixteen a row, as few words that lie next to each other."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32

from pallas_kernels.codecs import Codec
from pallas_kernels.launch import WORD
from pallas_kernels.tiles import quotients
from pallas_kernels.tiles.lanes import Grouped


def scale_words(codec: Codec, rows: int, dim: int) -> int:
    """Words that the scales of some rows take; 0 for a codec without."""
    if codec.scale_dtype is None:
        return 0
    return rows * codec.scale_width(dim) * jnp.dtype(codec.scale_dtype).itemsize // WORD


def unpack(codec: Codec, words: Int32[Array, "words"], rows: int, dim: int) -> Grouped:
    """The stored scales as float32, per half."""
    flat = _to_float(words, jnp.dtype(codec.scale_dtype))
    width = codec.scale_width(dim)
    if width == 1:
        scale = flat.reshape(rows, 1)
        return Grouped(scale, scale)
    halves = jnp.transpose(flat.reshape(rows, 2, width // 2), (0, 2, 1))
    return Grouped(*lax.unstack(halves, axis=2))


def scale_unit(codec: Codec, dim: int) -> int:
    """Bytes of the widest units, up to a word, that a token's scales fill and no other token's."""
    if codec.scale_dtype is None:
        return WORD
    size = codec.scale_width(dim) * jnp.dtype(codec.scale_dtype).itemsize
    return min(size, WORD)


def pack(codec: Codec, codes: Grouped, dim: int, unit: int = WORD) -> Int32[Array, "units"]:
    """Units of scales that are given as their bit patterns; of words by default."""
    size = jnp.dtype(codec.scale_dtype).itemsize
    width = codec.scale_width(dim)
    rows = codes.low.shape[0]
    if width == 1:
        flat = codes.low.reshape(rows)
    else:
        both = lax.stack([codes.low, codes.high], axis=2)
        flat = jnp.transpose(both, (0, 2, 1)).reshape(rows * width)
    while size < unit:
        first, second = lax.unstack(flat.reshape(flat.shape[0] // 2, 2), axis=1)
        flat, size = first | (second << (8 * size)), 2 * size
    return flat


def _to_float(words: Int32[Array, "words"], dtype: jnp.dtype) -> Array:
    if dtype == jnp.float32:
        return lax.bitcast_convert_type(words, jnp.float32)
    parts = _halve(words, 16)
    if dtype == jnp.float16:
        return f16_to_float(parts)
    return e4m3_scale(_halve(parts, 8))


def _halve(x: Int32[Array, "n"], width: int) -> Int32[Array, "twice"]:
    mask = (1 << width) - 1
    return lax.stack([x & mask, (x >> width) & mask], axis=1).reshape(2 * x.shape[0])


def f16_to_float(bits: Int32[Array, "..."]) -> Array:
    """The float32 of each float16 bit pattern; widening is exact."""
    half = lax.bitcast_convert_type(bits.astype(jnp.uint16), jnp.float16)
    return half.astype(jnp.float32)


def f16_bits(x: Array) -> Int32[Array, "..."]:
    """The bit pattern of each float32 that is a float16."""
    half = lax.bitcast_convert_type(x.astype(jnp.float16), jnp.uint16)
    return half.astype(jnp.int32)


def e4m3_scale(code: Int32[Array, "n"]) -> Array:
    """The float32 of each E4M3 bit pattern that is not negative; 0x7F is NaN."""
    return jnp.where(code >= 0x7F, jnp.nan, quotients.e4m3_value(code))
