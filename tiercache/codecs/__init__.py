"""Storage formats of K and V rows, by name; see `pallas_kernels.codecs`."""

from pallas_kernels.codecs import (
    CODECS,
    HEAD_DIMS,
    Codec,
    Encoded,
    get_codec,
    is_byte_stable,
    is_finite,
)

__all__ = [
    "CODECS",
    "HEAD_DIMS",
    "Codec",
    "Encoded",
    "get_codec",
    "is_byte_stable",
    "is_finite",
]
