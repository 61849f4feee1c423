"""Storage formats of K and V rows: pure encode and decode, byte-equal on every backend."""

from pallas_kernels.codecs.base import HEAD_DIMS, Codec, Encoded, is_finite
from pallas_kernels.codecs.registry import CODECS, get_codec
from pallas_kernels.codecs.stability import is_byte_stable

__all__ = [
    "CODECS",
    "HEAD_DIMS",
    "Codec",
    "Encoded",
    "get_codec",
    "is_byte_stable",
    "is_finite",
]
