"""A tile of token rows in its place, in the pool or in a record: read, transcoded and written."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from pallas_kernels import launch, packed, tiles
from pallas_kernels.codecs import Codec
from pallas_kernels.tiles.lanes import Grouped, Tile


class Leaf(NamedTuple):
    """Where a format's planes are: in the pool, or in a record.

    Attributes:
      codec: of the planes.
      codes, scales: operand of the pool, or word offset in the record.
    """

    codec: Codec
    codes: int
    scales: int


class PoolTile(NamedTuple):
    """Some rows of a plane in the pool: where to read or write them."""

    refs: tuple
    leaf: Leaf
    page: Array
    plane: Array
    row: Array

    def part(self, number: int, rows: int, words: int):
        columns = launch.dslice(number * words, words)
        return self.refs[self.leaf.codes].at[
            self.page, self.plane, launch.dslice(self.row, rows), columns
        ]

    def scales(self, rows: int, words: int):
        first = self.row // rows * words
        return self.refs[self.leaf.scales].at[self.page, self.plane, launch.dslice(first, words)]

    def read(self, rows: int, dim: int) -> Tile:
        parts, words = _parts(self.leaf.codec, dim)
        codes = tuple(launch.read(self.part(i, rows, words)) for i in range(parts))
        return _decoded(self, codes, rows, dim)

    def words(self, row: Array, column: Array, width: int):
        return self.refs[self.leaf.codes].at[self.page, self.plane, self.row + row, column]

    def write(self, stored: tiles.Stored, rows: int) -> None:
        for number, codes in enumerate(stored.codes):
            launch.write(self.part(number, rows, codes.shape[1]), codes)
        if stored.scales is not None:
            launch.write(self.scales(rows, stored.scales.shape[0]), stored.scales)


class RecordTile(NamedTuple):
    """The same in a record, where the rows of a plane lie one after the other."""

    ref: Any
    leaf: Leaf
    slot: Array
    plane: Array
    row: Array
    plane_rows: int

    def codes(self, rows: int, words: int):
        first = self.leaf.codes + (self.plane * self.plane_rows + self.row) * words
        return self.ref.at[self.slot, launch.dslice(first, rows * words)]

    def scales(self, rows: int, words: int):
        tile = (self.plane * self.plane_rows + self.row) // rows
        return self.ref.at[self.slot, launch.dslice(self.leaf.scales + tile * words, words)]

    def words(self, row: Array, column: Array, width: int):
        first = self.leaf.codes + (self.plane * self.plane_rows + self.row) * width
        return self.ref.at[self.slot, first + row * width + column]

    def read(self, rows: int, dim: int) -> Tile:
        parts, words = _parts(self.leaf.codec, dim)
        flat = launch.read(self.codes(rows, parts * words))
        if parts == 1:
            codes = (flat.reshape(rows, words),)
        else:
            halves = jnp.transpose(flat.reshape(rows, 2, words), (0, 2, 1))
            codes = tuple(lax.unstack(halves, axis=2))
        return _decoded(self, codes, rows, dim)

    def write(self, stored: tiles.Stored, rows: int) -> None:
        codes = stored.codes[0]
        if len(stored.codes) == 2:
            codes = jnp.transpose(lax.stack(list(stored.codes), axis=2), (0, 2, 1))
        words = codes.size // rows
        launch.write(self.codes(rows, words), codes.reshape(rows * words))
        if stored.scales is not None:
            launch.write(self.scales(rows, stored.scales.shape[0]), stored.scales)


def transcode(
    source: PoolTile | RecordTile, target: PoolTile | RecordTile, rows: int, dim: int
) -> Bool[Array, ""]:
    """Reads, transcodes and writes some rows; returns whether every value was finite."""
    before, after = source.leaf.codec, target.leaf.codec
    by_group = packed.transcoder(before, after, dim)
    if by_group is None:
        stored = tiles.encode(
            after, source.read(rows, dim), dim, short=True, narrow=tiles.is_narrow(before)
        )
        target.write(stored, rows)
        return stored.finite
    read, written = (_pieces(place, rows, by_group, dim) for place in (source, target))
    parts = tuple(tuple(launch.read(piece) for piece in part) for part in read)
    stored = by_group.run(parts, _scales(source, rows, dim))
    for part, pieces in zip(written, stored.parts, strict=True):
        for place, piece in zip(part, pieces, strict=True):
            launch.write(place, piece)
    words = tiles.pack_scales(after, stored.scales, dim)
    launch.write(target.scales(rows, words.shape[0]), words)
    return stored.finite


def _pieces(
    place: PoolTile | RecordTile, rows: int, by_group: packed.Transcoder, dim: int
) -> list[list[Any]]:
    """Per part where the pieces of all groups are."""
    parts, words = _parts(place.leaf.codec, dim)
    shape = (rows, by_group.groups, by_group.piece)
    row, group, word = (launch.iota(shape, axis) for axis in range(3))
    size = words // by_group.groups
    return [
        [
            place.words(row, part * words + group * size + first + word, parts * words)
            for first in range(0, size, by_group.piece)
        ]
        for part in range(parts)
    ]


def _scales(place: PoolTile | RecordTile, rows: int, dim: int) -> Grouped | None:
    size = tiles.scale_words(place.leaf.codec, rows, dim)
    if not size:
        return None
    return tiles.unpack_scales(place.leaf.codec, launch.read(place.scales(rows, size)), rows, dim)


def _decoded(place: PoolTile | RecordTile, codes: tuple, rows: int, dim: int) -> Tile:
    """The values of a tile of which the codes were read."""
    return tiles.decode(place.leaf.codec, codes, _scales(place, rows, dim), dim)


def _parts(codec: Codec, dim: int) -> tuple[int, int]:
    """(parts of a row, words of each)."""
    parts = tiles.num_parts(codec)
    return parts, tiles.words_per_row(codec, dim) // parts
