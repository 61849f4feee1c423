"""Codecs inside kernels: tiles of int32 words to float32 values and back, with the same bytes.

A tile is some token rows of one plane. Its two halves are the channels [0, dim/2) and [dim/2, dim),
which share the bytes of a 4-bit code; each half is four *lanes*, lane i holding the channels 4j + i
in column j. So a word of four bytes is one column of four lanes, and no value changes its thread.
"""

from pallas_kernels.tiles.codes import (
    Stored,
    decode,
    encode,
    is_narrow,
    most_rows,
    num_parts,
    words_per_row,
)
from pallas_kernels.tiles.floats import decode_floats, made_finite
from pallas_kernels.tiles.scales import pack as pack_scales
from pallas_kernels.tiles.scales import scale_unit, scale_words
from pallas_kernels.tiles.scales import unpack as unpack_scales

__all__ = [
    "Stored",
    "decode",
    "decode_floats",
    "encode",
    "is_narrow",
    "made_finite",
    "most_rows",
    "num_parts",
    "pack_scales",
    "scale_unit",
    "scale_words",
    "unpack_scales",
    "words_per_row",
]
