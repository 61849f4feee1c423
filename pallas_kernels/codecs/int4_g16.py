"""`int4_g16`: sign and magnitude 0..7 under one E4M3 scale per 16 channels."""

from dataclasses import dataclass
from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from pallas_kernels.codecs import four_bit
from pallas_kernels.codecs.four_bit import Cut

BY_SEVEN: Final = four_bit.ScaleRule(
    divisor=7,
    cuts=(
        Cut(7.5, True),
        Cut(16.5, True),
        Cut(22.5, True),
        Cut(29.0, True),
        Cut(35.5, True),
        Cut(45.5, False),
        Cut(52.5, True),
    ),
)
CODE_CUTS: Final = tuple(Cut(code + 0.5, code % 2 == 1) for code in range(7))


@dataclass(frozen=True)
class Int4G16(four_bit.FourBit):
    """Codes are |x| / scale, rounded to nearest, ties to even, at most 7.

    A scale is amax/7 in E4M3. In units of 2**-9 it is 1 for amax below 7.5, then 2 up to 16.5,
    3 up to 22.5, 4 up to 29, 5 up to 35.5, 6 up to and with 45.5, 7 up to 52.5, and rounds to
    nearest, ties to even, from there on.
    """

    name: str = "int4_g16"
    group: int = 16

    @property
    def max_code_value(self) -> float:
        return 7.0

    def encode_groups(
        self, magnitude: Float32[Array, "*group channel"]
    ) -> tuple[Int32[Array, "*group channel"], Float32[Array, "*group"]]:
        scale = four_bit.group_scale(jnp.max(magnitude, axis=-1), BY_SEVEN)
        return four_bit.count_past(magnitude, CODE_CUTS, scale[..., None]), scale

    def code_values(self, codes: Int32[Array, "..."]) -> Float32[Array, "..."]:
        return codes.astype(jnp.float32)
