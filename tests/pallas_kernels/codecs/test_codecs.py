"""Bytes of every codec against the NumPy oracle, and what the formats promise."""

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels import codecs
from pallas_kernels.codecs import bits
from tests.pallas_kernels.codecs import oracle
from tests.pallas_kernels.codecs.contents import KINDS, contents

HEAD_DIMS = (64, 128, 256)
PLANES = (2, 12)  # heads, tokens: the only leading shape, so that programs are few
encode = jax.jit(lambda codec, x: codec.encode(x), static_argnums=0)
decode = jax.jit(lambda codec, enc: codec.decode(enc), static_argnums=0)


def assert_same_bytes(got, want):
    got_leaves, want_leaves = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got_leaves) == len(want_leaves)
    for a, b in zip(map(np.asarray, got_leaves), map(np.asarray, want_leaves), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS))
def test_encode_and_decode_equal_the_oracle(head_dim, seed, kind):
    x = contents(seed, kind, (*PLANES, head_dim))
    for name in codecs.CODECS:
        codec = codecs.get_codec(name)
        enc = encode(codec, x)
        want = oracle.encode(name, x)
        assert_same_bytes(enc, want)
        np.testing.assert_array_equal(decode(codec, enc), oracle.decode(name, *want))


@given(seed=st.integers(0, 2**32 - 1))
def test_codes_have_no_negative_zero_and_zero_groups_have_scale_zero(seed):
    x = contents(seed, "special", (*PLANES, 128))
    for name in codecs.CODECS[1:]:
        codec = codecs.get_codec(name)
        codes, scales = map(np.asarray, encode(codec, x))
        if codec.is_cold:
            codes = np.concatenate([codes & 15, codes >> 4], axis=-1)
            assert not (codes == 8).any()
        elif codes.dtype == np.uint8:
            assert not (codes == 0x80).any()
        groups = codes.reshape(*scales.shape, -1)
        np.testing.assert_array_equal(groups.any(-1), scales != 0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_inputs_are_widened_exactly(dtype):
    x = jnp.asarray(contents(5, "gaussian", (*PLANES, 64))).astype(dtype)
    for name in ("bf16", "fp8_e4m3", "int8_g64", "nvfp4_g16", "int4_g16"):
        codec = codecs.get_codec(name)
        assert_same_bytes(encode(codec, x), encode(codec, x.astype(jnp.float32)))


@pytest.mark.parametrize("name", codecs.CODECS)
def test_widths_and_dtypes_are_those_stored(name):
    codec = codecs.get_codec(name)
    for head_dim in HEAD_DIMS:
        x = jax.ShapeDtypeStruct((3, head_dim), jnp.float32)
        enc = jax.eval_shape(codec.encode, x)
        assert enc.codes.shape == (3, codec.code_width(head_dim))
        assert enc.codes.dtype == jnp.dtype(codec.code_dtype)
        assert (enc.scales is None) == (codec.scale_dtype is None)
        if enc.scales is not None:
            assert enc.scales.shape == (3, codec.scale_width(head_dim))
            assert enc.scales.dtype == jnp.dtype(codec.scale_dtype)
        stored = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(enc))
        assert stored == 3 * codec.bytes_per_token(head_dim)
        assert jax.eval_shape(codec.decode, enc) == x


def test_bytes_of_a_plane_of_64_tokens():
    per_plane = {name: 64 * codecs.get_codec(name).bytes_per_token(256) for name in codecs.CODECS}
    assert per_plane == {
        "bf16": 32768,
        "fp8_e4m3": 16384 + 256,
        "int8_g64": 16384 + 512,
        "nvfp4_g16": 8192 + 1024,
        "nvfp4_g16+search": 8192 + 1024,
        "e2m1_g64": 8192 + 256,
        "e2m1_g64+search": 8192 + 256,
        "int4_g16": 8192 + 1024,
    }


@pytest.mark.parametrize("name", codecs.CODECS)
def test_bad_heads_dtypes_and_missing_scales_are_refused(name):
    codec = codecs.get_codec(name)
    rows = jax.ShapeDtypeStruct((2, 64), jnp.float32)
    with pytest.raises(ValueError, match="head_dim=96"):
        jax.eval_shape(codec.encode, jax.ShapeDtypeStruct((2, 96), jnp.float32))
    with pytest.raises(ValueError, match="head_dim=96"):
        codec.bytes_per_token(96)
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        jax.eval_shape(codec.encode, rows.update(dtype=jnp.float8_e4m3fn))
    enc = jax.eval_shape(codec.encode, rows)
    wrong = rows if enc.scales is None else None
    with pytest.raises(ValueError, match="scales"):
        jax.eval_shape(codec.decode, enc._replace(scales=wrong))
    with pytest.raises(ValueError, match="codes are"):
        jax.eval_shape(codec.decode, enc._replace(codes=enc.codes.update(dtype=jnp.int32)))


def test_names_and_flags():
    for name in codecs.CODECS:
        codec = codecs.get_codec(name)
        assert codec.name == name
        assert codec == codecs.get_codec(name) and hash(codec) == hash(codecs.get_codec(name))
    assert [name for name in codecs.CODECS if codecs.get_codec(name).is_cold] == [
        "nvfp4_g16",
        "nvfp4_g16+search",
        "e2m1_g64",
        "e2m1_g64+search",
        "int4_g16",
    ]
    with pytest.raises(ValueError, match="'fp4'.*nvfp4_g16.*int4_g16"):
        codecs.get_codec("fp4")
    with pytest.raises(ValueError, match=r"'int4_g16\+search'.*'search'.*known: int4_g16\."):
        codecs.get_codec("int4_g16+search")
    with pytest.raises(ValueError, match="'serach'.*known: e2m1_g64, e2m1_g64.search"):
        codecs.get_codec("e2m1_g64+serach")
    with pytest.raises(ValueError, match="''"):
        codecs.get_codec("")


def test_nibbles_pair_channels_half_a_row_apart():
    x = np.zeros((1, 64), np.float32)
    x[0, [0, 5, 32, 37]] = [6, 3, -4, -0.5]
    codes, scales = map(np.asarray, encode(codecs.get_codec("e2m1_g64"), x))
    assert scales.tolist() == [[0x38]]  # 1.0
    assert codes[0, 0] == 0xE7 and codes[0, 5] == 0x95
    assert codes.sum() == 0xE7 + 0x95


def test_every_bit_pattern_reads_as_ml_dtypes_reads_it():
    every = np.arange(256, dtype=np.int32)
    want = every.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(bits.e4m3_to_float(jnp.asarray(every)), want)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[(halves >= 0) & np.isfinite(halves)].astype(np.float32)
    np.testing.assert_array_equal(bits.round_to_f16(jnp.asarray(halves)), halves)


@pytest.mark.parametrize(
    ("rounding", "dtype", "step"),
    [
        (bits.round_to_f16, np.float16, 13),
        (bits.round_to_bf16, ml_dtypes.bfloat16, 16),
        (bits.round_to_e4m3, ml_dtypes.float8_e4m3fn, 20),
    ],
)
def test_software_rounding_goes_to_nearest_even(rounding, dtype, step):
    patterns = np.arange(0, 0x7F800000 >> (step - 1), dtype=np.int64) << (step - 1)
    x = (patterns[:, None] + [-1, 0, 1]).clip(0).astype(np.int32).view(np.float32).reshape(-1)
    x = x[x <= {np.float16: 65504, ml_dtypes.float8_e4m3fn: 448}.get(dtype, 3.38e38)]
    want = x.astype(dtype)
    want = want.view(np.uint8) if step == 20 else want.astype(np.float32)
    np.testing.assert_array_equal(jax.jit(rounding)(x), want)


@pytest.mark.parametrize("name", codecs.CODECS[1:])
def test_infinities_saturate_and_nan_is_zero_beside_its_neighbours(name):
    codec = codecs.get_codec(name)
    x = np.ones((1, 64), np.float32)
    x[0, :3] = [np.nan, 2, -2]
    got = np.asarray(decode(codec, encode(codec, x)))
    x[0, 0] = 0
    np.testing.assert_array_equal(got, decode(codec, encode(codec, x)))
    assert got[0, 0] == 0 and 1.8 < got[0, 1] < 2.2
    x[0, :2] = [np.inf, -np.inf]
    got = np.asarray(decode(codec, encode(codec, x)))
    largest = {"fp8": 1.875 * 2.0**127, "int8": 127 * 65504, "int4": 7 * 448}
    largest = largest.get(name.split("_")[0], 6 * 448)
    assert got[0, 0] == largest and got[0, 1] == -largest


def test_is_finite_looks_at_each_plane():
    x = np.ones((3, 2, 4, 64), np.float32)
    x[0, 1, 3, 63], x[1, 0, 0, 0], x[2, 1, 2, 7] = np.nan, np.inf, -np.inf
    want = [[True, False], [False, True], [True, False]]
    for dtype in (jnp.float32, jnp.bfloat16):
        assert codecs.is_finite(jnp.asarray(x, dtype)).tolist() == want


def gaussian() -> np.ndarray:
    return np.random.default_rng(11).standard_normal((4096, 256)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("bf16", 2.6e-6, 2.9e-6),
        ("fp8_e4m3", 6.5e-4, 7.5e-4),
        ("int8_g64", 3.3e-5, 3.7e-5),
        ("nvfp4_g16", 0.0089, 0.0091),
        ("nvfp4_g16+search", 0.0074, 0.0077),
        ("e2m1_g64", 0.0110, 0.0114),
        ("e2m1_g64+search", 0.0106, 0.0109),
        ("int4_g16", 0.0073, 0.0076),
    ],
)
def test_error_on_gaussian_rows(name, low, high):
    x = gaussian()
    codec = codecs.get_codec(name)
    hot = codecs.get_codec("int8_g64")
    source = decode(hot, encode(hot, x)) if name.startswith("e2m1_g64") else x
    y = np.asarray(decode(codec, encode(codec, source)))
    assert low < np.square(y - x).mean() / np.square(x).mean() < high


def test_search_never_errs_more_than_the_plain_codec():
    x = gaussian()
    for base, group in (("nvfp4_g16", 16), ("e2m1_g64", 64)):
        errors = []
        for codec in map(codecs.get_codec, (base + "+search", base)):
            error = np.asarray(decode(codec, encode(codec, x)), np.float64) - x
            errors.append(np.square(error.reshape(-1, group)).sum(-1))
        amax = np.abs(x).reshape(-1, group).max(-1)
        assert (errors[0] <= errors[1] + 1e-3 * amax**2).all()


def test_encode_maps_over_planes():
    x = contents(3, "gaussian", (4, *PLANES, 64))
    for name in ("int8_g64", "e2m1_g64+search"):
        codec = codecs.get_codec(name)
        assert_same_bytes(jax.jit(jax.vmap(codec.encode))(x), encode(codec, x))


def test_decode_of_encode_in_one_program_is_that_of_two():
    x = contents(9, "gaussian", (*PLANES, 64))
    for name in codecs.CODECS:
        codec = codecs.get_codec(name)
        together = jax.jit(lambda x, codec=codec: codec.decode(codec.encode(x)))(x)
        np.testing.assert_array_equal(together, decode(codec, encode(codec, x)))


def test_every_pair_is_named_once():
    assert len(set(codecs.CODECS)) == len(codecs.CODECS) == 8
    for hot, cold in itertools.product(codecs.CODECS, repeat=2):
        assert codecs.is_byte_stable(codecs.get_codec(hot), codecs.get_codec(cold)) in (True, False)
