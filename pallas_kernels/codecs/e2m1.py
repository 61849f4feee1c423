"""`nvfp4_g16` and `e2m1_g64`: E2M1 codes under one E4M3 scale per 16 or 64 channels."""

from dataclasses import dataclass
from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from pallas_kernels.codecs import bits, four_bit
from pallas_kernels.codecs.four_bit import Cut

BY_SIX: Final = four_bit.ScaleRule(
    divisor=6,
    cuts=(
        Cut(7.0, False),
        Cut(15.0, False),
        Cut(21.0, True),
        Cut(27.0, False),
        Cut(33.0, True),
        Cut(39.0, False),
        Cut(45.0, True),
    ),
)
BY_FOUR: Final = four_bit.ScaleRule(
    divisor=4,
    cuts=(
        Cut(7.0, False),
        Cut(10.5, True),
        Cut(14.0, True),
        Cut(18.0, False),
        Cut(22.0, True),
        Cut(26.0, False),
        Cut(30.0, True),
    ),
)
CODE_CUTS: Final = (
    Cut(0.25, False),
    Cut(0.75, True),
    Cut(1.25, False),
    Cut(1.75, True),
    Cut(2.5, False),
    Cut(3.5, True),
    Cut(5.0, False),
)
MAX_ERROR: Final = 5792.0  # 64 squares of it fit an int32


def quantize(
    magnitude: Float32[Array, "*group channel"], scale: Float32[Array, "*group"]
) -> Int32[Array, "*group channel"]:
    """E2M1 codes of magnitude / scale: nearest, ties to even, at most 7 (the value 6)."""
    return four_bit.count_past(magnitude, CODE_CUTS, scale[..., None])


def code_values(codes: Int32[Array, "..."]) -> Float32[Array, "..."]:
    """{0, .5, 1, 1.5, 2, 3, 4, 6} for the codes 0..7."""
    shift = jnp.maximum((codes >> 1) - 1, 0)
    twice = jnp.where(codes < 2, codes, ((codes & 1) | 2) << shift)
    return twice.astype(jnp.float32) * 0.5


def squared_error(
    magnitude: Float32[Array, "*group channel"],
    codes: Int32[Array, "*group channel"],
    scale: Float32[Array, "*group"],
    amax: Float32[Array, "*group"],
) -> Int32[Array, "*group"]:
    """Squared error of each group, every error truncated to 2**-13 of amax's power of two.

    Integers, because a float sum depends on its order, and the choice of a scale must not.
    """
    values = code_values(codes) * scale[..., None]
    units = error_in_units(error_unit(amax)[..., None], magnitude, values)
    return jnp.sum(units * units, axis=-1, dtype=jnp.int32)


def error_unit(amax: Float32[Array, "..."]) -> Float32[Array, "..."]:
    """Units of error per 1: 2**13 for an amax in [1, 2), and so on."""
    exponent = jnp.maximum(bits.float_bits(amax) >> 23, 110)
    return bits.bits_float((267 - exponent) << 23)


def error_in_units(
    per_unit: Float32[Array, "..."], magnitude: Float32[Array, "..."], values: Float32[Array, "..."]
) -> Int32[Array, "..."]:
    """|magnitude - value|, truncated to whole units."""
    return jnp.minimum(jnp.abs(magnitude - values) * per_unit, MAX_ERROR).astype(jnp.int32)


def is_also_by_four(
    codes: Int32[Array, "*group channel"], scale: Float32[Array, "*group"]
) -> Bool[Array, "*group"]:
    """Whether 2/3 of every code, under 3/2 of the scale, says the same.

    It does for the values 0, 1.5, 3 and 6, if 3/2 of the scale is an E4M3 value.
    """
    fits = (codes == 0) | (codes == 3) | (codes == 5) | (codes == 7)
    return has_raised_scale(scale) & (jnp.min(fits.astype(jnp.int32), axis=-1) == 1)


def has_raised_scale(scale: Float32[Array, "..."]) -> Bool[Array, "..."]:
    """Whether 3/2 of a scale is an E4M3 value."""
    raised = 1.5 * scale
    in_units = raised / bits.E4M3_TINY
    is_e4m3 = ((bits.float_bits(raised) & 0xFFFFF) == 0) & (raised <= bits.E4M3_MAX)
    return is_e4m3 & (in_units == in_units.astype(jnp.int32).astype(jnp.float32))


@dataclass(frozen=True)
class E2m1(four_bit.FourBit):
    """Codes are E2M1 (OCP Microscaling FP4: magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6) of x / scale.

    Rounding is to nearest, ties to even, as in `ml_dtypes.float4_e2m1fn`. NVFP4 is this with one
    E4M3 scale per 16 channels and no scale per tensor.

    A scale is amax/6 in E4M3. In units of 2**-9 it is 1 for amax up to and with 7, 2 up to and
    with 15, and rounds to nearest, ties to even, from there on. With `search` a group may have
    amax/4 instead, where that has the smaller squared error: 1 unit up to and with 7, 2 below
    10.5, 3 below 14, and to nearest, ties to even, from there on. A group that both scales
    store without a difference takes amax/4, so that bytes depend on the stored values alone.

    Attributes:
      search: whether each group takes the better of amax/6 and amax/4.
    """

    search: bool

    @property
    def max_code_value(self) -> float:
        return 6.0

    def encode_groups(
        self, magnitude: Float32[Array, "*group channel"]
    ) -> tuple[Int32[Array, "*group channel"], Float32[Array, "*group"]]:
        amax = jnp.max(magnitude, axis=-1)
        scale = four_bit.group_scale(amax, BY_SIX)
        codes = quantize(magnitude, scale)
        if not self.search:
            return codes, scale
        scale4 = four_bit.group_scale(amax, BY_FOUR)
        codes4 = quantize(magnitude, scale4)
        error = squared_error(magnitude, codes, scale, amax)
        error4 = squared_error(magnitude, codes4, scale4, amax)
        also = is_also_by_four(codes, scale)
        codes = jnp.where(also[..., None], jnp.maximum(codes - 1, 0), codes)
        scale = jnp.where(also, 1.5 * scale, scale)
        by_four = error4 < error
        return jnp.where(by_four[..., None], codes4, codes), jnp.where(by_four, scale4, scale)

    def code_values(self, codes: Int32[Array, "..."]) -> Float32[Array, "..."]:
        return code_values(codes)
