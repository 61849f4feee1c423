"""What the 4-bit codecs share: an E4M3 scale per group, and codes by comparison."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.codecs import base, bits


class Cut(NamedTuple):
    """A threshold: values above `at` are past it, and `at` itself if `at_too`."""

    at: float
    at_too: bool


class ScaleRule(NamedTuple):
    """How a group's largest magnitude becomes its E4M3 scale.

    Attributes:
      divisor: the scale is amax / divisor, rounded to nearest E4M3, ties to even, at most 448,
        wherever that is 2**-6 or more.
      cuts: thresholds of amax in units of 2**-9 from which the scale is 2, 3, .. 8 of those
        units; it is 1 unit below them all. Plain rounding would here give scales whose largest
        code decodes to a magnitude with another scale, and so bytes that change when packed,
        restored and packed again.
    """

    divisor: int
    cuts: tuple[Cut, ...]


def count_past(
    x: Float32[Array, "*group channel"], cuts: tuple[Cut, ...], unit: Any
) -> Int32[Array, "*group channel"]:
    """How many of the cuts, times `unit`, each value is past."""
    count = jnp.zeros(x.shape, jnp.int32)
    for cut in cuts:
        threshold = cut.at * unit
        past = x >= threshold if cut.at_too else x > threshold
        count = count + past.astype(jnp.int32)
    return count


def group_scale(amax: Float32[Array, "*group"], rule: ScaleRule) -> Float32[Array, "*group"]:
    """E4M3 scale of each group in float32, in [2**-9, 448]; amax is finite and not negative.

    The quotient of reals is rounded: a float32 guess just below it finds the E4M3 value below,
    and the midpoint to the next value, times the divisor, is exact in float32.
    """
    guess = amax * ((1.0 - 2.0**-20) / rule.divisor)
    guess_bits = bits.float_bits(jnp.clip(guess, 2.0**-6, bits.E4M3_MAX))
    low = bits.bits_float(guess_bits & ~0xFFFFF)
    half_step = bits.bits_float((guess_bits & bits.INF_BITS) - (4 << 23))
    middle = (low + half_step) * rule.divisor
    is_odd = ((guess_bits >> 20) & 1) == 1
    up = (amax > middle) | ((amax == middle) & is_odd)
    normal = jnp.minimum(jnp.where(up, low + 2.0 * half_step, low), bits.E4M3_MAX)
    units = 1 + count_past(amax, rule.cuts, bits.E4M3_TINY)
    return jnp.where(units < 8, units.astype(jnp.float32) * bits.E4M3_TINY, normal)


@dataclass(frozen=True)
class FourBit(base.Codec):
    """Codes uint8 [..., token, dim/2], scales uint8 [..., token, dim/group] of E4M3 bits.

    A nibble is a sign bit over a 3-bit magnitude code; byte c holds channel c in its low nibble
    and channel c + dim/2 in its high one. Scale g is that of channels [g * group, (g+1) * group).
    A group whose codes are all zero has scale byte 0; no other group has. No -0 codes.

    Attributes:
      group: channels under one scale.
    """

    group: int

    @property
    def code_dtype(self) -> Any:
        return jnp.uint8

    @property
    def scale_dtype(self) -> Any:
        return jnp.uint8

    @property
    def is_cold(self) -> bool:
        return True

    def code_width(self, head_dim: int) -> int:
        return base.check_head_dim(head_dim) // 2

    def scale_width(self, head_dim: int) -> int:
        return base.check_head_dim(head_dim) // self.group

    @property
    def max_code_value(self) -> float:
        """Value of the largest magnitude code."""
        raise NotImplementedError

    def encode_groups(
        self, magnitude: Float32[Array, "*group channel"]
    ) -> tuple[Int32[Array, "*group channel"], Float32[Array, "*group"]]:
        """Magnitude codes in [0, 7] and scales of whole groups."""
        raise NotImplementedError

    def code_values(self, codes: Int32[Array, "..."]) -> Float32[Array, "..."]:
        """Value of each magnitude code in [0, 7]."""
        raise NotImplementedError

    def encode(self, x: Float[Array, "*plane token dim"]) -> base.Encoded:
        *plane, dim = x.shape
        grouped = (*plane, self.scale_width(dim), self.group)
        limit = self.max_code_value * bits.E4M3_MAX
        negative, magnitude = bits.split_sign(bits.to_float32(x).reshape(grouped), limit)
        codes, scale = self.encode_groups(magnitude)
        scale = jnp.where(jnp.max(codes, axis=-1) > 0, scale, 0.0)
        codes = jnp.where(negative & (codes > 0), codes + 8, codes)
        scale_codes = bits.round_to_e4m3(scale).astype(jnp.uint8)
        return base.Encoded(bits.pack_nibbles(codes.reshape(x.shape)), scale_codes)

    def decode(self, enc: base.Encoded) -> Float32[Array, "*plane token dim"]:
        *plane, half = enc.codes.shape
        self.check_encoded(enc, 2 * half)
        assert enc.scales is not None
        codes = bits.unpack_nibbles(enc.codes)
        values = self.code_values(codes & 7)
        values = jnp.where((codes & 8) != 0, -values, values)
        scale = bits.e4m3_to_float(enc.scales.astype(jnp.int32))
        grouped = values.reshape(*plane, scale.shape[-1], self.group) * scale[..., None]
        return grouped.reshape(*plane, 2 * half)
