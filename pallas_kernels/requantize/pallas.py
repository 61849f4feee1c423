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
from jaxtyping import Array, Int32, UInt8

from pallas_kernels import launch, packed, tiles
from pallas_kernels.banks import is_host
from pallas_kernels.codecs import Codec
from pallas_kernels.page_copy.pairs import Pairs
from pallas_kernels.page_layout import PageLayout, Payload, unflatten
from pallas_kernels.requantize.places import Leaf, PoolTile, RecordTile, transcode
from pallas_kernels.requantize.staged import pack_to_host


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


class _Geometry(NamedTuple):
    """What a kernel knows of the two layouts.

    Attributes:
      pairs: the (pool format, record format) pairs that occur.
      planes: per plane its pair, its position in the pool's format and in the record's.
      rows: token rows of a plane, all heads.
      dim: channels.
    """

    pairs: tuple[tuple[Leaf, Leaf], ...]
    planes: np.ndarray
    rows: int
    dim: int


def _geometry(hot: PageLayout, cold: PageLayout) -> _Geometry:
    in_pool, operand = [], 0
    for group in hot.groups:
        scaled = group.codec.scale_dtype is not None
        in_pool.append(Leaf(group.codec, operand, operand + 1 if scaled else -1))
        operand += 1 + scaled
    in_record = []
    for group in cold.groups:
        first = cold.plane_fields[group.planes[0]]
        offsets = (first.codes_offset // launch.WORD, first.scales_offset // launch.WORD)
        in_record.append(Leaf(group.codec, *offsets))
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
    formats: tuple[Leaf, Leaf]
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
            page = PoolTile(tuple(leaf_refs), in_pool, w.source, w.in_pool, w.row)
            slot = RecordTile(bank_ref, in_record, w.target, w.in_record, w.row, geometry.rows)
            finite = transcode(page, slot, rows, geometry.dim)

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
            slot = RecordTile(bank_ref, in_record, w.source, w.in_record, w.row, geometry.rows)
            page = PoolTile(tuple(leaf_refs), in_pool, w.target, w.in_pool, w.row)
            transcode(slot, page, rows, geometry.dim)

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
    per_row = [x.groups * x.threads for x in by_group]
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
