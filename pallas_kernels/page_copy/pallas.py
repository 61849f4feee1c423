"""The op as kernels that read and write pools and banks where they are, over the bus too.

An item is a few contiguous pieces of each leaf; a record is those pieces one after the other. So a
copy is pieces of int32 words, cut into chunks, spread over a few programs: enough loads in flight
to fill the bus, and nearly all multiprocessors left to whatever else runs.
"""

from typing import Any, Final, NamedTuple

from jaxtyping import Array, Int32, Shaped, UInt8

from pallas_kernels import launch
from pallas_kernels.banks import is_host
from pallas_kernels.page_copy.pairs import Pairs

Leaves = tuple[Shaped[Array, "..."], ...]


class Tuning(NamedTuple):
    """How a copy is cut, chosen by `python -m benchmarks.kernels --tune`.

    Attributes:
      programs: that run at once.
      chunk: words that one program moves at a time; a power of two.
      num_warps: per program.
    """

    programs: int
    chunk: int
    num_warps: int


# Over the bus a few programs are as fast as many, and leave the other multiprocessors free. As many
# read as write, for both ways at once: see `both_directions` in `benchmarks`.
TO_HOST: Final = Tuning(16, 4096, 4)
FROM_HOST: Final = Tuning(16, 8192, 8)
ON_DEVICE: Final = Tuning(8448, 4096, 16)
WITHIN: Final = Tuning(2112, 8192, 16)
MOST_PROGRAMS_OVER_THE_BUS: Final = 64


class _Span(NamedTuple):
    """The chunks of one leaf among those of an item."""

    first: int  # its first chunk
    pieces: int  # contiguous pieces of the leaf
    chunks: int  # per piece
    words: int  # per piece
    size: int  # words per chunk; a power of two
    offset: int  # of the leaf in the record, in words

    @property
    def last(self) -> int:
        return self.first + self.pieces * self.chunks


def _spans(leaves: Leaves, axis: int, most: int) -> tuple[_Span, ...]:
    spans, first, offset = [], 0, 0
    for leaf in leaves:
        pieces, words = _pieces(leaf, axis)
        size = min(most, 1 << (words - 1).bit_length())
        span = _Span(first, pieces, -(-words // size), words, size, offset)
        spans.append(span)
        first, offset = span.last, offset + pieces * words
    return tuple(spans)


def _pieces(leaf: Array, axis: int) -> tuple[int, int]:
    """(pieces of an item, words of each)."""
    pieces, inner = 1, leaf.dtype.itemsize
    for size in leaf.shape[:axis]:
        pieces *= size
    for size in leaf.shape[axis + 1 :]:
        inner *= size
    if inner % launch.WORD:
        raise NotImplementedError(
            f"pieces of {inner} bytes ({leaf.dtype} {leaf.shape}) are no whole words of 4 bytes."
        )
    return pieces, inner // launch.WORD


def _as_pieces(leaf: Array, axis: int) -> Int32[Array, "piece item word"]:
    pieces, words = _pieces(leaf, axis)
    return launch.as_words(leaf, pieces, leaf.shape[axis], words)


def _each_chunk(number: Any, spans: tuple[_Span, ...], move: Any) -> None:
    """Calls move(pair, leaf, piece, first word in it, mask) for all chunks of all pairs."""
    per_item = spans[-1].last

    def work(w):
        pair, chunk = w // per_item, w % per_item
        for leaf, span in enumerate(spans):

            @launch.when((chunk >= span.first) & (chunk < span.last))
            def _(leaf=leaf, span=span):
                c = chunk - span.first
                piece, word = c // span.chunks, (c % span.chunks) * span.size
                mask = None
                if span.words % span.size:
                    mask = launch.iota((span.size,), 0) < span.words - word
                move(pair, leaf, piece, word, mask)

    launch.strided_loop(number * per_item, work)


def store_records(
    leaves: Leaves, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, axis: int,
    tuning: Tuning | None = None, interpret: bool = False,
) -> UInt8[Array, "slots bytes"]:  # fmt: skip
    tuning, spans = _cut(leaves, axis, tuning, TO_HOST if is_host(bank) else None)
    words = launch.records_as_words(bank)

    def body(number_ref, sources_ref, targets_ref, *refs):
        *leaf_refs, bank_ref = refs

        def move(pair, leaf, piece, word, mask):
            span = spans[leaf]
            at = span.offset + piece * span.words + word
            source = leaf_refs[leaf].at[piece, sources_ref[pair], launch.dslice(word, span.size)]
            target = bank_ref.at[targets_ref[pair], launch.dslice(at, span.size)]
            launch.write(target, launch.read(source, mask), mask)

        _each_chunk(number_ref[0], spans, move)

    pools = [_as_pieces(leaf, axis) for leaf in leaves]
    (words,) = launch.kernel_call(
        body, [*pairs.operands(), *pools, words], 1, grid=_grid(tuning, pairs, spans),
        name="store_records", num_warps=tuning.num_warps, interpret=interpret,
    )  # fmt: skip
    return launch.of_units(words, bank)


def load_records(
    leaves: Leaves, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, axis: int,
    tuning: Tuning | None = None, interpret: bool = False,
) -> Leaves:  # fmt: skip
    tuning, spans = _cut(leaves, axis, tuning, FROM_HOST if is_host(bank) else None)

    def body(number_ref, sources_ref, targets_ref, bank_ref, *leaf_refs):
        def move(pair, leaf, piece, word, mask):
            span = spans[leaf]
            at = span.offset + piece * span.words + word
            source = bank_ref.at[sources_ref[pair], launch.dslice(at, span.size)]
            target = leaf_refs[leaf].at[piece, targets_ref[pair], launch.dslice(word, span.size)]
            launch.write(target, launch.read(source, mask), mask)

        _each_chunk(number_ref[0], spans, move)

    pools = [_as_pieces(leaf, axis) for leaf in leaves]
    pools = launch.kernel_call(
        body, [*pairs.operands(), launch.records_as_words(bank), *pools], len(pools),
        grid=_grid(tuning, pairs, spans), name="load_records", num_warps=tuning.num_warps,
        interpret=interpret,
    )  # fmt: skip
    return tuple(launch.of_units(x, leaf) for x, leaf in zip(pools, leaves, strict=True))


def copy_items(
    sources: Leaves, targets: Leaves, pairs: Pairs, *, source_axis: int, target_axis: int,
    tuning: Tuning | None = None, interpret: bool = False,
) -> Leaves:  # fmt: skip
    tuning = tuning or ON_DEVICE
    # Cut by the finer of the two: its pieces are contiguous on both sides.
    spans = _spans(*max((targets, target_axis), (sources, source_axis), key=_by_axis), tuning.chunk)

    def body(number_ref, sources_ref, targets_ref, *refs):
        old_refs, new_refs = refs[: len(spans)], refs[len(spans) :]

        def part(ref, item_id, leaf, piece, word):
            span = spans[leaf]
            finer = span.pieces // ref.shape[0]
            word += piece % finer * span.words
            return ref.at[piece // finer, item_id, launch.dslice(word, span.size)]

        def move(pair, leaf, piece, word, mask):
            source = part(old_refs[leaf], sources_ref[pair], leaf, piece, word)
            target = part(new_refs[leaf], targets_ref[pair], leaf, piece, word)
            launch.write(target, launch.read(source, mask), mask)

        _each_chunk(number_ref[0], spans, move)

    pools = [_as_pieces(leaf, target_axis) for leaf in targets]
    read_only = [_as_pieces(leaf, source_axis) for leaf in sources]
    pools = launch.kernel_call(
        body, [*pairs.operands(), *read_only, *pools], len(pools), grid=_grid(tuning, pairs, spans),
        name="copy_items", num_warps=tuning.num_warps, interpret=interpret,
    )  # fmt: skip
    return tuple(launch.of_units(x, leaf) for x, leaf in zip(pools, targets, strict=True))


def _by_axis(leaves_and_axis: tuple[Leaves, int]) -> int:
    return leaves_and_axis[1]


def copy_within(
    leaves: Leaves, pairs: Pairs, *, tuning: Tuning | None = None, interpret: bool = False
) -> Leaves:
    tuning = tuning or WITHIN
    spans = _spans(leaves, 0, tuning.chunk)

    def body(number_ref, sources_ref, targets_ref, *refs):
        def move(pair, leaf, piece, word, mask):
            ref, part = refs[leaf], launch.dslice(word, spans[leaf].size)
            tile = launch.read(ref.at[piece, sources_ref[pair], part], mask)
            launch.write(ref.at[piece, targets_ref[pair], part], tile, mask)

        _each_chunk(number_ref[0], spans, move)

    pools = [_as_pieces(leaf, 0) for leaf in leaves]
    pools = launch.kernel_call(
        body, [*pairs.operands(), *pools], len(pools), grid=_grid(tuning, pairs, spans),
        name="copy_within", num_warps=tuning.num_warps, interpret=interpret,
    )  # fmt: skip
    return tuple(launch.of_units(x, leaf) for x, leaf in zip(pools, leaves, strict=True))


def _cut(
    leaves: Leaves, axis: int, given: Tuning | None, over_bus: Tuning | None
) -> tuple[Tuning, tuple[_Span, ...]]:
    """How records are cut: as is given, or as fits the way."""
    tuning = given or over_bus or ON_DEVICE
    spans = _spans(leaves, axis, tuning.chunk)
    if over_bus and not given:
        # More programs where pieces are smaller than chunks, so that as much is under way.
        largest = max(min(span.size, span.words) for span in spans)
        programs = min(tuning.programs * tuning.chunk // largest, MOST_PROGRAMS_OVER_THE_BUS)
        tuning = tuning._replace(programs=programs)
    return tuning, spans


def _grid(tuning: Tuning, pairs: Pairs, spans: tuple[_Span, ...]) -> tuple[int]:
    """As many programs as there can be work for, at most."""
    return (min(tuning.programs, pairs.sources.shape[0] * spans[-1].last),)
