"""Transcoding several values per instruction: the oracle's bytes, for every scale and every cut."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import packed, tiles
from pallas_kernels.codecs import CODECS, get_codec
from pallas_kernels.tiles.lanes import Grouped
from tests.pallas_kernels.codecs import oracle
from tests.pallas_kernels.codecs.contents import E4M3_VALUES
from tests.pallas_kernels.kernel_inputs import as_bytes, assert_same_bytes
from tests.pallas_kernels.test_tiles import every_bfloat16_in_groups, rows_of

PAIRS = (
    ("bf16", "nvfp4_g16"),
    ("bf16", "e2m1_g64"),
    ("bf16", "int4_g16"),
    ("int8_g64", "e2m1_g64"),
    ("e2m1_g64", "int8_g64"),
    ("e2m1_g64+search", "int8_g64"),
)
HEAD_DIMS = (64, 128, 256)
POSITIVE_F16 = np.arange(0x7C00, dtype=np.uint16).view(np.float16)


def in_parts(name: str, codes: np.ndarray, by_group: packed.Transcoder) -> tuple:
    """Pieces of the rows of codes, as a kernel reads them."""
    number = tiles.num_parts(get_codec(name))
    words = np.ascontiguousarray(codes).view(np.int32).reshape(len(codes), number, -1)
    grouped = words.reshape(len(codes), number, by_group.groups, -1, by_group.piece)
    return tuple(
        tuple(jnp.asarray(grouped[:, part, :, i]) for i in range(grouped.shape[3]))
        for part in range(number)
    )


def of_parts(parts: tuple, rows: int) -> np.ndarray:
    """The inverse of `in_parts`, in bytes."""
    words = np.stack([np.stack(part, axis=2) for part in jax.device_get(parts)], axis=1)
    return as_bytes(np.ascontiguousarray(words.reshape(rows, -1)))


@functools.partial(jax.jit, static_argnames=("pair", "dim"))
def transcode(parts, scales, *, pair: tuple[str, str], dim: int):
    before, after = map(get_codec, pair)
    by_group = packed.transcoder(before, after, dim)
    assert by_group is not None
    if scales is not None:
        scales = tiles.unpack_scales(before, scales, parts[0][0].shape[0], dim)
    out = by_group.run(parts, scales)
    return out.parts, tiles.pack_scales(after, out.scales, dim), out.finite


def assert_transcoded(
    pair: tuple[str, str], codes: np.ndarray, scales: np.ndarray | None, dim: int
):
    """Asserts that rows become what the oracle makes of their values."""
    by_group = packed.transcoder(*map(get_codec, pair), dim)
    words = None if scales is None else as_bytes(scales).reshape(-1).view(np.int32)
    parts = in_parts(pair[0], codes, by_group)
    new, new_scales, finite = transcode(parts, words, pair=pair, dim=dim)
    want_codes, want_scales = oracle.encode(pair[1], oracle.decode(pair[0], codes, scales))
    assert_same_bytes(of_parts(new, len(codes)), as_bytes(want_codes).reshape(len(codes), -1))
    assert_same_bytes(as_bytes(np.asarray(new_scales)), as_bytes(want_scales).reshape(-1))
    assert bool(finite)


@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
def test_rows_of_every_kind(pair, dim):
    codes, scales = oracle.encode(pair[0], rows_of(5, dim))
    assert_transcoded(pair, codes, scales, dim)


def test_only_some_pairs_are_transcoded_so():
    found = {
        (a, b) for a in CODECS for b in CODECS
        if packed.transcoder(get_codec(a), get_codec(b), 256) is not None
    }  # fmt: skip
    assert found == set(PAIRS)


@pytest.mark.parametrize(("name", "divisor"), [("nvfp4_g16", 6), ("e2m1_g64", 6), ("int4_g16", 7)])
def test_every_bfloat16_as_the_largest_and_under_every_scale(name, divisor):
    groups = every_bfloat16_in_groups(divisor, get_codec(name).group)
    signs = np.random.default_rng(0).choice([-1, 1], groups.shape)
    rows = np.zeros((-(-groups.size // 256), 256), ml_dtypes.bfloat16)
    rows.reshape(-1)[: groups.size] = (groups * signs).astype(ml_dtypes.bfloat16).reshape(-1)
    assert_transcoded(("bf16", name), rows, None, 256)


@pytest.mark.parametrize("largest", ["127", "any", "small"])
def test_int8_under_every_float16_scale(largest):
    rng = np.random.default_rng(1)
    groups = len(POSITIVE_F16)
    top = {"127": 127, "any": rng.integers(0, 128, groups), "small": rng.integers(0, 4, groups)}
    top = np.broadcast_to(top[largest], groups).astype(np.int64)[:, None]
    codes = rng.integers(-top, top + 1, (groups, 64))
    codes[:, :1] = top * rng.choice([-1, 1], (groups, 1))
    assert_transcoded(
        ("int8_g64", "e2m1_g64"), codes.astype(np.int8).reshape(-1, 256),
        POSITIVE_F16.reshape(-1, 4), 256,
    )  # fmt: skip


def test_int8_on_every_cut():
    """Under scales that make some code times its scale a cut exactly, and the scales beside."""
    codes = np.arange(1, 128)
    cuts = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    at = (cuts[:, None, None] * E4M3_VALUES[:, None] / codes).reshape(-1)
    near = at.astype(np.float16).view(np.uint16).astype(np.int64)[:, None] + [-1, 0, 1]
    scales = np.unique(near[(near > 0) & (near < 0x7C00)]).astype(np.uint16).view(np.float16)
    lack = -len(scales) % 4
    scales = np.concatenate([scales, scales[:lack]])
    both = np.broadcast_to(np.concatenate([codes[::2], [-3]]), (len(scales), 64 + 1))[:, :64]
    odd = np.broadcast_to(np.concatenate([-codes[1::2], [127]]), (len(scales), 64))
    for some in (both, odd):
        assert_transcoded(
            ("int8_g64", "e2m1_g64"), some.astype(np.int8).reshape(-1, 256),
            scales.reshape(-1, 4), 256,
        )  # fmt: skip


def test_e2m1_of_every_scale_and_every_largest_code():
    """Also -0, which no codec stores, but which a bank may hold."""
    rng = np.random.default_rng(2)
    scale, top = (x.reshape(-1) for x in np.mgrid[0:127, 0:8])
    codes = rng.integers(0, top[:, None] + 1, (len(scale), 64))
    codes[:, 0] = top
    codes += 8 * rng.integers(0, 2, codes.shape)
    # A row is four groups; a byte has a channel of the first half and one of the second.
    channels = codes.reshape(-1, 2, 128).astype(np.uint8)
    packed_codes = channels[:, 0] | (channels[:, 1] << 4)
    scales = scale.astype(np.uint8).reshape(-1, 4)
    assert_transcoded(("e2m1_g64", "int8_g64"), packed_codes, scales, 256)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_is_seen(bad):
    rows = np.ones((8, 64), ml_dtypes.bfloat16)
    by_group = packed.transcoder(get_codec("bf16"), get_codec("nvfp4_g16"), 64)
    for channel in (0, 17, 34, 63):
        spoilt = rows.copy()
        spoilt[7, channel] = bad
        parts = in_parts("bf16", spoilt, by_group)
        assert not transcode(parts, None, pair=("bf16", "nvfp4_g16"), dim=64)[2]
    assert (
        by_group is not None
        and transcode(in_parts("bf16", rows, by_group), None, pair=("bf16", "nvfp4_g16"), dim=64)[2]
    )


def test_a_scale_that_is_not_finite_is_seen():
    codes = np.ones((8, 64), np.int8)
    by_group = packed.transcoder(get_codec("int8_g64"), get_codec("e2m1_g64"), 64)
    for bad in (np.nan, np.inf):
        scales = np.ones(8, np.float16)
        scales[3] = bad
        parts = in_parts("int8_g64", codes, by_group)
        assert not transcode(parts, scales.view(np.int32), pair=("int8_g64", "e2m1_g64"), dim=64)[2]


def test_scales_are_grouped_by_half():
    by_group = packed.transcoder(get_codec("bf16"), get_codec("nvfp4_g16"), 256)
    out = by_group.run(in_parts("bf16", np.ones((8, 256), ml_dtypes.bfloat16), by_group), None)
    assert isinstance(out.scales, Grouped) and out.scales.low.shape == (8, 8)
