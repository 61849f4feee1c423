"""Every verb under `jit`, `vmap` in `scan`, and `eval_shape`; and how often each compiles."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tiercache as tc
from tests.tiercache import builders
from tests.tiercache.builders import QUICK, SPEC, ids, int32

LENGTH = 3 * 16 + 5
PROMPT = jnp.asarray(builders.prompt(SPEC, LENGTH))
OTHER = jnp.asarray(builders.prompt(SPEC, LENGTH, 1, like=PROMPT, shared=35))
NAMESPACE = jnp.asarray(builders.NAMESPACE)
NUM_STATES, NUM_STEPS = 3, 2


class Case(NamedTuple):
    """A verb as (state, arguments) -> (state, info), and its arguments [step][state]."""

    verb: Callable
    arguments: list[list]


@functools.cache
def states():
    """Three caches: two running rows over a hot prefix; one row and all in host memory; one row
    that shares a cold prefix. Each is pinned once more, under a free row's lease."""
    run = builders.verbs(SPEC)
    base = builders.serve(tc.init_state(SPEC), SPEC, 0, PROMPT, LENGTH, save=(16, 48), seed=1)
    hot = builders.serve(base, SPEC, 1, OTHER, LENGTH, save=(48,), seed=2)
    idle, _ = run.release(base, int32(0))
    host, _ = run.evict(idle, int32(3), most=4, to="host", tier="hot")
    host, _ = run.evict_snapshots(host, int32(2), most=2, to="host")
    host = builders.grow(host, SPEC, 0, 37)
    cold, _ = run.evict(idle, int32(3), most=4, to="cold", tier="hot")
    cold, _, _ = builders.start(cold, SPEC, 0, PROMPT, LENGTH)
    cold = builders.grow(cold, SPEC, 1, 21)
    pinned = [run.pin(s, plan_of(s), int32(2))[0] for s in (hot, host, cold)]
    for state in pinned:
        builders.sound(state, SPEC)
    return pinned


def plan_of(state) -> tc.Plan:
    return builders.verbs(SPEC).match(state, PROMPT, int32(LENGTH), NAMESPACE)


def each(*steps):
    """Arguments: per step one value for each state."""
    return [list(step) for step in steps]


def plans(*row_ids):
    return [[(plan_of(s), int32(row)) for s in states()] for row in row_ids]


def _view(state, a):
    return state, tc.view(state, a[:2], a[2:], num_tokens=3, spec=SPEC)


def _append(state, a):
    view = tc.view(state, jnp.arange(3, dtype=jnp.int32), a, num_tokens=4, spec=SPEC)
    k = a[:, None, None, None] + jnp.arange(3.0 * 4 * 2 * 64).reshape(3, 4, 2, 64)
    return tc.append(state, view, 1, k, -k, spec=SPEC)


def _attend(state, a):
    view = tc.view(state, jnp.arange(3, dtype=jnp.int32), a, num_tokens=2, spec=SPEC)
    q = jnp.sin(a[:, None, None, None] + jnp.arange(3.0 * 2 * 4 * 64).reshape(3, 2, 4, 64))
    return state, tc.attend(state, view, 1, q, block_pages=2, spec=SPEC)


def _save(state, a):
    return tc.save_snapshot(state, a[:2], a[2:4], replaces=a[4:], spec=SPEC)


def _bound(verb, **static):
    return lambda state, a: verb(state, *(a if isinstance(a, tuple) else (a,)), **static)


def _numbers(*steps):
    return [[int32(n) for n in step] for step in steps]


CASES: dict[str, Callable[[], Case]] = {
    "reserve": lambda: Case(
        _bound(tc.reserve, max_tokens=30, spec=SPEC),
        each([ids(1, 0, 30), ids(30, 5, 0), ids(0, 12, 1)], [ids(3, 3, 3)] * 3),
    ),
    "view": lambda: Case(
        _view,
        each([ids(0, 1, 3, 2), ids(2, 0, 0, 1), ids(1, tc.NO_ROW, 3, 3)], [ids(1, 2, 1, 0)] * 3),
    ),
    "append": lambda: Case(
        _append, each([ids(4, 0, 2), ids(1, 2, 3), ids(0, 4, 0)], [ids(2, 2, 2)] * 3)
    ),
    "attend": lambda: Case(
        _attend, each([ids(2, 0, 1), ids(1, 2, 0), ids(2, 2, 0)], [ids(1, 1, 1)] * 3)
    ),
    "advance": lambda: Case(
        _bound(tc.advance, spec=SPEC),
        each([ids(1, 2, 0), ids(30, 0, 0), ids(0, 3, 0)], [ids(1, 1, 1)] * 3),
    ),
    "match": lambda: Case(
        lambda state, a: (state, tc.match(state, PROMPT, a, NAMESPACE, spec=SPEC)),
        _numbers([LENGTH, 49, 48], [17, 5, 33]),
    ),
    "pin": lambda: Case(_bound(tc.pin), plans(5, 5)),
    "unpin": lambda: Case(_bound(tc.unpin), _numbers([2, 0, 2], [2, 2, -1])),
    "rehydrate_share": lambda: Case(_bound(tc.rehydrate, cold="share", spec=SPEC), plans(2, 2)),
    "rehydrate_hot": lambda: Case(_bound(tc.rehydrate, cold="hot", spec=SPEC), plans(2, 1)),
    "load_snapshot": lambda: Case(_bound(tc.load_snapshot, spec=SPEC), plans(2, 1)),
    "save_snapshot": lambda: Case(
        _save,
        each(
            [ids(0, 1, 16, 48, 0, 0), ids(0, 2, 32, 17, 0, 0), ids(1, 1, 16, 32, 0, 0)],
            [ids(0, tc.NO_ROW, 32, 16, 16, 0), ids(0, -1, 48, 16, 32, 0), ids(1, 0, 48, 48, 32, 0)],
        ),
    ),
    "insert": lambda: Case(
        lambda state, a: tc.insert(state, a, OTHER, NAMESPACE, spec=SPEC),
        _numbers([1, 0, 1], [0, 2, 0]),
    ),
    "mirror": lambda: Case(_bound(tc.mirror, most=3, spec=SPEC), _numbers([1, 2, 0], [0, 5, 2])),
    "evict_host": lambda: Case(
        _bound(tc.evict, most=3, to="host", spec=SPEC), _numbers([1, 2, 0], [3, 3, 3])
    ),
    "evict_cold": lambda: Case(
        _bound(tc.evict, most=3, to="cold", spec=SPEC), _numbers([1, 2, 0], [3, 3, 3])
    ),
    "evict_drop": lambda: Case(
        _bound(tc.evict, most=3, to="drop", spec=SPEC), _numbers([1, 2, 0], [3, 3, 3])
    ),
    "evict_cold_slots": lambda: Case(
        _bound(tc.evict, most=3, to="drop", tier="cold", spec=SPEC), _numbers([1, 2, 3], [3, 3, 3])
    ),
    "evict_snapshots_host": lambda: Case(
        _bound(tc.evict_snapshots, most=3, to="host", spec=SPEC), _numbers([1, 2, 3], [3, 3, 3])
    ),
    "evict_snapshots_drop": lambda: Case(
        _bound(tc.evict_snapshots, most=3, to="drop", spec=SPEC), _numbers([1, 2, 3], [3, 3, 3])
    ),
    "make_room": lambda: Case(
        _bound(tc.make_room, spec=SPEC),
        each(
            [(int32(9), int32(3)), (int32(2), int32(1)), (int32(13), int32(4))],
            [(int32(13), int32(4))] * 3,
        ),
    ),
    "requantize": lambda: Case(
        _bound(tc.requantize, spec=SPEC),
        each([ids(3, tc.NO_PAGE), ids(0, 12), ids(tc.NO_PAGE, -1)], [ids(0, 1)] * 3),
    ),
    "retire": lambda: Case(
        lambda state, a: tc.retire(state, most=2, spec=SPEC), _numbers([0] * 3, [0] * 3)
    ),
    "fork": lambda: Case(
        _bound(tc.fork, spec=SPEC),
        each(
            [(int32(0), int32(2)), (int32(0), int32(1)), (int32(1), int32(-1))],
            [(int32(1), int32(2))] * 3,
        ),
    ),
    "truncate": lambda: Case(
        _bound(tc.truncate, spec=SPEC),
        each(
            [(int32(0), int32(50)), (int32(0), int32(5)), (int32(1), int32(16))],
            [(int32(1), int32(3))] * 3,
        ),
    ),
    "release": lambda: Case(_bound(tc.release, spec=SPEC), _numbers([0, 1, 0], [1, 0, 7])),
    "check": lambda: Case(
        lambda state, a: (state, tc.check(state, spec=SPEC)), _numbers([0] * 3, [0] * 3)
    ),
}


def initial_states(name):
    """The states, less the pins that would keep everything where it is."""
    run, found = builders.verbs(SPEC), states()
    if name.startswith(("evict", "make_room", "retire", "requantize")):
        found = [run.unpin(state, int32(2))[0] for state in found]
    if name.startswith(("evict", "make_room")):
        found = [run.release(run.release(state, int32(0))[0], int32(1))[0] for state in found]
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_batch_in_a_scan_equals_a_python_loop(name):
    verb, arguments = CASES[name]()
    initial = initial_states(name)
    single = jax.jit(verb, compiler_options=QUICK)
    expected, changed = [], False
    for number, state in enumerate(initial):
        infos = []
        for step in range(NUM_STEPS):
            state, info = single(state, arguments[step][number])
            infos.append(info)
        expected.append((state, infos))
        changed = changed or differs(initial[number], state)
    assert changed or name in ("view", "attend", "match", "check")
    assert single._cache_size() == 1  # other ids, counts, depths and hit lengths are no new program

    batched = jax.jit(
        lambda batch, steps: lax.scan(lambda b, a: jax.vmap(verb)(b, a), batch, steps),
        compiler_options=QUICK,
    )
    steps = [jax.tree.map(lambda *x: jnp.stack(x), *step) for step in arguments]
    steps = jax.tree.map(lambda *x: jnp.stack(x), *steps)
    after, infos = batched(builders.stack(initial), steps)
    for number, (state, wanted) in enumerate(expected):
        builders.same(state, builders.part(after, number))
        for step, info in enumerate(wanted):
            compare(name, info, builders.part(builders.part(infos, step), number))
    shapes_hold(verb, initial[0], arguments[0][0], expected[0])


def differs(before, after) -> bool:
    """Whether more than counters changed."""
    try:
        builders.same(before, after, but=("counters",))
    except AssertionError:
        return True
    return False


def compare(name, wanted, got):
    if name == "attend":  # a batched matrix product may add up in another order
        np.testing.assert_allclose(wanted, got, rtol=1e-5, atol=1e-6)
    else:
        builders.same(wanted, got)


def shapes_hold(verb, state, argument, result):
    """`eval_shape` tells the truth, and the state keeps its structure and the order of leaves."""
    abstract, info = jax.eval_shape(verb, state, argument)
    assert jax.tree.structure(abstract) == jax.tree.structure(state)
    for shape, leaf in zip(
        jax.tree.leaves((abstract, info)), jax.tree.leaves((state, result[1][0])), strict=True
    ):
        assert (shape.shape, shape.dtype) == (leaf.shape, leaf.dtype)


def _through_the_banks(state, spec):
    """Every way into a bank and out of it, in one program."""
    state, stored = tc.evict(state, jnp.int32(2), most=2, to="host", spec=spec)
    state, packed = tc.evict(state, jnp.int32(1), most=2, to="cold", spec=spec)
    state, saved = tc.evict_snapshots(state, jnp.int32(3), most=3, to="host", spec=spec)
    plan = tc.match(state, PROMPT, jnp.int32(LENGTH), NAMESPACE, spec=spec)
    state, _ = tc.pin(state, plan, jnp.int32(2))
    state, back = tc.rehydrate(state, plan, jnp.int32(2), cold="share", spec=spec)
    state, loaded = tc.load_snapshot(state, plan, jnp.int32(2), spec=spec)
    view = tc.view(state, jnp.array([2]), jnp.array([0]), num_tokens=1, spec=spec)
    seen = tc.attend(
        state, view._replace(counts=jnp.array([1])), 0, jnp.ones((1, 1, 4, 64)), spec=spec
    )
    return state, (stored, packed, saved, back, loaded, seen)


@pytest.mark.slow
def test_banks_in_device_memory_hold_what_pinned_ones_hold():
    run = builders.verbs(SPEC)
    running, _ = run.unpin(states()[0], int32(2))
    one_less, _ = run.release(running, int32(1))
    initial = [running, one_less, run.release(one_less, int32(0))[0]]
    pinned = jax.jit(functools.partial(_through_the_banks, spec=SPEC), compiler_options=QUICK)
    expected = [pinned(state) for state in initial]
    assert {int(info[4].source) for _, info in expected} == {1, 2}
    assert any(int(info[3].num_cold) and int(info[3].num_host) for _, info in expected)
    spec = builders.spec_of(host_memory="device")
    to_device = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="device")
    batch = jax.device_put(builders.stack(initial), to_device)
    assert all(
        jax.typeof(x).memory_space == jax.memory.Space.Device for x in jax.tree.leaves(batch)
    )
    batched = jax.vmap(functools.partial(_through_the_banks, spec=spec))
    after = jax.jit(batched, compiler_options=QUICK)(batch)
    for number, (state, info) in enumerate(expected):
        got, got_info = builders.part(after, number)
        builders.same(state, got)
        builders.same(info[:5], got_info[:5])
        compare("attend", info[5], got_info[5])


def test_ten_donated_steps_compile_once():
    step = jax.jit(functools.partial(builders.write, spec=SPEC), donate_argnums=0)
    state, rng = tc.init_state(SPEC), np.random.default_rng(0)
    shape = (SPEC.num_layers, 3, 8, SPEC.num_kv_heads, SPEC.head_dim)
    for turn in range(10):
        k, v = builders.normal(rng, *shape), builders.normal(rng, *shape)
        counts = ids(turn % 3, 8 - turn % 4, 0)
        state, _ = step(state, ids(2, 0, tc.NO_ROW), counts, k, v)
    assert step._cache_size() == 1
    assert state.table.lengths.tolist() == [67, 0, 9]
