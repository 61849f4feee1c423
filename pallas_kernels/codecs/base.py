"""What a codec is: names, widths, and the pair encode/decode."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Shaped

HEAD_DIMS: Final = (64, 128, 256)


class Encoded(NamedTuple):
    """Stored form of K or V rows.

    Attributes:
      codes: one row of codes per token, `codec.code_dtype`.
      scales: one row of scales per token, `codec.scale_dtype`; None where the codec has none.
    """

    codes: Shaped[Array, "*plane token code_width"]
    scales: Shaped[Array, "*plane token scale_width"] | None


@dataclass(frozen=True)
class Codec:
    """A storage format of K or V rows; hashable, so it may be a static argument.

    Bytes are the same on every backend, and depend on the input values alone.

    Attributes:
      name: canonical text, flags included, such as "nvfp4_g16+search".
    """

    name: str

    @property
    def code_dtype(self) -> Any:
        """Dtype of the stored codes."""
        raise NotImplementedError

    @property
    def scale_dtype(self) -> Any:
        """Dtype of the stored scales; None where the codec has none."""
        raise NotImplementedError

    @property
    def is_cold(self) -> bool:
        """Whether a cold tier may use it without being forced: true of the 4-bit codecs."""
        return False

    def code_width(self, head_dim: int) -> int:
        """Stored codes per token of one head."""
        raise NotImplementedError

    def scale_width(self, head_dim: int) -> int:
        """Stored scales per token of one head."""
        raise NotImplementedError

    def bytes_per_token(self, head_dim: int) -> int:
        """Stored bytes per token of one head, K or V: codes and scales."""
        codes = self.code_width(head_dim) * jnp.dtype(self.code_dtype).itemsize
        if self.scale_dtype is None:
            return codes
        return codes + self.scale_width(head_dim) * jnp.dtype(self.scale_dtype).itemsize

    def encode(self, x: Float[Array, "*plane token dim"]) -> Encoded:
        """Stores float32, bfloat16 or float16 rows.

        Magnitudes past the format saturate, infinities too. A NaN is stored as 0 and its group
        is scaled by the other values; callers who must not lose one ask `is_finite` first.

        Raises:
          ValueError: while tracing, on a head_dim or dtype that no codec knows.
        """
        raise NotImplementedError

    def decode(self, enc: Encoded) -> Float32[Array, "*plane token dim"]:
        """The stored values.

        Raises:
          ValueError: while tracing, on widths or dtypes that are not this codec's, or on scales
            that are absent.
        """
        raise NotImplementedError

    def check_encoded(self, enc: Encoded, head_dim: int) -> None:
        """Raises ValueError unless `enc` has this codec's widths and dtypes at `head_dim`."""
        scaled = self.scale_dtype is not None
        if scaled != (enc.scales is not None):
            raise ValueError(f"{self.name} {'needs' if scaled else 'has no'} scales.")
        _check_leaf(self.name, "codes", enc.codes, self.code_width(head_dim), self.code_dtype)
        if enc.scales is not None:
            _check_leaf(
                self.name, "scales", enc.scales, self.scale_width(head_dim), self.scale_dtype
            )


def _check_leaf(name: str, leaf: str, value: Array, width: int, dtype: Any) -> None:
    if value.shape[-1] != width or value.dtype != jnp.dtype(dtype):
        raise ValueError(
            f"{name} {leaf} are {width} of {jnp.dtype(dtype)} per token, "
            f"not {value.shape[-1]} of {value.dtype}."
        )


def check_head_dim(head_dim: int) -> int:
    """Gives `head_dim` back.

    Raises:
      ValueError: if it is not 64, 128 or 256.
    """
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim={head_dim} is not one of {HEAD_DIMS}.")
    return head_dim


def is_finite(x: Float[Array, "*plane token dim"]) -> Bool[Array, "*plane"]:
    """Whether every value of a plane (its tokens and channels) is finite."""
    return jnp.all(jnp.isfinite(x), axis=(-2, -1))
