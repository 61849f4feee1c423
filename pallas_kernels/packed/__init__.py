"""Transcoding without floats: several values per instruction, and a thread for every group.

What `tiles` does for every pair of formats, this does for those that serving moves most, in a
third of the instructions, with the same bytes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from pallas_kernels.codecs import Codec, int8_g64
from pallas_kernels.codecs.bf16 import Bf16
from pallas_kernels.codecs.e2m1 import E2m1
from pallas_kernels.codecs.int4_g16 import Int4G16
from pallas_kernels.codecs.int8_g64 import Int8G64
from pallas_kernels.packed import from_bf16, from_int8, to_int8
from pallas_kernels.packed.pieces import IN_THREAD, Packed, Pieces
from pallas_kernels.tiles.lanes import groups_per_half

__all__ = ["Packed", "Pieces", "Transcoder", "transcoder"]


class Transcoder(NamedTuple):
    """From one format to another.

    Attributes:
      groups: per row and half of the channels; at least 1.
      threads: that share a group.
      run: takes the parts of some rows, and their scales where there are any.
    """

    groups: int
    threads: int
    run: Callable[[tuple[Pieces, ...], Any], Packed]

    @property
    def piece(self) -> int:
        """Words of a piece."""
        return self.threads * IN_THREAD


def transcoder(source: Codec, target: Codec, dim: int) -> Transcoder | None:
    """What takes rows of `dim` channels from `source` to `target`; None if nothing here does."""
    match source, target:
        case Bf16(), (E2m1(search=False, group=group) | Int4G16(group=group)):
            run, threads = partial(from_bf16.to_four_bit, target, dim), 1
        case Int8G64(), E2m1(search=False, group=int8_g64.GROUP as group):
            run, threads = partial(from_int8.to_e2m1, target, dim), 2
        case E2m1(group=int8_g64.GROUP as group), Int8G64():
            run, threads = partial(to_int8.from_e2m1, source, dim), 2
        case _:
            return None
    return Transcoder(groups_per_half(group, dim), threads, run)
