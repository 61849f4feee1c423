"""Paged attention against a dense float64 softmax over what the pages hold."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import banks
from pallas_kernels.codecs import Encoded, get_codec
from pallas_kernels.paged_attention import ColdPlane, HotPlane, paged_attention

PAGE, HEADS, ROWS, TABLE = 16, 2, 4, 5
PAGES, SLOTS, PLANES = 23, 9, 3
HOLE = -1


class Geometry(NamedTuple):
    """What a case fixes: formats of hot K and V, of cold K and V, and the query heads."""

    dim: int
    group: int
    hot: tuple[str, str]
    cold: tuple[str, str]


GEOMETRIES = {
    "64": Geometry(64, 1, ("bf16", "int8_g64"), ("nvfp4_g16", "e2m1_g64")),
    "128": Geometry(128, 2, ("fp8_e4m3", "nvfp4_g16"), ("int4_g16", "nvfp4_g16")),
    "256": Geometry(256, 6, ("int8_g64", "bf16"), ("e2m1_g64", "int4_g16")),
}
# Row 0 decodes after 70 tokens, row 1 prefills 20 over 37, row 2 does nothing, row 3 is new.
LENGTHS = np.array([70, 37, 50, 0], np.int32)
COUNTS = np.array([1, 20, 0, 13], np.int32)
KINDS = ["hcohh", "chhho", "hhhho", "hoooo"]  # hot, cold, hole; past a row's end too


def poisoned(x: np.ndarray) -> np.ndarray:
    """Bytes that decode to NaN, or at worst to the largest code, in every format."""
    if x.dtype.itemsize > 1:
        return np.full_like(x, np.nan)
    return np.full(x.shape, 0x7F, np.uint8).view(x.dtype)


class Case(NamedTuple):
    """Operands, and the K and V of every row as float64 [row, head, token, dim]."""

    q: jax.Array
    planes: tuple
    cold: tuple
    entries: jax.Array
    dense: tuple
    held: np.ndarray


@functools.cache
def case(name: str, host: bool) -> Case:
    """Each row's pages are its own; all other storage, and every unwritten token, is poisoned."""
    geometry = GEOMETRIES[name]
    rng = np.random.default_rng(len(name) + geometry.dim)
    pages, slots = list(rng.permutation(PAGES)), list(rng.permutation(SLOTS))
    entries = np.full((ROWS, TABLE), HOLE, np.int32)
    held = np.zeros((ROWS, TABLE * PAGE), bool)
    for row, kinds in enumerate(KINDS):
        for place, kind in enumerate(kinds):
            if kind != "o" and place * PAGE < LENGTHS[row] + COUNTS[row]:
                entries[row, place] = pages.pop() if kind == "h" else -2 - slots.pop()
                held[row, place * PAGE : (place + 1) * PAGE] = True
    hot, cold, dense = [], [], []
    for kv in (0, 1):
        codec, cold_codec = get_codec(geometry.hot[kv]), get_codec(geometry.cold[kv])
        content = rng.normal(size=(ROWS, TABLE, HEADS, PAGE, geometry.dim)).astype(np.float32)
        content *= 0.5 + kv + np.arange(HEADS)[:, None, None]  # K is not V, nor one head another
        (new, decoded), (new_cold, restored) = (
            through(content, codec=c) for c in (codec, cold_codec)
        )
        decoded = np.where((entries < HOLE)[..., None, None, None], restored, decoded)
        dense.append(np.moveaxis(decoded, 2, 1).reshape(ROWS, HEADS, -1, geometry.dim))
        hot.append(HotPlane(_pool(new, entries, 1 + kv), 1 + kv, codec))
        cold.append(_bank(new_cold, entries, cold_codec, 37 if kv else 2000, host))
    shape = (ROWS, int(max(COUNTS)), HEADS * geometry.group, geometry.dim)
    q = jnp.asarray(rng.normal(size=shape), jnp.float32)
    return Case(q, tuple(hot), tuple(cold), jnp.asarray(entries), tuple(dense), held)


@functools.partial(jax.jit, static_argnames="codec")
def through(x, *, codec):
    """(codes and scales, what they decode to)."""
    encoded = codec.encode(x)
    return encoded, codec.decode(encoded)


def _written(row: int, place: int) -> int:
    """Tokens of a page that hold something."""
    return int(np.clip(LENGTHS[row] + COUNTS[row] - place * PAGE, 0, PAGE))


def _pool(new: Encoded, entries, plane: int) -> Encoded:
    def fill(leaf):
        leaf = np.asarray(leaf)
        pool = poisoned(np.empty((PAGES, PLANES, *leaf.shape[2:]), leaf.dtype))
        for row, place in np.argwhere(entries >= 0):
            size = _written(row, place)
            pool[entries[row, place], plane, :, :size] = leaf[row, place, :, :size]
        return jnp.asarray(pool)

    return jax.tree.map(fill, new)


def _bank(new: Encoded, entries, codec, start: int, host: bool) -> ColdPlane:
    bank = np.full((SLOTS + 1, 20_000), 0x7F, np.uint8)
    codes, scales = np.asarray(new.codes), np.asarray(new.scales)
    size = codes[0, 0].nbytes
    for row, place in np.argwhere(entries < HOLE):
        record = np.frombuffer(codes[row, place].tobytes() + scales[row, place].tobytes(), np.uint8)
        bank[-2 - entries[row, place], start : start + len(record)] = record
    place = banks.make_bank(SLOTS, bank.shape[1], host=host).sharding
    return ColdPlane(jax.device_put(bank, place), start, start + size, codec)


def oracle(x: Case, *, scale=None) -> np.ndarray:
    """Softmax attention in float64, one query at a time."""
    q = np.asarray(x.q, np.float64)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[2] // HEADS
    out = np.zeros_like(q)
    for row, token, head in np.ndindex(q.shape[:3]):
        position = LENGTHS[row] + token
        seen = x.held[row] & (np.arange(TABLE * PAGE) <= position)
        if token >= COUNTS[row] or not seen.any():
            continue
        k, v = (d[row, head // group][seen].astype(np.float64) for d in x.dense)
        scores = scale * (k @ q[row, token, head])
        weights = np.exp(scores - scores.max())
        out[row, token, head] = weights @ v / weights.sum()
    return out


@functools.partial(jax.jit, static_argnames=("block_pages", "scale"))
def attend(q, k, v, entries, lengths, counts, cold_k, cold_v, *, block_pages=8, scale=None):
    return paged_attention(
        q, k, v, entries, lengths, counts, cold_k=cold_k, cold_v=cold_v,
        block_pages=block_pages, scale=scale,
    )  # fmt: skip


def run(x: Case, **options):
    return attend(x.q, *x.planes, x.entries, LENGTHS, COUNTS, *x.cold, **options)


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_prefill_and_decode_in_one_call_are_dense_attention(name, host):
    x = case(name, host)
    np.testing.assert_allclose(run(x, block_pages=2), oracle(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("block_pages", [1, 3, 8])
def test_any_block_of_pages_gives_the_same_up_to_rounding(block_pages):
    x = case("64", False)
    np.testing.assert_allclose(run(x, block_pages=block_pages), oracle(x), rtol=2e-5, atol=2e-5)


def test_the_scale_is_that_of_the_head_unless_named():
    x = case("64", False)
    got = run(x, block_pages=2, scale=0.3)
    np.testing.assert_allclose(got, oracle(x, scale=0.3), rtol=2e-5, atol=2e-5)


def test_a_single_token_of_each_row_is_the_decode_case():
    x = case("128", True)
    counts = np.minimum(COUNTS, 1)
    got = attend(x.q[:, :1], *x.planes, x.entries, LENGTHS, counts, *x.cold, block_pages=2)
    np.testing.assert_allclose(got, oracle(x)[:, :1], rtol=2e-5, atol=2e-5)


def test_tokens_that_are_not_valid_and_rows_without_pages_give_zero():
    x = case("64", False)
    out = np.asarray(run(x, block_pages=2))
    for row, count in enumerate(COUNTS):
        assert not np.any(out[row, count:])
    empty = jnp.full_like(x.entries, HOLE)
    out = attend(x.q, *x.planes, empty, LENGTHS, COUNTS, *x.cold, block_pages=2)
    assert not np.any(out)
    out = attend(x.q, *x.planes, x.entries, LENGTHS, COUNTS * 0, *x.cold, block_pages=2)
    assert not np.any(out)


def test_rows_do_not_see_one_another():
    """To the bit: a row's result is the same whatever the other rows hold, ask and are."""
    x = case("128", True)
    out = np.asarray(run(x, block_pages=2))
    for row in range(ROWS):
        others = np.arange(ROWS) != row
        entries = np.where(others[:, None], HOLE, x.entries).astype(np.int32)
        lengths, counts = np.where(others, 0, LENGTHS), np.where(others, 0, COUNTS)
        q = jnp.where(others[:, None, None, None], jnp.nan, x.q)
        alone = attend(q, *x.planes, entries, lengths, counts, *x.cold, block_pages=2)
        np.testing.assert_array_equal(np.asarray(alone)[row], out[row])


def test_without_cold_planes_cold_entries_are_holes():
    x = case("256", False)
    got = attend(x.q, *x.planes, x.entries, LENGTHS, COUNTS, None, None, block_pages=2)
    hot = np.repeat(np.asarray(x.entries) >= 0, PAGE, axis=1)
    wanted = oracle(x._replace(held=x.held & hot))
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)
    assert np.any(np.abs(wanted - oracle(x)) > 1e-2)


def test_the_result_has_the_dtype_of_q():
    x = case("64", False)
    got = run(x._replace(q=x.q.astype(jnp.bfloat16)), block_pages=2)
    assert got.dtype == jnp.bfloat16
    x = x._replace(q=x.q.astype(jnp.bfloat16).astype(jnp.float32))
    np.testing.assert_allclose(got.astype(np.float32), oracle(x), rtol=1e-2, atol=1e-2)


def test_query_heads_that_do_not_group_are_refused():
    x = case("64", False)
    q = jnp.zeros((ROWS, 1, 3, 64))
    with pytest.raises(ValueError, match="q has 3 heads, not a multiple of 2"):
        jax.eval_shape(paged_attention, q, *x.planes, x.entries, LENGTHS, COUNTS)
