"""Codecs as kernels have them, outside a kernel: the same bytes as the oracle, for every pair."""

import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import tiles
from pallas_kernels.codecs import CODECS, e2m1, get_codec, int4_g16
from pallas_kernels.tiles.lanes import Tile
from tests.pallas_kernels.codecs import oracle
from tests.pallas_kernels.codecs.contents import E4M3_VALUES, KINDS, contents
from tests.pallas_kernels.kernel_inputs import as_bytes, assert_same_bytes

HEAD_DIMS = (64, 128, 256)
ROWS = 64  # a power of two
ROUNDS = [(name, HEAD_DIMS[i % 3]) for i, name in enumerate(CODECS)]


def rows_of(seed: int, dim: int) -> np.ndarray:
    """Rows of every kind, [row, dim]."""
    kinds = itertools.islice(itertools.cycle(KINDS), ROWS // 8)
    return np.concatenate([contents(seed + i, kind, (8, dim)) for i, kind in enumerate(kinds)])


def halves_of(rows: np.ndarray) -> tuple[jax.Array, ...]:
    """Words of the two halves of each row."""
    halves = np.split(np.ascontiguousarray(rows).view(np.int32), 2, axis=-1)
    return tuple(map(jnp.asarray, halves))


def words_of(codec, codes: np.ndarray) -> tuple[jax.Array, ...]:
    """Words of a row of codes, in as many parts as a kernel reads."""
    halves = halves_of(codes)
    return halves if tiles.num_parts(codec) == 2 else (jnp.concatenate(halves, axis=-1),)


def channels(tile) -> np.ndarray:
    """[row, dim] of a tile's lanes."""
    halves = [np.stack(lanes, axis=-1).reshape(ROWS, -1) for lanes in jax.device_get(tuple(tile))]
    return np.concatenate(halves, axis=-1)


def flat_words(x: np.ndarray | None) -> np.ndarray | None:
    return None if x is None else as_bytes(x).reshape(-1).view(np.int32)


def assert_stored(codec, stored: tiles.Stored, rows: np.ndarray, name: str) -> None:
    """Asserts that a tile was stored as the oracle stores the rows."""
    codes, scales = oracle.encode(codec.name, rows)
    assert_same_bytes(stored.codes, words_of(codec, codes))
    assert_same_bytes(stored.scales, flat_words(scales))
    assert bool(stored.finite), name


@functools.partial(jax.jit, static_argnames=("name", "dim"))
def decode(codes, scales, *, name: str, dim: int) -> Tile:
    codec = get_codec(name)
    by_group = None if scales is None else tiles.unpack_scales(codec, scales, ROWS, dim)
    return tiles.decode(codec, codes, by_group, dim)


@functools.partial(jax.jit, static_argnames=("name", "dim"))
def encode(tile, *, name: str, dim: int) -> tiles.Stored:
    return tiles.encode(get_codec(name), tile, dim, short=True)


@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("hot", CODECS)
def test_every_codec_is_decoded_and_encoded_in_every_codec(hot, dim):
    codes, scales = oracle.encode(hot, rows_of(1, dim))
    words = words_of(get_codec(hot), codes)
    tile = decode(words, flat_words(scales), name=hot, dim=dim)
    rows = oracle.decode(hot, codes, scales)
    np.testing.assert_array_equal(channels(tile), rows)
    for cold in CODECS:
        stored = encode(tile, name=cold, dim=dim)
        assert_stored(get_codec(cold), stored, rows, f"{hot} -> {cold}")


@functools.partial(jax.jit, static_argnames=("name", "dim"))
def encode_long(halves, *, name: str, dim: int):
    """Float32 rows with NaNs, stored; what is stored of less than a word, by token."""
    codec = get_codec(name)
    tile = tiles.decode_floats(jnp.dtype(jnp.float32), halves)
    if name != "bf16":
        tile = tiles.made_finite(tile)
    unit = tiles.scale_unit(codec, dim)
    return tiles.encode(codec, tile, dim, short=False, unit=unit)


@pytest.mark.parametrize(("name", "dim"), ROUNDS)
def test_values_of_24_bits_nans_and_infinities_are_stored_as_the_codec_does(name, dim):
    rows = rows_of(2, dim)
    rows[5, :4] = [np.nan, np.inf, -np.inf, -np.nan]
    rows[6] = np.nan
    stored = encode_long(halves_of(rows), name=name, dim=dim)
    codec = get_codec(name)
    codes, scales = jax.jit(codec.encode)(rows)
    assert_same_bytes(stored.codes, words_of(codec, np.asarray(codes)))
    assert bool(stored.finite) == (name != "bf16")  # which keeps them
    if scales is not None:
        unit = tiles.scale_unit(codec, dim)
        assert unit == min(4, as_bytes(scales).shape[1])
        units = np.asarray(stored.scales).astype({1: np.uint8, 2: np.uint16, 4: np.int32}[unit])
        np.testing.assert_array_equal(as_bytes(units), as_bytes(scales).reshape(-1))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_float_rows_of_every_dtype_are_read_exactly(dtype):
    rows = np.clip(rows_of(3, 64), -65504, 65504).astype(dtype)
    rows[0, :2] = [np.inf, np.nan]
    tile = jax.jit(functools.partial(tiles.decode_floats, jnp.dtype(dtype)))(halves_of(rows))
    np.testing.assert_array_equal(channels(tile), rows.astype(np.float32))


def test_rows_of_integers_are_an_error():
    with pytest.raises(ValueError, match="not int32"):
        tiles.decode_floats(jnp.dtype(jnp.int32), halves_of(np.zeros((ROWS, 64), np.int32)))


def test_only_a_whole_tile_is_finite():
    """One NaN or infinity in any lane of either half is seen, by every codec."""

    @jax.jit
    def finite(halves):
        tile = tiles.decode_floats(jnp.dtype(jnp.float32), halves)
        names = ("bf16", "fp8_e4m3", "int8_g64", "e2m1_g64", "int4_g16")
        stored = [tiles.encode(get_codec(name), tile, 64, short=True) for name in names]
        return jnp.stack([s.finite for s in stored])

    good = np.ones((ROWS, 64), np.float32)
    assert finite(halves_of(good)).all()
    for channel, bad in zip((0, 5, 34, 63), (np.nan, np.inf, -np.inf, -np.nan), strict=True):
        rows = good.copy()
        rows[ROWS - 1, channel] = bad
        assert not finite(halves_of(rows)).any()


def tile_of(rows: np.ndarray) -> Tile:
    """The inverse of `channels`."""
    halves = np.split(jnp.asarray(rows), 2, axis=-1)
    low, high = (tuple(half[:, i::4] for i in range(4)) for half in halves)
    return Tile(low, high)


def assert_stored_groups(name: str, groups: np.ndarray) -> None:
    """Asserts that groups of short values are stored as the oracle stores them; pads with zeros."""
    rng = np.random.default_rng(0)
    rows = np.zeros((4096, 256), np.float32)
    assert groups.size <= rows.size
    rows.reshape(-1)[: groups.size] = (groups * rng.choice([-1, 1], groups.shape)).reshape(-1)
    assert_stored(get_codec(name), encode(tile_of(rows), name=name, dim=256), rows, name)


def in_groups(largest: np.ndarray, others: np.ndarray, group: int) -> np.ndarray:
    """Groups of their largest[n] values and some of others[n, m], as many as it takes."""
    lack = -others.shape[1] % (group - 1)
    others = np.pad(others, ((0, 0), (0, lack))).reshape(len(others), -1, group - 1)
    largest = np.broadcast_to(largest[:, None, None], (*others.shape[:2], 1))
    return np.concatenate([largest, others], axis=-1).reshape(-1, group).astype(np.float32)


def beside(x: np.ndarray, steps: int) -> np.ndarray:
    """Values of at most 18 significant bits on and next to each x, and int8 products there.

    A product is an int8 code times the float16 scale that comes nearest, or the next to it.
    """
    x = np.asarray(x, np.float64)[..., None]
    step = np.exp2(np.floor(np.log2(x)) - 17)
    by_step = np.round(x / step) * step + step * np.arange(-steps, steps + 1)
    code = np.arange(1, 128, 6)
    bits = (x / code).astype(np.float16)[..., None].view(np.int16) + np.arange(
        -1, 2, dtype=np.int16
    )
    scale = np.clip(bits, 0, 0x7BFF).view(np.float16).astype(np.float64)
    return np.concatenate([by_step, (code[:, None] * scale).reshape(*x.shape[:-1], -1)], axis=-1)


FOUR_BIT = {"nvfp4_g16": 6, "nvfp4_g16+search": 4, "int4_g16": 7}  # largest code, or 4 of amax/4


def every_bfloat16_in_groups(divisor: int, group: int) -> np.ndarray:
    """Every bfloat16 as the largest of a group; under every scale, every one that is no zero."""
    pattern = np.arange(16, 0x7F80)
    below = (pattern[:, None] - np.arange(16)).astype(np.uint16).view(ml_dtypes.bfloat16)
    below = np.tile(below.astype(np.float32), group // 16)
    pattern = np.arange(0x3E00, 0x3E00 + 6 * 128).astype(np.uint16)  # from 1/8 on
    under = E4M3_VALUES[:, None] * pattern.view(ml_dtypes.bfloat16).astype(np.float32)
    under = under.astype(ml_dtypes.bfloat16).astype(np.float32)
    largest = divisor * E4M3_VALUES
    groups = in_groups(largest, np.minimum(under, largest[:, None]), group)
    return np.concatenate([below, groups])


@pytest.mark.parametrize("name", FOUR_BIT)
def test_four_bit_codes_and_scales_of_every_bfloat16(name):
    assert_stored_groups(name, every_bfloat16_in_groups(FOUR_BIT[name], 16))


@pytest.mark.parametrize("name", FOUR_BIT)
def test_four_bit_codes_and_scales_of_18_bits_next_to_every_cut(name):
    largest = FOUR_BIT[name]
    rule = {4: e2m1.BY_FOUR, 6: e2m1.BY_SIX, 7: int4_g16.BY_SEVEN}[largest]
    cuts = [cut.at for cut in (int4_g16 if largest == 7 else e2m1).CODE_CUTS]
    values = beside(E4M3_VALUES[:, None] * np.array(cuts), 3).reshape(len(E4M3_VALUES), -1)
    amax = largest * E4M3_VALUES
    groups = in_groups(amax, np.minimum(values, amax[:, None]), 16)
    middle = largest * (E4M3_VALUES[1:] + E4M3_VALUES[:-1]) / 2
    tiny = np.array([cut.at for cut in rule.cuts]) * 2.0**-9
    edges = beside(np.concatenate([middle, tiny]), 3).reshape(-1)
    assert_stored_groups(name, np.concatenate([groups, in_groups(edges, edges[:, None] / 2, 16)]))


def test_int8_codes_of_18_bits_next_to_every_cut():
    rng = np.random.default_rng(1)
    pattern = np.concatenate([np.arange(1, 40), rng.integers(40, 0x7C00, 300), [0x7BFF]])
    scale = pattern.astype(np.uint16).view(np.float16).astype(np.float64)
    cuts = scale[:, None] * (np.arange(127) + 0.5)
    step = np.exp2(np.floor(np.log2(cuts)) - 17)[..., None]
    values = (np.round(cuts[..., None] / step) + np.arange(-1, 2)) * step
    largest = 127 * scale
    values = np.minimum(values.reshape(len(scale), -1), largest[:, None])
    assert_stored_groups("int8_g64", in_groups(largest, values, 64))
