"""`fp8_e4m3`: OCP FP8 E4M3 codes under one power-of-two scale per token."""

from dataclasses import dataclass
from typing import Any, Final

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from pallas_kernels.codecs import base, bits

MAX_MAGNITUDE: Final = 1.875 * 2.0**127  # the largest E4M3 mantissa below 2**128
MIN_EXPONENT: Final = -117  # 2**-9 times the scale is then still a normal float32


def token_scale(amax: Float32[Array, "..."]) -> Float32[Array, "..."]:
    """The smallest 2**e, e >= -117, for which amax / 2**e rounds to at most 448.

    Those are the quotients up to 464 = 1.8125 * 2**8, where the tie goes to 448. Asking for a
    quotient of at most 448 would let 449 fall to 224 under the doubled scale, and the next
    encode would halve the scale again: same values, other bytes.
    """
    amax_bits = bits.float_bits(amax)
    over = ((amax_bits & 0x7FFFFF) > 0x680000).astype(jnp.int32)
    exponent = jnp.maximum((amax_bits >> 23) - 8 + over, MIN_EXPONENT + 127)
    return bits.bits_float(exponent << 23)


@dataclass(frozen=True)
class Fp8E4m3(base.Codec):
    """Codes uint8 [..., token, dim], scales float32 [..., token, 1].

    Codes are E4M3 bit patterns of x / scale (OCP 8-bit Floating Point Specification: 4 exponent
    bits, 3 mantissa bits, largest value 448), rounded to nearest, ties to even. Scales are
    powers of two, see `token_scale`. A token whose codes are all zero has scale 0. No -0 codes.
    """

    name: str = "fp8_e4m3"

    @property
    def code_dtype(self) -> Any:
        return jnp.uint8

    @property
    def scale_dtype(self) -> Any:
        return jnp.float32

    def code_width(self, head_dim: int) -> int:
        return base.check_head_dim(head_dim)

    def scale_width(self, head_dim: int) -> int:
        base.check_head_dim(head_dim)
        return 1

    def encode(self, x: Float[Array, "*plane token dim"]) -> base.Encoded:
        base.check_head_dim(x.shape[-1])
        negative, magnitude = bits.split_sign(bits.to_float32(x), MAX_MAGNITUDE)
        # Denormals count as zero on every backend, not only on those that flush them.
        is_normal = bits.float_bits(magnitude) >= (1 << 23)
        magnitude = jnp.where(is_normal, magnitude, 0.0)
        scale = token_scale(jnp.max(magnitude, axis=-1, keepdims=True))
        inverse = bits.bits_float((254 << 23) - bits.float_bits(scale))
        codes = bits.round_to_e4m3(magnitude * inverse)
        scale = jnp.where(jnp.max(codes, axis=-1, keepdims=True) > 0, scale, 0.0)
        codes = jnp.where(negative & (codes > 0), codes + 0x80, codes)
        return base.Encoded(codes.astype(jnp.uint8), scale)

    def decode(self, enc: base.Encoded) -> Float32[Array, "*plane token dim"]:
        self.check_encoded(enc, enc.codes.shape[-1])
        assert enc.scales is not None
        return bits.e4m3_to_float(enc.codes.astype(jnp.int32)) * enc.scales
