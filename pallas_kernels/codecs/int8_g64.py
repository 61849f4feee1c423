"""`int8_g64`: signed bytes under one float16 scale per 64 channels."""

from dataclasses import dataclass
from typing import Any, Final

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.codecs import base, bits

GROUP: Final = 64
MAX_CODE: Final = 127
MAX_MAGNITUDE: Final = MAX_CODE * bits.F16_MAX


def group_scale(amax: Float32[Array, "*group"]) -> Float32[Array, "*group"]:
    """Float16 scale of each group in float32; amax is in [0, `MAX_MAGNITUDE`]."""
    return bits.round_to_f16(amax * (1.0 / MAX_CODE))


def divide_to_int(
    magnitude: Float32[Array, "*group channel"], scale: Float32[Array, "*group"]
) -> Int32[Array, "*group channel"]:
    """magnitude / scale to the nearest integer, ties to even, at most 127; scale is a float16.

    The quotient of reals is rounded, whatever the division's error: the float quotient only
    finds an integer next to it, and (integer + 1/2) * scale is exact in float32.
    """
    scale = scale[..., None]
    quotient = jnp.minimum(magnitude * (1.0 / jnp.where(scale > 0, scale, 1.0)), MAX_CODE)
    whole = quotient.astype(jnp.int32)
    cut = (whole.astype(jnp.float32) + 0.5) * scale
    up = (magnitude > cut) | ((magnitude == cut) & ((whole & 1) == 1))
    codes = jnp.minimum(whole + up.astype(jnp.int32), MAX_CODE)
    return jnp.where(scale > 0, codes, 0)


@dataclass(frozen=True)
class Int8G64(base.Codec):
    """Codes int8 [..., token, dim] in [-127, 127], scales float16 [..., token, dim/64].

    A scale is amax * fl32(1/127), a float32 product, rounded to float16; codes are x / scale,
    rounded to nearest, ties to even. A group with amax below 127 * 2**-25 has scale 0 and is 0.
    """

    name: str = "int8_g64"

    @property
    def code_dtype(self) -> Any:
        return jnp.int8

    @property
    def scale_dtype(self) -> Any:
        return jnp.float16

    def code_width(self, head_dim: int) -> int:
        return base.check_head_dim(head_dim)

    def scale_width(self, head_dim: int) -> int:
        return base.check_head_dim(head_dim) // GROUP

    def encode(self, x: Float[Array, "*plane token dim"]) -> base.Encoded:
        *plane, dim = x.shape
        groups = self.scale_width(dim)
        grouped = bits.to_float32(x).reshape(*plane, groups, GROUP)
        negative, magnitude = bits.split_sign(grouped, MAX_MAGNITUDE)
        scale = group_scale(jnp.max(magnitude, axis=-1))
        codes = divide_to_int(magnitude, scale)
        codes = jnp.where(negative, -codes, codes).reshape(x.shape)
        return base.Encoded(codes.astype(jnp.int8), scale.astype(jnp.float16))

    def decode(self, enc: base.Encoded) -> Float32[Array, "*plane token dim"]:
        *plane, dim = enc.codes.shape
        self.check_encoded(enc, dim)
        assert enc.scales is not None
        codes = enc.codes.reshape(*plane, dim // GROUP, GROUP).astype(jnp.float32)
        return (codes * enc.scales.astype(jnp.float32)[..., None]).reshape(enc.codes.shape)
