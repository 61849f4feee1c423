"""The index under jit, vmap, scan, eval_shape and donation."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiercache.prefix.machine import (
    MAX_PAGES,
    NAMESPACES,
    NUM_NODES,
    NUM_TOKENS,
    empty_index,
    prompt,
)
from tiercache import prefix
from tiercache.ids import HOLE, NO_NODE
from tiercache.prefix import _victims

LENGTH = jnp.int32(NUM_TOKENS)


def serve(index, tokens):
    """One request: match, make known, let the oldest leaf go, forget what is dead."""
    namespace = jnp.asarray(NAMESPACES[0])
    plan = prefix.match(index, tokens, LENGTH, namespace, needs_snapshot=False)
    index, pinned = prefix.pin(index, plan, jnp.int32(0))
    index, made = prefix.extend(index, tokens, jnp.int32(MAX_PAGES - 1), namespace)
    fresh = jnp.where(made.is_new, index.clock * 10 + jnp.arange(MAX_PAGES), HOLE)
    index = prefix.set_entries(index, jnp.where(made.is_new, made.node_ids, NO_NODE), fresh)
    index, _ = prefix.unpin(index, jnp.int32(0))
    leaves = prefix.has_copy(index) & (prefix.live_children(index) == 0)
    oldest = prefix.victims(index, leaves, want=2)
    index = prefix.set_entries(index, oldest, jnp.full((2,), HOLE, jnp.int32))
    index, num_dropped = prefix.drop_dead(index)
    return index, (plan, pinned, made, oldest, num_dropped, prefix.check(index))


def requests(seed, count=12):
    rng = np.random.default_rng(seed)
    return np.stack([prompt(rng.integers(0, 2, MAX_PAGES).tolist()) for _ in range(count)])


def test_a_trace_in_one_scan_is_the_loop():
    trace = requests(0)
    scanned, outs = jax.jit(lambda index: jax.lax.scan(serve, index, trace))(empty_index())
    step = jax.jit(serve)
    index = empty_index()
    for place, tokens in enumerate(trace):
        index, out = step(index, tokens)
        jax.tree.map(lambda a, b, i=place: np.testing.assert_array_equal(a[i], b), outs, out)
    jax.tree.map(np.testing.assert_array_equal, scanned, index)
    assert all(np.all(flag) for flag in outs[-1])
    assert np.any(outs[0].num_pages > 0) and np.any(outs[4] > 0)


def test_indexes_side_by_side_do_not_see_one_another():
    traces = np.stack([requests(seed, 6) for seed in range(3)])
    run = jax.jit(lambda index, trace: jax.lax.scan(serve, index, trace))
    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), empty_index())
    together = jax.jit(jax.vmap(run))(start, traces)
    for lane in range(3):
        alone = run(empty_index(), traces[lane])
        jax.tree.map(lambda a, b, i=lane: np.testing.assert_array_equal(a[i], b), together, alone)


def test_shapes_and_dtypes_stay():
    index = empty_index()
    tokens = jnp.zeros((NUM_TOKENS,), jnp.int32)
    after, _ = jax.eval_shape(serve, index, tokens)
    jax.tree.map(
        lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype) or pytest.fail(), index, after
    )
    weak = [leaf.weak_type for leaf in jax.tree.leaves(jax.eval_shape(serve, index, tokens))]
    assert not any(weak)


def test_other_prompts_lengths_and_namespaces_do_not_compile_again():
    match = jax.jit(lambda *args: prefix.match(*args))
    extend = jax.jit(lambda *args: prefix.extend(*args))
    index = empty_index()
    for place, namespace in enumerate(NAMESPACES):
        tokens = prompt([place])
        match(index, tokens, jnp.int32(17 * place), namespace)
        index, _ = extend(index, tokens, jnp.int32(place), namespace)
    assert (match._cache_size(), extend._cache_size()) == (1, 1)


def big_index():
    return prefix.init_index(num_nodes=512, page_size=64, max_pages=8, num_leases=4)


def donated_verbs():
    index = big_index()
    ids = jnp.zeros((8,), jnp.int32)
    tokens = jnp.zeros((512,), jnp.int32)
    namespace = jnp.asarray(NAMESPACES[0])
    plan = jax.eval_shape(prefix.match, index, tokens, jnp.int32(1), namespace)
    one = jnp.int32(1)
    return {
        "touch": (prefix.touch, ids),
        "pin": (prefix.pin, plan, one),
        "unpin": (prefix.unpin, one),
        "repin": (prefix.repin, one, ids, one),
        "extend": (prefix.extend, tokens, one, namespace),
        "drop_dead": (prefix.drop_dead,),
        "set_entries": (prefix.set_entries, ids, ids),
        "relocate": (prefix.relocate, ids, ids),
    }


@pytest.mark.parametrize("name", donated_verbs())
def test_a_donated_index_is_changed_in_place(name):
    verb, *args = donated_verbs()[name]
    compiled = jax.jit(verb, donate_argnums=0).lower(big_index(), *args).compile()
    text = compiled.as_text()
    for shape in ("s32[512,64]", r"s32[1024,2,8]"):
        assert not re.search(rf"= {re.escape(shape)}\S* copy\(", text), shape
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(big_index()))
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes > 0.9 * min(size, memory.output_size_in_bytes)


def test_the_copy_test_sees_a_copy():
    text = jax.jit(prefix.touch).lower(big_index(), jnp.zeros((8,), jnp.int32)).compile().as_text()
    assert re.search(r"s32\[512,64\]\S* copy\(", text)


def test_victims_name_children_before_parents():
    extend = jax.jit(prefix.extend)
    index, info = extend(empty_index(), prompt([0, 1, 2, 0]), jnp.int32(4), NAMESPACES[0])
    index, _ = extend(index, prompt([0, 1, 1]), jnp.int32(3), NAMESPACES[0])
    index = prefix.touch(index, info.node_ids[2:3])
    order = prefix.victims(index, index.depth > 0, want=NUM_NODES).tolist()
    places = {node_id: place for place, node_id in enumerate(order) if node_id != NO_NODE}
    assert len(places) == 5
    for node_id, place in places.items():
        assert places.get(int(index.parent[node_id]), NUM_NODES) > place


@pytest.mark.parametrize("want", [1, 7, 64])
def test_a_search_for_victims_gives_what_sorting_gives(monkeypatch, want):
    rng = np.random.default_rng(want)
    index = big_index()
    sort = jax.jit(lambda index, mask: prefix.victims(index, mask, want=want))
    masks = [rng.random(512) < share for share in (0, 0.05, 0.5, 1)]
    lanes = []
    for _ in range(6):
        size, clock = (512,), int(rng.choice([1, 5, 1000, 2**31 - 1]))
        lanes.append(
            index._replace(
                last_use=jnp.asarray(rng.integers(0, clock, size), jnp.int32),
                depth=jnp.asarray(rng.integers(-1, 9, size), jnp.int32),
                pins=jnp.asarray(rng.integers(0, 5, size) == 0, jnp.int32),
            )
        )
    expected = [sort(lane, mask) for lane in lanes for mask in masks]
    monkeypatch.setattr(_victims, "_SORT_UP_TO", 0)
    search = jax.jit(lambda index, mask: prefix.victims(index, mask, want=want))
    got = [search(lane, mask) for lane in lanes for mask in masks]
    np.testing.assert_array_equal(got, expected)
