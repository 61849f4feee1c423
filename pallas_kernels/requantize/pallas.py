"""The op as kernels: a tile of token rows is gathered, transcoded in registers, and scattered.

Each piece of work is some rows of one plane of one page. Nothing but the source's bytes is read and
nothing but the target's written. A bank in host memory is read directly, and written by way of a
few records on the device.
"""

import functools
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, UInt8

from pallas_kernels import launch, tiles
from pallas_kernels.banks import is_host
from pallas_kernels.codecs import Codec
from pallas_kernels.page_copy.pairs import Pairs
from pallas_kernels.page_layout import PageLayout, Payload, unflatten
from pallas_kernels.requantize.staged import pack_to_host
from pallas_kernels.tiles.lanes import Tile


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


def _each_tile(geometry: _Geometry, rows: int, number, planes_ref, work) -> None:
    """Calls work(pair of ids, format pair, position in pool, position in record, first row)."""
    per_plane = geometry.rows // rows
    per_page = len(geometry.planes) * per_plane

    def piece(w):
        pair, rest = w // per_page, w % per_page
        plane, row = rest // per_plane, (rest % per_plane) * rows
        which, in_pool, in_record = (planes_ref[plane, jnp.int32(i)] for i in range(3))
        for number, formats in enumerate(geometry.pairs):

            @launch.when(which == number)
            def _(formats=formats):
                work(pair, formats, in_pool, in_record, row)

    launch.strided_loop(number * per_page, piece)


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

    def read(self, geometry: _Geometry, rows: int):
        parts, words = _parts(self.leaf.codec, geometry.dim)
        codes = tuple(launch.read(self.part(i, rows, words)) for i in range(parts))
        return _decoded(self, codes, rows, geometry.dim)

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

    def read(self, geometry: _Geometry, rows: int):
        parts, words = _parts(self.leaf.codec, geometry.dim)
        flat = launch.read(self.codes(rows, parts * words))
        if parts == 1:
            codes = (flat.reshape(rows, words),)
        else:
            halves = jnp.transpose(flat.reshape(rows, 2, words), (0, 2, 1))
            codes = tuple(lax.unstack(halves, axis=2))
        return _decoded(self, codes, rows, geometry.dim)

    def write(self, stored: tiles.Stored, rows: int) -> None:
        codes = stored.codes[0]
        if len(stored.codes) == 2:
            codes = jnp.transpose(lax.stack(list(stored.codes), axis=2), (0, 2, 1))
        words = codes.size // rows
        launch.write(self.codes(rows, words), codes.reshape(rows * words))
        if stored.scales is not None:
            launch.write(self.scales(rows, stored.scales.shape[0]), stored.scales)


def _decoded(place: _PoolTile | _RecordTile, codes: tuple, rows: int, dim: int) -> Tile:
    """The values of a tile of which the codes were read."""
    codec, scale = place.leaf.codec, None
    if size := tiles.scale_words(codec, rows, dim):
        scale = launch.read(place.scales(rows, size))
    return tiles.decode(codec, codes, scale, rows, dim)


def _parts(codec: Codec, dim: int) -> tuple[int, int]:
    """(parts of a row, words of each)."""
    parts = tiles.num_parts(codec)
    return parts, tiles.words_per_row(codec, dim) // parts


def pack(
    pool: Payload, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, source: PageLayout,
    target: PageLayout, tuning: Tuning | None = None, interpret: bool = False,
) -> tuple[UInt8[Array, "slots bytes"], Bool[Array, "n"]]:  # fmt: skip
    tuning = _fitting(tuning or PACK, source, target)
    pack_some = functools.partial(
        _pack, pool, source=source, target=target, tuning=tuning, interpret=interpret
    )
    if not is_host(bank):
        return pack_some(bank, pairs)
    return pack_to_host(pack_some, bank, pairs, interpret=interpret)


def _pack(
    pool: Payload, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, source: PageLayout,
    target: PageLayout, tuning: Tuning, interpret: bool,
) -> tuple[UInt8[Array, "slots bytes"], Bool[Array, "n"]]:  # fmt: skip
    geometry, rows = _geometry(source, target), tuning.rows

    def body(number_ref, sources_ref, targets_ref, planes_ref, *refs):
        *leaf_refs, bank_ref, finite_ref = refs

        def work(pair, formats, in_pool, in_record, row):
            of_pool, of_record = formats
            page, slot = sources_ref[pair], targets_ref[pair]
            tile = _PoolTile(tuple(leaf_refs), of_pool, page, in_pool, row).read(geometry, rows)
            stored = _encode(of_pool.codec, of_record.codec, tile, geometry.dim)
            _RecordTile(bank_ref, of_record, slot, in_record, row, geometry.rows).write(
                stored, rows
            )

            @launch.when(~stored.finite)
            def _():
                launch.write(finite_ref.at[pair], jnp.int32(0))

        _each_tile(geometry, rows, number_ref[0], planes_ref, work)

    operands = [
        *_tables(pairs, geometry),
        *_pool_words(pool, source),
        launch.records_as_words(bank),
    ]
    words, finite = launch.kernel_call(
        body, [*operands, jnp.ones(pairs.sources.shape, jnp.int32)], 2,
        grid=_grid(tuning, pairs, geometry), name="requantize_pack", num_warps=tuning.num_warps,
        interpret=interpret,
    )  # fmt: skip
    return launch.of_units(words, bank), finite == 1


def restore(
    pool: Payload, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, source: PageLayout,
    target: PageLayout, tuning: Tuning | None = None, interpret: bool = False,
) -> Payload:  # fmt: skip
    tuning = tuning or (RESTORE_FROM_HOST if is_host(bank) else RESTORE)
    tuning = _fitting(tuning, source, target)
    geometry, rows = _geometry(source, target), tuning.rows

    def body(number_ref, sources_ref, targets_ref, planes_ref, bank_ref, *leaf_refs):
        def work(pair, formats, in_pool, in_record, row):
            of_pool, of_record = formats
            slot, page = sources_ref[pair], targets_ref[pair]
            record = _RecordTile(bank_ref, of_record, slot, in_record, row, geometry.rows)
            tile = record.read(geometry, rows)
            stored = _encode(of_record.codec, of_pool.codec, tile, geometry.dim)
            _PoolTile(leaf_refs, of_pool, page, in_pool, row).write(stored, rows)

        _each_tile(geometry, rows, number_ref[0], planes_ref, work)

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


def _encode(source: Codec, target: Codec, tile: Tile, dim: int) -> tiles.Stored:
    return tiles.encode(target, tile, dim, short=True, narrow=tiles.is_narrow(source))


def _fitting(tuning: Tuning, source: PageLayout, target: PageLayout) -> Tuning:
    """The tuning, with tiles no larger than a plane; smaller where a search fills registers."""
    searches = any(tiles.needs_registers(group.codec) for group in target.groups)
    return tuning._replace(rows=min(tuning.rows, source.page_size, 8 if searches else 64))


def _grid(tuning: Tuning, pairs: Pairs, geometry: _Geometry) -> tuple[int]:
    """As many programs as there can be work for, at most."""
    tiles_per_page = len(geometry.planes) * (geometry.rows // tuning.rows)
    return (min(tuning.programs, pairs.sources.shape[0] * tiles_per_page),)


def _tables(pairs: Pairs, geometry: _Geometry) -> list[Array]:
    return [*pairs.operands(), jnp.asarray(geometry.planes)]
