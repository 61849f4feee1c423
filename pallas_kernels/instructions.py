"""Single GPU instructions that the lowering does not find by itself, each with its meaning in jnp.

Inside a kernel compiled for a GPU a function here is one instruction; elsewhere, in the interpreter
or outside a kernel, it is plain jnp. An int32 word may stand for several values: a *pair* is two
of 16 bits, the first in the low bits, and *bytes* are four, the first the lowest.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int32

from pallas_kernels import launch
from pallas_kernels.codecs import bits


def _of_floats(text: str, *args: Array) -> Float32[Array, "..."]:
    return launch.instruction(text, jnp.float32, *args)


def _of_words(text: str, *args: Array | int) -> Int32[Array, "..."]:
    return launch.instruction(text, jnp.int32, *args)


def multiply_add(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32 arrays of one shape, rounded once in a GPU kernel, else twice.

    For where that makes no difference: the product is exact, or the last bits do not count.
    """
    return _of_floats("fma.rn.f32", a, b, c) if launch.is_compiled() else a * b + c


def multiply_add_within_1(a: Array, b: Array, c: Array) -> Array:
    """`multiply_add`, at least 0 and at most 1."""
    if launch.is_compiled():
        return _of_floats("fma.rn.sat.f32", a, b, c)
    return jnp.clip(a * b + c, 0.0, 1.0)


def approximate_reciprocal(x: Array) -> Array:
    """1 / x of float32, to 2**-23 of it in a GPU kernel."""
    return _of_floats("rcp.approx.ftz.f32", x) if launch.is_compiled() else 1.0 / x


def maximum_or_nan(a: Array, b: Array) -> Array:
    """The larger of two float32 values, or NaN if one is: a plain maximum in a kernel drops it."""
    return _of_floats("max.NaN.f32", a, b) if launch.is_compiled() else jnp.maximum(a, b)


def bf16_pair_multiply_add(a: Array, b: Array, c: Array) -> Int32[Array, "..."]:
    """a * b + c of pairs of bfloat16, rounded once in a GPU kernel; else to float32 and then again.

    For where that makes no difference, as with `multiply_add`.
    """
    if launch.is_compiled():
        return _of_words("fma.rn.bf16x2", a, b, c)
    return _each_float(lambda x, y, z: x * y + z, a, b, c)


def bf16_pair_multiply(a: Array, b: Array) -> Int32[Array, "..."]:
    """a * b of pairs of bfloat16, rounded to nearest, ties to even."""
    if launch.is_compiled():
        return _of_words("mul.rn.bf16x2", a, b)
    return _each_float(lambda x, y: x * y, a, b)


def _each_float(function: Callable, *words: Array) -> Int32[Array, "..."]:
    low, high = (
        function(*(bits.bits_float(half(w)) for w in words))
        for half in (lambda w: w << 16, lambda w: w & -65536)
    )
    low, high = (bits.float_bits(bits.round_to_bf16(x)) for x in (low, high))
    return lax.shift_right_logical(low, 16) | high


def max_pair(a: Array, b: Array) -> Int32[Array, "..."]:
    """The larger of pairs of unsigned 16-bit integers."""
    return _of_words("max.u16x2", a, b) if launch.is_compiled() else _each_short(jnp.maximum, a, b)


def min_pair(a: Array, b: Array) -> Int32[Array, "..."]:
    """The smaller of pairs of unsigned 16-bit integers."""
    return _of_words("min.u16x2", a, b) if launch.is_compiled() else _each_short(jnp.minimum, a, b)


def _each_short(function: Callable, a: Array, b: Array) -> Int32[Array, "..."]:
    low = function(a & 0xFFFF, b & 0xFFFF)
    high = function(lax.shift_right_logical(a, 16), lax.shift_right_logical(b, 16))
    return low | (high << 16)


def byte_magnitudes(words: Array) -> Int32[Array, "..."]:
    """The magnitudes of signed bytes; 128 of -128."""
    if launch.is_compiled():
        zero = jnp.zeros_like(words)
        return _of_words("vabsdiff4.u32.s32.s32", words, zero, zero)
    negative = lax.shift_right_logical(words, 7) & bits.IN_EACH_BYTE
    return (words ^ (negative * 255)) + negative


def pick_bytes(a: Array | int, b: Array | int, selector: Array | int) -> Int32[Array, "..."]:
    """Four of the eight bytes of a (0 to 3) and b (4 to 7).

    The lowest four nibbles of `selector` say which, the lowest one the lowest byte. A nibble of 8
    and more gives a byte of eight copies of the sign bit of byte nibble - 8.
    """
    if launch.is_compiled():
        return _of_words("prmt.b32", a, b, selector)
    word = jnp.int32(0)
    for i in range(4):
        nibble = (selector >> (4 * i)) & 15
        source = jnp.where((nibble & 4) != 0, b, a)
        byte = lax.shift_right_logical(*jnp.broadcast_arrays(source, 8 * (nibble & 3))) & 0xFF
        byte = jnp.where(nibble >= 8, jnp.where(byte >= 128, 255, 0), byte)
        word = word | (byte << (8 * i))
    return word
