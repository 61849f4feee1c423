"""`append` and `attend` over a whole cache, against float64 attention over what it holds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiercache as tc
from pallas_kernels.page_layout import record_to_page
from tests.tiercache import builders
from tests.tiercache.builders import ids, int32

GROUP, WIDTH = 3, 21
COUNTS = (1, 21, 0)  # row 0 decodes while row 1 prefills over what it has


def spec_of(policy: str) -> tc.CacheSpec:
    return builders.spec_of(
        num_layers=3, max_rows=3, head_dim=64, policy=policy, force_codecs=True,
        hot_formats="all:bf16; 1.k:int8_g64; 2:fp8_e4m3; 0.v:nvfp4_g16",
        cold_formats="all:nvfp4_g16; 1.k:e2m1_g64; 2:int4_g16; 0.v:e2m1_g64",
    )  # fmt: skip


def inputs(spec, rows: int, width: int, seed: int):
    rng = np.random.default_rng(seed)
    shape = (spec.num_layers, rows, width, spec.num_kv_heads, spec.head_dim)
    q_shape = (*shape[:3], spec.num_kv_heads * GROUP, spec.head_dim)
    return (
        builders.normal(rng, *q_shape), builders.normal(rng, *shape), builders.normal(rng, *shape)
    )  # fmt: skip


def poison(state: tc.CacheState, spec: tc.CacheSpec) -> tc.CacheState:
    """NaN, or the largest code, in every page and slot: nothing is owned yet."""

    def worst(x):
        if x.dtype.itemsize > 1:
            return jnp.full_like(x, jnp.nan)
        return jax.lax.bitcast_convert_type(jnp.full(x.shape, 0x7F, jnp.uint8), x.dtype)

    bank = jax.device_put(np.full(state.cold.bank.shape, 0x7F, np.uint8), state.cold.bank.sharding)
    return state._replace(
        pages=state.pages._replace(payload=jax.tree.map(worst, state.pages.payload)),
        cold=state.cold._replace(bank=bank),
    )


@functools.partial(jax.jit, static_argnames=("spec", "block_pages"))
def step(state, row_ids, counts, q, k, v, *, spec, block_pages=2):
    """One step of a model, without the model."""
    rows = jnp.zeros(spec.max_rows, jnp.int32).at[row_ids].set(counts, mode="drop")
    state, _ = tc.reserve(state, rows, max_tokens=q.shape[2], spec=spec)
    view = tc.view(state, row_ids, counts, num_tokens=q.shape[2], spec=spec)
    out = []
    for layer in range(spec.num_layers):
        state, _ = tc.append(state, view, layer, k[layer], v[layer], spec=spec)
        out.append(tc.attend(state, view, layer, q[layer], block_pages=block_pages, spec=spec))
    return tc.advance(state, rows, spec=spec)[0], jnp.stack(out)


@functools.cache
def prepared(policy: str):
    """Row 0: 53 tokens, two pages of them cold, one a hole. Row 1: 20 tokens. Row 2: a fork of
    row 1 that has gone its own way."""
    spec = spec_of(policy)
    run = builders.verbs(spec)
    state = poison(tc.init_state(spec), spec)
    state = builders.grow(state, spec, 0, 53, seed=1)
    state = builders.grow(state, spec, 1, 20, seed=2)
    state, _ = run.fork(state, int32(1), int32(2))
    state = builders.grow(state, spec, 2, 9, seed=3)
    assert int(state.table.entries[1, 1]) != int(state.table.entries[2, 1])  # copied, then written
    state, info = run.requantize(state, state.table.entries[0, jnp.array([2, 0])])
    assert not np.any(info.reason) and int(info.slot_ids[0]) == 0
    builders.sound(state, spec)
    table = state.table
    return state._replace(table=table._replace(entries=table.entries.at[0, 1].set(tc.HOLE)))


@functools.partial(jax.jit, static_argnames="spec")
def decoded(pages, bank, entries, *, spec):
    """Float32 [layer, kv, page, head, token, dim] of a row's entries; anything at a hole."""
    hot, cold = spec.hot_layout, spec.cold_layout
    records = jax.vmap(lambda r: record_to_page(cold, r))(bank[jnp.maximum(-2 - entries, 0)])
    pages = jax.tree.map(lambda x: x[jnp.maximum(entries, 0)], pages)
    is_cold = (entries < tc.HOLE)[:, None, None, None]
    planes = []
    for layer, kv in np.ndindex(spec.num_layers, 2):
        parts = []
        for layout, source in ((cold, records), (hot, pages)):
            group, plane = layout.find(layer, kv)
            encoded = jax.tree.map(lambda x, plane=plane: x[:, plane], source[group])
            parts.append(layout.groups[group].codec.decode(encoded))
        planes.append(jnp.where(is_cold, *parts))
    return jnp.stack(planes).reshape(spec.num_layers, 2, *planes[0].shape)


def contents(state, spec, row: int):
    """(float64 [layer, kv, head, token, dim] of a row, which of its tokens it holds)."""
    entries = state.table.entries[row]
    bank = jnp.asarray(np.asarray(state.cold.bank))
    planes = np.asarray(decoded(state.pages.payload, bank, entries, spec=spec), np.float64)
    planes = np.moveaxis(planes, 3, 2).reshape(*planes.shape[:2], spec.num_kv_heads, -1, 64)
    return planes, np.repeat(np.asarray(entries) != tc.HOLE, spec.page_size)


def dense(k, v, held, q, length: int, count: int):
    """What a row's `count` tokens after `length` attend to: [token, head, dim]."""
    out = np.zeros(q.shape)
    for token, head in np.ndindex(count, q.shape[1]):
        seen = held & (np.arange(len(held)) <= length + token)
        scores = k[head // GROUP][seen] @ q[token, head].astype(np.float64) * q.shape[2] ** -0.5
        weights = np.exp(scores - scores.max())
        out[token, head] = weights @ v[head // GROUP][seen] / weights.sum()
    return out


@pytest.mark.parametrize("policy", ["host", pytest.param("window", marks=pytest.mark.slow)])
def test_attend_is_dense_attention_over_what_each_row_holds(policy):
    spec, state = spec_of(policy), prepared(policy)
    assert tc.state.is_host(state.cold.bank) is (policy == "host")
    q, k, v = inputs(spec, 3, WIDTH, 7)
    after, out = step(state, ids(0, 1, 2), ids(*COUNTS), q, k, v, spec=spec)
    assert after.table.lengths.tolist() == [54, 41, 29]
    for row, count in enumerate(COUNTS):
        planes, held = contents(after, spec, row)
        for layer, (keys, values) in enumerate(planes):
            length = int(state.table.lengths[row])
            wanted = dense(keys, values, held, q[layer, row], length, count)
            np.testing.assert_allclose(out[layer, row], wanted, rtol=3e-5, atol=3e-5)
    builders.same(state.cold.bank, after.cold.bank)


def test_a_row_gets_the_same_bits_alone_and_among_others():
    spec, state = spec_of("host"), prepared("host")
    q, k, v = inputs(spec, 3, WIDTH, 7)
    together, out = step(state, ids(0, 1, 2), ids(*COUNTS), q, k, v, spec=spec)
    for row in (0, 1):
        counts = np.where(np.arange(3) == row, COUNTS, 0).astype(np.int32)
        others = (np.arange(3) != row)[None, :, None, None, None]
        noise = [np.where(others, np.float32(np.nan), x) for x in (q, k, v)]
        alone, got = step(state, ids(0, 1, 2), jnp.asarray(counts), *noise, spec=spec)
        np.testing.assert_array_equal(got[:, row], out[:, row])
        (one, held), (two, _) = (contents(s, spec, row) for s in (alone, together))
        held &= np.arange(len(held)) < int(together.table.lengths[row])
        np.testing.assert_array_equal(one[..., held, :], two[..., held, :])


def test_append_writes_each_token_to_its_place_in_the_layers_format():
    spec, state = spec_of("host"), prepared("host")
    q, k, v = inputs(spec, 3, WIDTH, 8)
    after, _ = step(state, ids(0, 1, 2), ids(*COUNTS), q, k, v, spec=spec)
    for row, count in enumerate(COUNTS):
        length = int(state.table.lengths[row])
        (held, _), (before, known) = contents(after, spec, row), contents(state, spec, row)
        kept = known & (np.arange(len(known)) < length)
        np.testing.assert_array_equal(held[..., kept, :], before[..., kept, :])
        for layer, kv in np.ndindex(spec.num_layers, 2):
            codec = spec.hot_layout.groups[spec.hot_layout.find(layer, kv)[0]].codec
            new = jnp.moveaxis(jnp.asarray((k, v)[kv][layer, row]), 1, 0)
            wanted = rounded(new, codec=codec)[:, :count]
            np.testing.assert_array_equal(held[layer, kv, :, length : length + count], wanted)


@functools.partial(jax.jit, static_argnames="codec")
def rounded(x, *, codec):
    return codec.decode(codec.encode(x))


def test_chunks_attend_to_the_same_as_one_prefill():
    """A prompt in one call, and in three over what the earlier ones left."""
    spec = spec_of("host")
    q, k, v = inputs(spec, 3, WIDTH, 9)
    empty = tc.init_state(spec)
    _, whole = step(empty, ids(0, 1, 2), ids(0, WIDTH, 0), q, k, v, spec=spec)
    state, parts = empty, []
    for start, end in ((0, 16), (16, 17), (17, WIDTH)):
        shifted = [np.roll(x, -start, axis=2) for x in (q, k, v)]
        state, out = step(state, ids(0, 1, 2), ids(0, end - start, 0), *shifted, spec=spec)
        parts.append(out[:, 1, : end - start])
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole[:, 1], rtol=1e-5, atol=1e-5)


def test_shapes_that_are_not_those_of_the_spec_are_refused():
    spec = spec_of("window")
    state = jax.eval_shape(lambda: tc.init_state(spec))
    view = jax.eval_shape(
        functools.partial(tc.view, num_tokens=2, spec=spec), state,
        *[jax.ShapeDtypeStruct((3,), jnp.int32)] * 2,
    )  # fmt: skip
    for shape in ((3, 1, 2, 64), (3, 2, 1, 64), (3, 2, 2, 128), (2, 2, 2, 64)):
        x = jax.ShapeDtypeStruct(shape, jnp.float32)
        with pytest.raises(ValueError, match=r"\(3, 2, 2, 64\)"):
            jax.eval_shape(lambda s, w, x: tc.append(s, w, 0, x, x, spec=spec), state, view, x)
    x = jax.ShapeDtypeStruct((3, 2, 2, 64), jnp.float32)
    with pytest.raises(ValueError, match=r"layer=3 .*\[0, 3\)"):
        jax.eval_shape(lambda s, w, x: tc.append(s, w, 3, x, x, spec=spec), state, view, x)
