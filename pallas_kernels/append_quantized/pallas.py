"""The op as kernels: a tile of tokens of one head is read, encoded in registers, and scattered.

Scales of one token may be fewer than four bytes. A word of them would hold those of its neighbours,
which another program may be writing; so where that is so, their leaf is seen in smaller units.
"""

from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, Shaped, UInt8

from pallas_kernels import launch, tiles
from pallas_kernels.banks import num_slots
from pallas_kernels.codecs import Codec, Encoded
from pallas_kernels.codecs.bf16 import Bf16


class Tuning(NamedTuple):
    """How the work is cut, chosen by `python -m benchmarks.kernels --tune`.

    Attributes:
      programs: that run at once, at most.
      rows: tokens of a tile, at most; a power of two.
      num_warps: per program.
    """

    programs: int
    rows: int
    num_warps: int


APPEND: Final = Tuning(132 * 16, 8, 4)
MIRROR: Final = Tuning(64, 16, 4)


def _rows_of(leaf: Array, unit: int) -> Shaped[Array, "row unit"]:
    """A leaf of a pool, [page, plane, head, token, width], as rows of units."""
    size = leaf.shape[-1] * leaf.dtype.itemsize
    return launch.as_units(leaf, unit, leaf.size // leaf.shape[-1], size // unit)


class _Places(NamedTuple):
    """Places of a tile's tokens.

    Attributes:
      exist: whether the token has one.
      page_ids, offsets: of each token; anything where it has none.
    """

    exist: Bool[Array, "row"]
    page_ids: Int32[Array, "row"]
    offsets: Int32[Array, "row"]


def _places(refs: tuple[Any, Any], first: Array, rows: int, shape: tuple[int, ...]) -> _Places:
    """The places of tokens first, first + 1, ...; `shape` is that of a leaf of the pool."""
    some = launch.dslice(first, rows)
    here = launch.iota((rows,), 0) < refs[0].shape[0] - first
    page_ids, offsets = (launch.read(ref.at[some], here) for ref in refs)
    exist = here & (page_ids >= 0) & (page_ids < shape[0])
    return _Places(exist & (offsets >= 0) & (offsets < shape[3]), page_ids, offsets)


def _pool_rows(places: _Places, plane: Array, head: Array, shape: tuple[int, ...]) -> Array:
    """The row of each token in a leaf, and past its end where there is none."""
    pages, planes, heads, tokens = shape[:4]
    row = ((places.page_ids * planes + plane) * heads + head) * tokens + places.offsets
    return jnp.where(places.exist, row, pages * planes * heads * tokens)


def _cells(ref: Any, rows: Int32[Array, "row"], first: Any, width: int) -> Any:
    """Columns first, first + 1, ... of some rows of an array, all by index."""
    shape = (rows.shape[0], width)
    columns = jnp.broadcast_to(first, shape) + launch.iota(shape, 1)
    return ref.at[jnp.broadcast_to(rows[:, None], shape), columns]


def _mask(exist: Bool[Array, "row"], width: int) -> Bool[Array, "row width"]:
    return jnp.broadcast_to(exist[:, None], (exist.shape[0], width))


class _Cut(NamedTuple):
    """Pieces of work: tiles of tokens, of each head of each plane."""

    rows: int  # tokens of a tile; a power of two
    blocks: int  # tiles per head and plane
    heads: int
    planes: int

    @property
    def pieces(self) -> int:
        return self.blocks * self.heads * self.planes

    def each(self, work: Any) -> None:
        """Calls work(plane's number, head, first token) for all pieces."""

        def piece(w):
            number, rest = w // (self.blocks * self.heads), w % (self.blocks * self.heads)
            work(number, rest // self.blocks, rest % self.blocks * self.rows)

        launch.strided_loop(jnp.int32(self.pieces), piece)


def _cut(tuning: Tuning, tokens: int, heads: int, planes: int) -> _Cut:
    rows = min(tuning.rows, 1 << (tokens - 1).bit_length())
    return _Cut(rows, -(-tokens // rows), heads, planes)


def append_quantized(
    pool: Encoded, new: tuple[Float[Array, "n token head dim"], ...],
    page_ids: Int32[Array, "n token"], offsets: Int32[Array, "n token"], *,
    planes: tuple[int, ...], codec: Codec, tuning: Tuning | None = None, interpret: bool = False,
) -> Encoded:  # fmt: skip
    tuning, shape, dim = tuning or APPEND, pool.codes.shape, new[0].shape[-1]
    cut = _cut(tuning, page_ids.size, shape[2], len(planes))
    dtype, unit = new[0].dtype, tiles.scale_unit(codec, dim)
    if any(x.dtype != dtype for x in new):
        raise NotImplementedError(f"rows of more than one dtype: {[str(x.dtype) for x in new]}.")

    def body(planes_ref, page_ids_ref, offsets_ref, *refs):
        new_refs, (codes_ref, *scales_refs) = refs[: cut.planes], refs[cut.planes :]

        def work(number, head, first):
            places = _places((page_ids_ref, offsets_ref), first, cut.rows, shape)
            row_ids = _pool_rows(places, planes_ref[number], head, shape)
            halves = _read_halves(new_refs, number, first, head, cut.rows)
            parts, scales = _encode(codec, dtype, halves, dim, unit)
            for i, part in enumerate(parts):
                width = part.shape[1]
                cells = _cells(codes_ref, row_ids, i * width, width)
                launch.write(cells, part, _mask(places.exist, width))
            if scales is not None:
                (ref,) = scales_refs
                cells = _cells(ref, row_ids, 0, scales.shape[1])
                launch.write(cells, scales, _mask(places.exist, scales.shape[1]))

        cut.each(work)

    leaves = [_rows_of(pool.codes, launch.WORD)]
    leaves += [] if pool.scales is None else [_rows_of(pool.scales, unit)]
    rows = [_new_words(x) for x in new]
    leaves = launch.kernel_call(
        body, [_table(planes), page_ids.reshape(-1), offsets.reshape(-1), *rows, *leaves],
        len(leaves), grid=(min(tuning.programs, cut.pieces),), name="append_quantized",
        num_warps=tuning.num_warps, interpret=interpret,
    )  # fmt: skip
    codes = launch.of_units(leaves[0], pool.codes)
    return Encoded(codes, None if pool.scales is None else launch.of_units(leaves[1], pool.scales))


def _new_words(x: Float[Array, "n token head dim"]) -> Int32[Array, "row head word"]:
    n, token, head, dim = x.shape
    return launch.as_words(x, n * token, head, dim * x.dtype.itemsize // launch.WORD)


def _table(planes: tuple[int, ...]) -> Int32[Array, "plane"]:
    # An operand, so that the kernel is one and the same for all layers, and compiled once.
    return jnp.asarray(planes, jnp.int32)


def _read_halves(
    refs: tuple[Any, ...], number: Array, first: Array, head: Array, rows: int
) -> tuple[Array, Array]:
    """Words of channels [0, dim/2) and of the rest, [row, words] each; past the end, anything."""
    tokens, _, words = refs[0].shape
    half = words // 2
    mask = None
    if tokens % rows:
        mask = launch.iota((rows, half), 0) < tokens - first

    def read(ref):
        starts = (launch.dslice(start, half) for start in (0, half))
        low, high = (ref.at[launch.dslice(first, rows), head, words] for words in starts)
        return launch.read(low, mask), launch.read(high, mask)

    if len(refs) == 1:
        return read(refs[0])
    return lax.cond(
        number == 0,
        lambda: read(refs[0]),
        lambda: _read_halves(refs[1:], number - 1, first, head, rows),
    )


def _encode(
    codec: Codec, dtype: jnp.dtype, halves: tuple[Array, Array], dim: int, unit: int
) -> tuple[tuple[Array, ...], Array | None]:
    """Words of codes, [row, words] each, and units of scales, [row, units]."""
    is_bf16 = dtype == jnp.bfloat16
    if isinstance(codec, Bf16) and is_bf16:
        return halves, None  # bit for bit, NaNs as they are
    tile = tiles.decode_floats(dtype, halves)
    tile = tile if isinstance(codec, Bf16) else tiles.made_finite(tile)
    short = dtype.itemsize == 2  # at most 11 significant bits
    stored = tiles.encode(codec, tile, dim, short=short, unit=unit)
    scales = stored.scales
    if scales is not None:
        rows = halves[0].shape[0]
        scales = scales.reshape(rows, scales.shape[0] // rows).astype(launch.UNITS[unit])
    return stored.codes, scales


def mirror_tokens(
    pool: Encoded, bank: UInt8[Array, "slots bytes"], page_ids: Int32[Array, "n token"],
    offsets: Int32[Array, "n token"], slot_ids: Int32[Array, "n token"], *,
    planes: tuple[int, ...], codes_offset: int, scales_offset: int, tuning: Tuning | None = None,
    interpret: bool = False,
) -> UInt8[Array, "slots bytes"]:  # fmt: skip
    tuning, shape = tuning or MIRROR, pool.codes.shape
    cut = _cut(tuning, page_ids.size, shape[2], len(planes))
    leaves = jax.tree.leaves(pool)
    starts = (codes_offset, scales_offset)[: len(leaves)]
    unit = _common_unit(leaves, bank, starts)
    slots = num_slots(bank)

    def body(planes_ref, page_ids_ref, offsets_ref, slot_ids_ref, *refs):
        *leaf_refs, bank_ref = refs

        def work(number, head, first):
            places = _places((page_ids_ref, offsets_ref), first, cut.rows, shape)
            some = slot_ids_ref.at[launch.dslice(first, cut.rows)]
            slot_ids = launch.read(some, launch.iota((cut.rows,), 0) < page_ids.size - first)
            exist = places.exist & (slot_ids >= 0) & (slot_ids < slots)
            slot_ids = jnp.where(exist, slot_ids, slots + 1)
            plane = planes_ref[number]
            row_ids = _pool_rows(places._replace(exist=exist), plane, head, shape)
            in_page = (plane * shape[2] + head) * shape[3] + places.offsets
            for ref, start in zip(leaf_refs, starts, strict=True):
                width = ref.shape[1]
                mask = _mask(exist, width)
                tile = launch.read(_cells(ref, row_ids, 0, width), mask)
                column = (in_page * width + start // unit)[:, None]
                launch.write(_cells(bank_ref, slot_ids, column, width), tile, mask)

        cut.each(work)

    units = launch.as_units(bank, unit, bank.shape[0], bank.shape[1] // unit)
    ids = [x.reshape(-1) for x in (page_ids, offsets, slot_ids)]
    (units,) = launch.kernel_call(
        body, [_table(planes), *ids, *(_rows_of(leaf, unit) for leaf in leaves), units], 1,
        grid=(min(tuning.programs, cut.pieces),), name="mirror_tokens",
        num_warps=tuning.num_warps, interpret=interpret,
    )  # fmt: skip
    return launch.of_units(units, bank)


def _common_unit(leaves: list[Array], bank: Array, starts: tuple[int, ...]) -> int:
    """Bytes that the rows of all leaves are whole units of, up to a word."""
    unit = min(launch.WORD, *(x.shape[-1] * x.dtype.itemsize for x in leaves))
    if any(start % unit for start in (*starts, bank.shape[1])):
        raise NotImplementedError(
            f"parts at bytes {starts} of records of {bank.shape[1]} bytes are no whole units of"
            f" {unit} bytes."
        )
    return unit
