"""Number formats by integer arithmetic, so that every backend gives the same bits.

Division is not correctly rounded on GPUs, pairs of casts may be dropped by the compiler, and some
backends flush denormals. So the functions here round with integer adds and masks, compare with
products that are exact in float32, and never let a denormal decide. They use only elementwise
operations, same-width bitcasts, reshapes and reductions, which a Pallas kernel body may hold.
"""

from typing import Final

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32, UInt8

E4M3_MAX: Final = 448.0
E4M3_TINY: Final = 2.0**-9  # the smallest positive E4M3 value, and the step below 2**-6
F16_MAX: Final = 65504.0
F32_MAX_BITS: Final = 0x7F7FFFFF
INF_BITS: Final = 0x7F800000
MAGNITUDE_MASK: Final = 0x7FFFFFFF


def signed(word: int) -> int:
    """The int32 that has the bits of a word in [0, 2**32)."""
    return word - (1 << 32) if word >> 31 else word


# Of words that stand for four bytes or eight nibbles.
IN_EACH_BYTE: Final = 0x01010101
BYTE_TOPS: Final = signed(0x80808080)
NIBBLE_TOPS: Final = signed(0x88888888)
BELOW_NIBBLE_TOPS: Final = 0x77777777


def float_bits(x: Float32[Array, "..."]) -> Int32[Array, "..."]:
    """The bit pattern of each float32."""
    return lax.bitcast_convert_type(x, jnp.int32)


def bits_float(bits: Int32[Array, "..."]) -> Float32[Array, "..."]:
    """The float32 of each bit pattern."""
    return lax.bitcast_convert_type(bits, jnp.float32)


def to_float32(x: Float[Array, "..."]) -> Float32[Array, "..."]:
    """Widens float32, bfloat16 or float16 to float32, exactly.

    Raises:
      ValueError: while tracing, on another dtype.
    """
    if x.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        raise ValueError(f"codecs encode float32, bfloat16 and float16, not {x.dtype}.")
    return x.astype(jnp.float32)


def split_sign(
    x: Float32[Array, "..."], limit: float
) -> tuple[Bool[Array, "..."], Float32[Array, "..."]]:
    """Sign (True below zero) and magnitude of each value.

    Magnitudes saturate at `limit`, infinities too; a NaN has magnitude 0.
    """
    bits = float_bits(x)
    magnitude = bits & MAGNITUDE_MASK
    magnitude = bits_float(jnp.where(magnitude > INF_BITS, 0, magnitude))
    return bits < 0, jnp.minimum(magnitude, limit)


def round_to_int(x: Float32[Array, "..."]) -> Int32[Array, "..."]:
    """Rounds to the nearest integer, ties to even; 0 <= x < 2**23."""
    whole = x.astype(jnp.int32)
    rest = x - whole.astype(jnp.float32)
    up = (rest > 0.5) | ((rest == 0.5) & ((whole & 1) == 1))
    return whole + up.astype(jnp.int32)


def round_mantissa(x: Float32[Array, "..."], dropped: int) -> Int32[Array, "..."]:
    """Bit patterns of x >= 0 with the low `dropped` mantissa bits rounded off, ties to even."""
    bits = float_bits(x)
    bits = bits + ((1 << (dropped - 1)) - 1) + ((bits >> dropped) & 1)
    return bits & -(1 << dropped)


def round_to_f16(x: Float32[Array, "..."]) -> Float32[Array, "..."]:
    """The nearest float16 value, ties to even, still in float32; 0 <= x <= 65504.

    A cast to float16 and back may be dropped by the compiler; this may not.
    """
    tiny = round_to_int(jnp.minimum(x, 1.0) * 2.0**24).astype(jnp.float32) * 2.0**-24
    return jnp.where(x < 2.0**-14, tiny, bits_float(round_mantissa(x, 13)))


def round_to_bf16(x: Float32[Array, "..."]) -> Float32[Array, "..."]:
    """The nearest bfloat16 value, ties to even, still in float32; NaN stays NaN."""
    bits = float_bits(x)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & ~0xFFFF
    is_nan = (bits & MAGNITUDE_MASK) > INF_BITS
    return bits_float(jnp.where(is_nan, 0x7FC00000, rounded))


def round_to_e4m3(x: Float32[Array, "..."]) -> Int32[Array, "..."]:
    """E4M3 code (OCP FP8, no infinities) nearest to x, ties to even; 0 <= x, saturates at 448."""
    x = jnp.minimum(x, E4M3_MAX)
    tiny = round_to_int(jnp.minimum(x, 1.0) / E4M3_TINY)
    normal = (round_mantissa(x, 20) >> 20) - (120 << 3)
    return jnp.where(x < 2.0**-6, tiny, normal)


def e4m3_to_float(code: Int32[Array, "..."]) -> Float32[Array, "..."]:
    """Value of each E4M3 code in [0, 255]; 0x7F and 0xFF are NaN."""
    low = code & 0x7F
    normal = bits_float((low << 20) + (120 << 23))
    tiny = low.astype(jnp.float32) * E4M3_TINY
    magnitude = jnp.where(low < 8, tiny, jnp.where(low == 0x7F, jnp.nan, normal))
    return jnp.where((code & 0x80) != 0, -magnitude, magnitude)


def pack_nibbles(codes: Int32[Array, "*plane dim"]) -> UInt8[Array, "*plane half"]:
    """Byte c holds channel c in its low nibble and channel c + dim/2 in its high one."""
    *plane, dim = codes.shape
    halves = codes.reshape(*plane, 2, dim // 2)
    shift = 4 * lax.broadcasted_iota(jnp.int32, halves.shape, len(plane))
    return jnp.sum(halves << shift, axis=-2, dtype=jnp.int32).astype(jnp.uint8)


def unpack_nibbles(packed: UInt8[Array, "*plane half"]) -> Int32[Array, "*plane dim"]:
    """The inverse of `pack_nibbles`."""
    *plane, half = packed.shape
    twice = jnp.broadcast_to(packed.astype(jnp.int32)[..., None, :], (*plane, 2, half))
    shift = 4 * lax.broadcasted_iota(jnp.int32, twice.shape, len(plane))
    return ((twice >> shift) & 15).reshape(*plane, 2 * half)
