"""`bf16`: the rows as they are, rounded to bfloat16 if they were wider."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from pallas_kernels.codecs import base, bits


@dataclass(frozen=True)
class Bf16(base.Codec):
    """Codes bfloat16 [..., token, dim], no scales. Infinities and NaN are kept."""

    name: str = "bf16"

    @property
    def code_dtype(self) -> Any:
        return jnp.bfloat16

    @property
    def scale_dtype(self) -> Any:
        return None

    def code_width(self, head_dim: int) -> int:
        return base.check_head_dim(head_dim)

    def scale_width(self, head_dim: int) -> int:
        base.check_head_dim(head_dim)
        return 0

    def encode(self, x: Float[Array, "*plane token dim"]) -> base.Encoded:
        base.check_head_dim(x.shape[-1])
        if x.dtype == jnp.bfloat16:
            return base.Encoded(x, None)
        # Rounded before the cast: a cast down and up again in one program may be dropped.
        return base.Encoded(bits.round_to_bf16(bits.to_float32(x)).astype(jnp.bfloat16), None)

    def decode(self, enc: base.Encoded) -> Float32[Array, "*plane token dim"]:
        self.check_encoded(enc, enc.codes.shape[-1])
        return enc.codes.astype(jnp.float32)
