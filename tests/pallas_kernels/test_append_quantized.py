"""New tokens in their places: kernel and reference against NumPy codecs and plain loops."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.append_quantized import arg_specs, pallas, reference
from pallas_kernels.append_quantized.api import append_quantized, mirror_tokens
from pallas_kernels.codecs import Encoded, get_codec
from pallas_kernels.page_layout import PageLayout
from tests.pallas_kernels.codecs import oracle
from tests.pallas_kernels.codecs.contents import contents
from tests.pallas_kernels.kernel_inputs import (
    SENTINEL,
    as_bytes,
    assert_same_bytes,
    in_host,
    is_in_host,
    lowered_for_h200,
    random_array,
    unchecked,
)

PAGES, HEADS, TOKENS, SLOTS = 4, 2, 8, 5
STEP = (3, 5)  # rows, tokens: fifteen, so that the last tile of four is not full
TUNING = pallas.Tuning(programs=3, rows=4, num_warps=4)

# Across two pages; sentinels of every kind, also as a place in the page; the start of a page.
PAGE_IDS = ((3, 3, 3, 0, 0), (2, -1, PAGES, SENTINEL, 2), (1, 1, 1, 1, -(2**31)))
OFFSETS = ((5, 6, 7, 0, 1), (0, 1, 2, 3, 7), (0, 1, TOKENS, -1, 0))
SLOT_IDS = ((4, 4, 4, 0, 0), (2, 2, 2, 2, SENTINEL), (1, SLOTS, -1, 3, 3))
PLACES = [
    (row, token, page, offset)
    for row, (pages, offsets) in enumerate(zip(PAGE_IDS, OFFSETS, strict=True))
    for token, (page, offset) in enumerate(zip(pages, offsets, strict=True))
    if 0 <= page < PAGES and 0 <= offset < TOKENS
]
NOWHERE = np.full(STEP, SENTINEL)
each = pytest.mark.parametrize("implementation", ["pallas", "reference"])


def ids(values) -> jax.Array:
    return jnp.asarray(values, jnp.int32)


class Format(NamedTuple):
    """A codec, and the rows that it is given."""

    name: str
    dim: int
    dtype: str

    @property
    def layout(self) -> PageLayout:
        return PageLayout.of(((self.name, self.name),) * 2, HEADS, TOKENS, self.dim)

    def pool(self) -> Encoded:
        """A poisoned pool: every byte is 0xFF."""
        leaves = [
            np.full((PAGES, *f.shape[:-1], f.shape[-1] * f.dtype.itemsize), 0xFF, np.uint8)
            for f in self.layout.fields
        ]
        views = [x.view(f.dtype) for x, f in zip(leaves, self.layout.fields, strict=True)]
        return Encoded(views[0], views[1] if len(views) == 2 else None)

    def rows(self, seed: int) -> np.ndarray:
        """Rows of one plane, [row, token, head, dim]: in some NaNs and infinities.

        And one of the few float32 next to a cut of `int8_g64` that the rounding for values of 18
        bits takes for the cut.
        """
        x = contents(seed, "gaussian", (*STEP, HEADS, self.dim)).clip(-6e4, 6e4)
        x[0, 1, 0, :3] = [np.nan, np.inf, -np.inf]
        x[1, 4, 1] = np.nan
        x[2, 0, :, 7] = -np.inf
        scale = np.float32(1986 / 1024)
        x[0, 3] = np.nextafter(32.5 * scale, np.float32(100))
        x[0, 3, :, 0] = 127 * scale
        return x.astype(self.dtype)


# Scales of one, two and four bytes a token, of more than a word, and none; halves and whole rows.
FORMATS = (
    Format("e2m1_g64", 64, "bfloat16"),
    Format("int8_g64", 64, "float32"),
    Format("fp8_e4m3", 128, "float16"),
    Format("nvfp4_g16", 256, "bfloat16"),
    Format("bf16", 128, "bfloat16"),
    Format("bf16", 64, "float32"),
)
PLANES = (3, 0)  # of four


def with_tokens(pool: Encoded, name: str, new: tuple[np.ndarray, ...]) -> Encoded:
    """The pool with the rows of PLANES in their PLACES."""
    pool = jax.tree.map(np.copy, pool)
    for plane, rows in zip(PLANES, new, strict=True):
        for row, token, page, offset in PLACES:
            codes, scales = oracle.encode(name, rows[row, token])
            pool.codes[page, plane, :, offset] = codes
            if scales is not None:
                pool.scales[page, plane, :, offset] = scales
    return pool


@each
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_new_tokens_are_encoded_into_their_places_and_nothing_else_is_written(form, implementation):
    static = {"planes": PLANES, "codec": get_codec(form.name)}
    function = functools.partial(reference.append_quantized, **static)
    if implementation == "pallas":
        function = functools.partial(
            pallas.append_quantized, **static, tuning=TUNING, interpret=True
        )
    function = jax.jit(function)
    pool, new = form.pool(), (form.rows(1), form.rows(2))
    got = function(pool, new, ids(PAGE_IDS), ids(OFFSETS))
    assert_same_bytes(got, with_tokens(pool, form.name, new))
    assert_same_bytes(function(pool, new, ids(NOWHERE), ids(OFFSETS)), pool)


def test_bfloat16_is_kept_bit_for_bit():
    """NaNs keep their payload, as in the codec."""
    rng = np.random.default_rng(0)
    form = Format("bf16", 64, "bfloat16")
    pool, rows = form.pool(), (random_array(rng, (*STEP, HEADS, 64), ml_dtypes.bfloat16),)
    kernel = functools.partial(
        pallas.append_quantized, planes=(1,), codec=get_codec("bf16"), interpret=True
    )
    want = jax.tree.map(np.copy, pool)
    for row, token, page, offset in PLACES:
        want.codes[page, 1, :, offset] = rows[0][row, token]
    assert_same_bytes(jax.jit(kernel)(pool, rows, ids(PAGE_IDS), ids(OFFSETS)), want)


# A format's planes are the V of two layers, and begin within the record: K has another. Tokens have
# scales of one byte, of two, of words, and none.
MIRRORED = (
    ("int8_g64", "e2m1_g64", 64),
    ("bf16", "int8_g64", 64),
    ("fp8_e4m3", "nvfp4_g16", 256),
    ("fp8_e4m3", "bf16", 128),
)


def with_mirrored(bank: np.ndarray, pool: Encoded, starts: tuple[int, ...]) -> np.ndarray:
    """The bank with the tokens of plane 1 in the records of their slots."""
    bank = bank.copy()
    for leaf, start in zip(map(as_bytes, jax.tree.leaves(pool)), starts, strict=False):
        for row, token, page, offset in PLACES:
            if 0 <= SLOT_IDS[row][token] < SLOTS:
                record = bank[SLOT_IDS[row][token], start : start + leaf[0].size]
                record.reshape(leaf.shape[1:])[1, :, offset] = leaf[page, 1, :, offset]
    return bank


@each
@pytest.mark.parametrize("formats", MIRRORED, ids=str)
def test_a_mirror_has_the_bytes_of_single_tokens_and_nothing_else_is_written(
    formats, implementation
):
    other, name, dim = formats
    layout = PageLayout.of(((other, name),) * 2, HEADS, TOKENS, dim)
    field = layout.plane_fields[0, 1]
    starts = (field.codes_offset, field.scales_offset)
    rng = np.random.default_rng(3)
    pool = jax.tree.map(
        lambda x: random_array(rng, (PAGES, 2, *x.shape[2:]), x.dtype), Format(name, dim, "").pool()
    )
    static = dict(planes=(1,), codes_offset=starts[0], scales_offset=starts[1])
    function = functools.partial(reference.mirror_tokens, **static)
    if implementation == "pallas":
        function = functools.partial(pallas.mirror_tokens, **static, tuning=TUNING, interpret=True)
    function = jax.jit(function)
    poisoned = np.full((SLOTS + 1, layout.record_bytes), 0xFF, np.uint8)
    want = with_mirrored(poisoned, pool, starts)
    for put in (in_host, jnp.asarray) if name == "int8_g64" else (in_host,):
        bank = function(pool, put(poisoned), ids(PAGE_IDS), ids(OFFSETS), ids(SLOT_IDS))
        assert_same_bytes(bank, want)
        assert is_in_host(bank) == (put is in_host)
    bank = function(pool, in_host(poisoned), ids(PAGE_IDS), ids(OFFSETS), ids(NOWHERE))
    assert_same_bytes(bank, poisoned)


SMALL = Format("int8_g64", 64, "bfloat16")
SMALL_STATIC = {"planes": PLANES, "codec": get_codec("int8_g64")}
RECORD = SMALL.layout.record_bytes
SCALES_AT = SMALL.layout.fields[1].offset


def small_args() -> tuple:
    """A pool, rows, and their places."""
    pool = jax.tree.map(jnp.asarray, SMALL.pool())
    return (
        pool,
        (jnp.asarray(SMALL.rows(1)), jnp.asarray(SMALL.rows(2))),
        ids(PAGE_IDS),
        ids(OFFSETS),
    )


def test_off_a_gpu_the_reference_serves():
    pool, new, page_ids, offsets = small_args()

    @jax.jit
    def step(pool, bank, new, page_ids, offsets, slot_ids):
        pool = append_quantized(pool, new, page_ids, offsets, **SMALL_STATIC)
        bank = mirror_tokens(
            pool, bank, page_ids, offsets, slot_ids, planes=(1,), codes_offset=0,
            scales_offset=SCALES_AT,
        )  # fmt: skip
        return pool, bank

    bank = np.zeros((SLOTS + 1, RECORD), np.uint8)
    got, mirror = step(pool, bank, new, page_ids, offsets, ids(SLOT_IDS))
    want = with_tokens(jax.tree.map(np.asarray, pool), "int8_g64", jax.tree.map(np.asarray, new))
    assert_same_bytes(got, want)
    assert_same_bytes(mirror, with_mirrored(bank, want, (0, SCALES_AT)))


def test_no_tokens_change_nothing():
    pool, new, *_ = small_args()
    none = jnp.zeros((0, 1), jnp.int32)
    rows = tuple(x[:0, :1] for x in new)
    assert append_quantized(pool, rows, none, none, **SMALL_STATIC) is pool
    bank = jnp.zeros((SLOTS + 1, RECORD), jnp.uint8)
    same = mirror_tokens(pool, bank, none, none, none, planes=(1,), codes_offset=0)
    assert same is bank


LOWERED = (
    "qwen3.5-27b nvfp4_g16 decode",
    "8-heads-of-64 int8_g64 prefill",
    "8-heads-of-64 int8_g64 decode (host)",
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", LOWERED)
def test_kernels_lower_for_a_gpu(name):
    (case,) = [case for case in arg_specs.CASES if case.name == name]
    assert "triton" in lowered_for_h200(case)


@pytest.mark.parametrize("case", arg_specs.CASES, ids=lambda case: case.name)
def test_cases_draw_places_that_exist_and_none_twice(case):
    pool, drawn = case.args[0], case.make(np.random.default_rng(0))
    assert [(x.shape, x.dtype) for x in drawn] == [
        (x.shape, x.dtype) for x in case.args[-len(drawn) :]
    ]
    page_ids, offsets, *slot_ids = (x.reshape(-1).tolist() for x in drawn)
    assert len(set(zip(page_ids, offsets, strict=True))) == len(page_ids)
    assert 0 <= min(page_ids) and max(page_ids) < pool.codes.shape[0]
    assert 0 <= min(offsets) and max(offsets) < pool.codes.shape[3]
    for slots in slot_ids:  # one slot per page
        assert len(set(zip(page_ids, slots, strict=True))) == len(set(page_ids)) == len(set(slots))
        assert 0 <= min(slots) and max(slots) < case.args[1].shape[0] - 1


def test_what_cannot_be_served_says_why():
    pool, new, *places = small_args()
    bank = jnp.zeros((SLOTS + 1, RECORD), jnp.uint8)
    static = {"planes": (1,), "codes_offset": 0}
    with pytest.raises(NotImplementedError, match="append_quantized runs on GPUs, not on a cpu"):
        append_quantized(pool, new, *places, **SMALL_STATIC, implementation="pallas")
    with pytest.raises(NotImplementedError, match="mirror_tokens runs on GPUs, not on a cpu"):
        mirror_tokens(pool, bank, *places, places[0], **static, implementation="pallas")
    with unchecked(), pytest.raises(ValueError, match="'fastest' .*'pallas', 'reference'"):
        append_quantized(pool, new, *places, **SMALL_STATIC, implementation="fastest")
    with unchecked(), pytest.raises(ValueError, match="'fastest' .*'pallas', 'reference'"):
        mirror_tokens(pool, bank, *places, places[0], **static, implementation="fastest")
    with pytest.raises(NotImplementedError, match="'float32', 'bfloat16'"):
        mixed = (new[0].astype(jnp.float32), new[1])
        pallas.append_quantized(pool, mixed, *places, **SMALL_STATIC, interpret=True)
    with pytest.raises(NotImplementedError, match=r"bytes \(1, 16\) .* no whole units of 2 bytes"):
        pallas.mirror_tokens(
            pool, bank, *places, places[0], planes=(1,), codes_offset=1, scales_offset=16
        )


def test_what_is_moved_by_the_byte_may_not_have_2_to_4_gib():
    """Offsets in the lowering have 32 bits up to 4 GiB, and a sign."""
    shape, step = (2**15, 4, 16, 1024), jax.ShapeDtypeStruct((1, 1), jnp.int32)
    pool = Encoded(
        jax.ShapeDtypeStruct((*shape, 32), jnp.uint8), jax.ShapeDtypeStruct((*shape, 1), jnp.uint8)
    )
    rows = (jax.ShapeDtypeStruct((1, 1, 16, 64), jnp.bfloat16),)
    append = functools.partial(
        pallas.append_quantized, planes=(0,), codec=get_codec("e2m1_g64"), interpret=True
    )
    with pytest.raises(NotImplementedError, match="2 to 4 GiB"):
        jax.eval_shape(append, pool, rows, step, step)


@pytest.mark.parametrize("planes", [(4, 0), (0, -1), (1, 1)])
def test_planes_that_do_not_exist_or_come_twice_are_an_error(planes):
    pool, new, *places = small_args()
    with pytest.raises(ValueError, match=r"are not distinct planes of \[0, 4\)"):
        append_quantized(pool, new, *places, planes=planes, codec=SMALL_STATIC["codec"])
    bank = jnp.zeros((SLOTS + 1, RECORD), jnp.uint8)
    with pytest.raises(ValueError, match=r"are not distinct planes of \[0, 4\)"):
        mirror_tokens(pool, bank, *places, places[0], planes=planes, codes_offset=0)


def test_shapes_that_do_not_fit_each_other_are_errors():
    pool, new, page_ids, offsets = small_args()
    call = functools.partial(append_quantized, **SMALL_STATIC)
    with pytest.raises(ValueError, match=r"1 arrays of rows for the planes \(3, 0\)"):
        call(pool, new[:1], page_ids, offsets)
    with unchecked():
        with pytest.raises(ValueError, match=r"offsets \(2, 5\) are not \(3, 5\)"):
            call(pool, new, page_ids, offsets[:2])
        with pytest.raises(ValueError, match=r"rows \(3, 5, 1, 64\) are not \(3, 5, 2, 64\)"):
            call(pool, tuple(x[:, :, :1] for x in new), page_ids, offsets)
        with pytest.raises(ValueError, match="not int32"):
            call(pool, tuple(x.astype(jnp.int32) for x in new), page_ids, offsets)
    wide = tuple(jnp.concatenate([x, x], axis=-1) for x in new)
    with pytest.raises(ValueError, match="int8_g64 codes are 128 of int8 per token, not 64"):
        call(pool, wide, page_ids, offsets)


def test_a_record_without_room_for_the_format_is_an_error():
    pool, _, page_ids, offsets = small_args()
    bank = jnp.zeros((SLOTS + 1, RECORD), jnp.uint8)
    call = functools.partial(mirror_tokens, pool, bank, page_ids, offsets, page_ids, planes=(1,))
    with pytest.raises(
        ValueError, match=rf"codes at bytes 512 to {SCALES_AT + 512} of .* {RECORD}"
    ):
        call(codes_offset=512, scales_offset=SCALES_AT)
    with pytest.raises(ValueError, match=rf"scales at bytes {RECORD} to .* of {RECORD} bytes"):
        call(codes_offset=0, scales_offset=RECORD)
