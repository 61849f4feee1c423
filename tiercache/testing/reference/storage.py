# pyright: reportArgumentType=false
# Infos here hold Python and NumPy numbers in place of arrays.
"""Pages as bytes: what each token stores in each plane, and how a page becomes a record."""

import dataclasses
import functools
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from pallas_kernels.page_layout import K, V
from tiercache.codecs import Encoded, get_codec
from tiercache.spec import CacheSpec, Formats


@runtime_checkable
class Codecs(Protocol):
    """Storage formats by name, over NumPy arrays whose last two axes are token and channel."""

    def encode(self, name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Codes and scales, one row each per token; no scales where the format has none."""
        ...

    def decode(self, name: str, codes: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
        """Float32 values."""
        ...


class LibraryCodecs:
    """The library's own codecs, applied to few pages alone. Tests may pass an oracle instead."""

    def encode(self, name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        codes, scales = _jitted(name)[0](x)
        return np.asarray(codes), None if scales is None else np.asarray(scales)

    def decode(self, name: str, codes: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
        return np.asarray(_jitted(name)[1](Encoded(codes, scales)))


@functools.cache
def _jitted(name: str):
    codec = get_codec(name)
    return jax.jit(codec.encode), jax.jit(codec.decode)


class Plane(NamedTuple):
    """K or V of one layer, for one page: [head, token, width] each."""

    codes: np.ndarray
    scales: np.ndarray | None


@dataclasses.dataclass
class Page:
    """What a page holds, in one tier's formats.

    Attributes:
      formats: (K codec, V codec) per layer.
      planes: by (layer, K or V); made when the first token is written.
      written: offsets of the tokens that somebody wrote. The rest is whatever was there before.
    """

    formats: Formats
    planes: dict[tuple[int, int], Plane]
    written: set[int]

    @classmethod
    def empty(cls, formats: Formats) -> "Page":
        return cls(formats, {}, set())

    def copy(self) -> "Page":
        planes = {
            where: Plane(*(None if x is None else x.copy() for x in plane))
            for where, plane in self.planes.items()
        }
        return Page(self.formats, planes, set(self.written))

    def write(self, layer: int, kv: int, offset: int, token: "Plane", size: int):
        """Writes one token, [head, width] in the page's format, to a page of `size` tokens."""
        if (layer, kv) not in self.planes:
            blank = [
                None if t is None else np.zeros((len(t), size, t.shape[-1]), t.dtype) for t in token
            ]
            self.planes[layer, kv] = Plane(*blank)
        for leaf, new in zip(self.planes[layer, kv], token, strict=True):
            if leaf is not None and new is not None:
                leaf[:, offset] = new
        self.written.add(offset)

    def values(self, codecs: Codecs) -> dict[tuple[int, int], np.ndarray]:
        """Decoded planes, [head, token, channel]."""
        return {
            (layer, kv): codecs.decode(self.formats[layer][kv], *plane)
            for (layer, kv), plane in self.planes.items()
        }

    def is_finite(self, codecs: Codecs) -> bool:
        """Whether every value of every layer is."""
        return all(np.isfinite(x).all() for x in self.values(codecs).values())

    def transcoded(self, codecs: Codecs, formats: Formats) -> "Page":
        """The same page in other formats."""
        planes = {
            (layer, kv): Plane(*codecs.encode(formats[layer][kv], x))
            for (layer, kv), x in self.values(codecs).items()
        }
        return Page(formats, planes, set(self.written))

    def record(self) -> bytes:
        """All bytes: per codec, in order of first use, the codes of its planes, then the scales."""
        places = [(layer, kv) for layer in range(len(self.formats)) for kv in (K, V)]
        names = dict.fromkeys(self.formats[layer][kv] for layer, kv in places)
        parts = []
        for name in names:
            mine = [self.planes[p] for p in places if self.formats[p[0]][p[1]] == name]
            parts += [plane.codes.tobytes() for plane in mine]
            parts += [plane.scales.tobytes() for plane in mine if plane.scales is not None]
        return b"".join(parts)


Leaves = tuple[np.ndarray, ...]  # one recurrent state: an array per leaf of the spec


def zero_leaves(spec: CacheSpec) -> Leaves:
    """The state that every sequence starts from."""
    return tuple(np.zeros(leaf.shape, np.dtype(leaf.dtype)) for leaf in spec.snapshot_leaves)


def leaves_record(leaves: Leaves) -> bytes:
    """A recurrent state as bytes."""
    return b"".join(leaf.tobytes() for leaf in leaves)
