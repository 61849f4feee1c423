"""The op as kernels: a tile of token rows is gathered, transcoded in registers, and scattered.

Each piece of work is some rows of one plane of one page. Nothing but the source's bytes is read and
nothing but the target's written. A bank in host memory is read directly, and written by way of a
few records on the device.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int32, UInt8

from pallas_kernels import launch, packed, tiles
from pallas_kernels.banks import is_host
from pallas_kernels.codecs import Codec
from pallas_kernels.page_copy.pairs import Pairs
from pallas_kernels.page_layout import PageLayout, Payload, unflatten
from pallas_kernels.requantize.staged import pack_to_host
from pallas_kernels.tiles.lanes import Grouped, Tile


class Tuning(NamedTuple):
    """How the work is cut, chosen by `python -m benchmarks.kernels --tune`.

    Attributes:
      programs: that run at once.
      rows: token rows of a tile; a power of two.
      num_warps: per program.
    """

    programs: int
    rows: int
    num_warps: int


PACK: Final = Tuning(132 * 128, 32, 4)
PACK_BY_GROUP: Final = Tuning(132 * 128, 8, 4)  # where threads take whole groups
WARP: Final = 32  # threads
VALUES_BY_GROUP: Final = 64 * WARP  # of a tile there, at least
RESTORE: Final = Tuning(132 * 64, 64, 4)
RESTORE_FROM_HOST: Final = Tuning(132, 32, 4)


class _Leaf(NamedTuple):
    """Where a format's planes are: in the pool, or in a record.

    Attributes:
      codec: of the planes.
      codes, scales: operand of the pool, or word offset in the record.
    """

    codec: Codec
    codes: int
    scales: int


class _Geometry(NamedTuple):
    """What a kernel knows of the two layouts.

    Attributes:
      pairs: the (pool format, record format) pairs that occur.
      planes: per plane its pair, its position in the pool's format and in the record's.
      rows: token rows of a plane, all heads.
      dim: channels.
    """

    pairs: tuple[tuple[_Leaf, _Leaf], ...]
    planes: np.ndarray
    rows: int
    dim: int


def _geometry(hot: PageLayout, cold: PageLayout) -> _Geometry:
    in_pool, operand = [], 0
    for group in hot.groups:
        scaled = group.codec.scale_dtype is not None
        in_pool.append(_Leaf(group.codec, operand, operand + 1 if scaled else -1))
        operand += 1 + scaled
    in_record = []
    for group in cold.groups:
        first = cold.plane_fields[group.planes[0]]
        offsets = (first.codes_offset // launch.WORD, first.scales_offset // launch.WORD)
        in_record.append(_Leaf(group.codec, *offsets))
    found: dict[tuple[int, int], int] = {}
    planes = []
    for layer in range(hot.num_layers):
        for kv in (0, 1):
            (a, i), (b, j) = hot.find(layer, kv), cold.find(layer, kv)
            planes.append((found.setdefault((a, b), len(found)), i, j))
    pairs = tuple((in_pool[a], in_record[b]) for a, b in found)
    return _Geometry(
        pairs, np.asarray(planes, np.int32), hot.num_kv_heads * hot.page_size, hot.head_dim
    )


def _pool_words(pool: Payload, layout: PageLayout) -> list[Array]:
    """Leaves as words: codes [page, plane, row, word], scales [page, plane, word]."""
    leaves, rows = [], layout.num_kv_heads * layout.page_size
    for encoded in pool:
        pages, planes = encoded.codes.shape[:2]
        size = encoded.codes.shape[-1] * encoded.codes.dtype.itemsize // launch.WORD
        leaves.append(launch.as_words(encoded.codes, pages, planes, rows, size))
        if encoded.scales is not None:
            size = rows * encoded.scales.shape[-1] * encoded.scales.dtype.itemsize
            leaves.append(launch.as_words(encoded.scales, pages, planes, size // launch.WORD))
    return leaves


class _Work(NamedTuple):
    """A piece of work.

    Attributes:
      pair: its number.
      source, target: page and slot, or slot and page.
      formats: of the plane, in the pool and in the record.
      in_pool, in_record: position of the plane in either format.
      row: the first of the tile.
    """

    pair: Array
    source: Array
    target: Array
    formats: tuple[_Leaf, _Leaf]
    in_pool: Array
    in_record: Array
    row: Array


def _each_tile(
    geometry: _Geometry, rows: int, tables: tuple[Any, ...], work: Callable[[_Work], None]
) -> None:
    """Spreads all there is to do over the programs; `tables` are references of `_tables`."""
    number_ref, sources_ref, targets_ref, planes_ref = tables
    per_plane = geometry.rows // rows
    per_page = len(geometry.planes) * per_plane
    in_order = np.arange(len(geometry.planes))[:, None] * [0, 1, 1]

    def piece(w):
        pair, rest = w // per_page, w % per_page
        plane, row = rest // per_plane, (rest % per_plane) * rows
        # Before any branch, so that nothing waits for one load after the other.
        source, target = sources_ref[pair], targets_ref[pair]
        if np.array_equal(geometry.planes, in_order):
            work(_Work(pair, source, target, geometry.pairs[0], plane, plane, row))
            return
        which, in_pool, in_record = (planes_ref[plane, jnp.int32(i)] for i in range(3))
        for number, formats in enumerate(geometry.pairs):

            @launch.when(which == number)
            def _(formats=formats):
                work(_Work(pair, source, target, formats, in_pool, in_record, row))

    launch.strided_loop(number_ref[0] * per_page, piece)


class _PoolTile(NamedTuple):
    """Some rows of a plane in the pool: where to read or write them."""

    refs: tuple
    leaf: _Leaf
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


class _RecordTile(NamedTuple):
    """The same in a record, where the rows of a plane lie one after the other."""

    ref: Any
    leaf: _Leaf
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


def _transcode(
    source: _PoolTile | _RecordTile, target: _PoolTile | _RecordTile, rows: int, dim: int
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
    if stored.scales is not None:
        words = tiles.pack_scales(after, stored.scales, dim)
        launch.write(target.scales(rows, words.shape[0]), words)
    return stored.finite


def _pieces(
    place: _PoolTile | _RecordTile, rows: int, by_group: packed.Transcoder, dim: int
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


def _scales(place: _PoolTile | _RecordTile, rows: int, dim: int) -> Grouped | None:
    size = tiles.scale_words(place.leaf.codec, rows, dim)
    if not size:
        return None
    return tiles.unpack_scales(place.leaf.codec, launch.read(place.scales(rows, size)), rows, dim)


def _decoded(place: _PoolTile | _RecordTile, codes: tuple, rows: int, dim: int) -> Tile:
    """The values of a tile of which the codes were read."""
    return tiles.decode(place.leaf.codec, codes, _scales(place, rows, dim), dim)


def _parts(codec: Codec, dim: int) -> tuple[int, int]:
    """(parts of a row, words of each)."""
    parts = tiles.num_parts(codec)
    return parts, tiles.words_per_row(codec, dim) // parts


def pack(
    pool: Payload, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, source: PageLayout,
    target: PageLayout, tuning: Tuning | None = None, interpret: bool = False,
) -> tuple[UInt8[Array, "slots bytes"], Int32[Array, "n"]]:  # fmt: skip
    geometry = _geometry(source, target)
    formats = [(of_pool.codec, of_record.codec) for of_pool, of_record in geometry.pairs]
    by_group = all(packed.transcoder(*pair, source.head_dim) for pair in formats)
    tuning = _fitting(tuning or (PACK_BY_GROUP if by_group else PACK), formats, source)
    pack_some = functools.partial(
        _pack, pool, source=source, geometry=geometry, tuning=tuning, interpret=interpret
    )
    if not is_host(bank):
        return pack_some(bank, pairs)
    return pack_to_host(pack_some, bank, pairs, interpret=interpret)


def _pack(
    pool: Payload, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, source: PageLayout,
    geometry: _Geometry, tuning: Tuning, interpret: bool,
) -> tuple[UInt8[Array, "slots bytes"], Int32[Array, "n"]]:  # fmt: skip
    rows = tuning.rows

    def body(*refs):
        *tables, places_ref = refs[:5]
        *leaf_refs, bank_ref, flags_ref = refs[5:]

        def work(w: _Work) -> None:
            in_pool, in_record = w.formats
            page = _PoolTile(tuple(leaf_refs), in_pool, w.source, w.in_pool, w.row)
            slot = _RecordTile(bank_ref, in_record, w.target, w.in_record, w.row, geometry.rows)
            finite = _transcode(page, slot, rows, geometry.dim)

            @launch.when(~finite)
            def _():
                launch.write(flags_ref.at[places_ref[w.pair]], jnp.int32(0))

        _each_tile(geometry, rows, tuple(tables), work)

    operands = [
        *_tables(pairs, geometry),
        pairs.places,
        *_pool_words(pool, source),
        launch.records_as_words(bank),
    ]
    words, flags = launch.kernel_call(
        body, [*operands, pairs.flags], 2,
        grid=_grid(tuning, pairs, geometry), name="requantize_pack", num_warps=tuning.num_warps,
        interpret=interpret,
    )  # fmt: skip
    return launch.of_units(words, bank), flags


def restore(
    pool: Payload, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, source: PageLayout,
    target: PageLayout, tuning: Tuning | None = None, interpret: bool = False,
) -> Payload:  # fmt: skip
    tuning = tuning or (RESTORE_FROM_HOST if is_host(bank) else RESTORE)
    geometry = _geometry(source, target)
    formats = [(of_record.codec, of_pool.codec) for of_pool, of_record in geometry.pairs]
    tuning = _fitting(tuning, formats, source)
    rows = tuning.rows

    def body(*refs):
        tables, (bank_ref, *leaf_refs) = refs[:4], refs[4:]

        def work(w: _Work) -> None:
            in_pool, in_record = w.formats
            slot = _RecordTile(bank_ref, in_record, w.source, w.in_record, w.row, geometry.rows)
            page = _PoolTile(tuple(leaf_refs), in_pool, w.target, w.in_pool, w.row)
            _transcode(slot, page, rows, geometry.dim)

        _each_tile(geometry, rows, tables, work)

    leaves = _pool_words(pool, source)
    leaves = launch.kernel_call(
        body, [*_tables(pairs, geometry), launch.records_as_words(bank), *leaves], len(leaves),
        grid=_grid(tuning, pairs, geometry), name="requantize_restore", num_warps=tuning.num_warps,
        interpret=interpret,
    )  # fmt: skip
    old = jax.tree.leaves(pool)
    return unflatten(
        source, [launch.of_units(x, leaf) for x, leaf in zip(leaves, old, strict=True)]
    )


def _fitting(tuning: Tuning, formats: list[tuple[Codec, Codec]], pool: PageLayout) -> Tuning:
    """The tuning, with tiles no larger than a page of one head or than registers hold.

    Where threads take whole groups, tiles have some values for each thread of a warp, and there are
    no more warps than that needs.
    """
    most_rows = min(tiles.most_rows(target) for _, target in formats)
    by_group = [x for pair in formats if (x := packed.transcoder(*pair, pool.head_dim))]
    per_row = [x.groups * x.piece // packed.IN_THREAD for x in by_group]
    rows = tuning.rows
    if by_group:
        rows = max(rows, VALUES_BY_GROUP // pool.head_dim, WARP // min(per_row))
    rows = min(rows, pool.page_size, most_rows)
    threads = rows * max(per_row, default=WARP * tuning.num_warps)
    return tuning._replace(rows=rows, num_warps=min(tuning.num_warps, max(1, threads // WARP)))


def _grid(tuning: Tuning, pairs: Pairs, geometry: _Geometry) -> tuple[int]:
    """As many programs as there can be work for, at most."""
    tiles_per_page = len(geometry.planes) * (geometry.rows // tuning.rows)
    return (min(tuning.programs, pairs.sources.shape[0] * tiles_per_page),)


def _tables(pairs: Pairs, geometry: _Geometry) -> list[Array]:
    return [*pairs.operands(), jnp.asarray(geometry.planes)]
