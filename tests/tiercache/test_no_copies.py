"""A donated step updates pools and banks where they are: read from the compiled program."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tiercache as tc
from tests.tiercache import builders
from tests.tiercache.builders import int32

# Odd, large and unlike one another, so that a shape in a program names one pool or bank.
SPECS = {
    policy: builders.spec_of(
        num_pages=211, num_cold_slots=97, num_host_pages=103, num_snapshots=61,
        num_host_snapshots=67, policy=policy,
    )
    for policy in ("host", "window")
}  # fmt: skip
PLAIN = builders.spec_of(
    num_pages=211, num_cold_slots=97, num_host_pages=103, snapshot_leaves=(), num_snapshots=0,
    num_host_snapshots=0, hot_formats="all:bf16; 1.v:fp8_e4m3",
    cold_formats="all:nvfp4_g16; 1.v:int4_g16", policy="window",
)  # fmt: skip


def step_of_tokens(state, k, v, spec, *, waits=True):
    """What a decode step does to the cache. As in a model, a layer's K and V depend on the layer
    before, and so on what that read."""
    rows = jnp.arange(spec.max_rows, dtype=jnp.int32)
    counts = jnp.ones(spec.max_rows, jnp.int32)
    state, _ = tc.reserve(state, counts, max_tokens=1, spec=spec)
    view = tc.view(state, rows, counts, num_tokens=1, spec=spec)
    seen = jnp.zeros((spec.max_rows, 1, spec.num_kv_heads, spec.head_dim))
    for layer in range(spec.num_layers):
        state, _ = tc.append(state, view, layer, k + seen, v - seen, spec=spec)
        seen += tc.attend(state, view, layer, seen + 1, spec=spec)
    if waits:
        state, seen = lax.optimization_barrier((state, seen))
    state, _ = tc.advance(state, counts, spec=spec)
    state, _ = tc.retire(state, most=2, spec=spec)
    return state, seen


def steps(spec: tc.CacheSpec):
    """Name -> (step, arguments after the state)."""
    bind = functools.partial
    row, few = int32(0), int32(3)
    tokens = jnp.asarray(builders.prompt(spec, 60))
    namespace = jnp.asarray(builders.NAMESPACE)
    state = tc.init_state(spec)
    plan = builders.verbs(spec).match(state, tokens, int32(60), namespace)
    new = jnp.ones((spec.max_rows, 1, spec.num_kv_heads, spec.head_dim))
    found = {
        "token": (bind(step_of_tokens, spec=spec), (new, new)),
        "reserve": (bind(tc.reserve, max_tokens=32, spec=spec), (builders.ids(1, 0, 20),)),
        "rehydrate_share": (bind(tc.rehydrate, cold="share", spec=spec), (plan, row)),
        "rehydrate_hot": (bind(tc.rehydrate, cold="hot", spec=spec), (plan, row)),
        "load_snapshot": (bind(tc.load_snapshot, spec=spec), (plan, row)),
        "insert": (bind(tc.insert, spec=spec), (row, tokens, namespace)),
        "mirror": (bind(tc.mirror, most=3, spec=spec), (row,)),
        "make_room": (bind(tc.make_room, spec=spec), (few, few)),
        "evict_host": (bind(tc.evict, most=5, to="host", spec=spec), (few,)),
        "evict_cold": (bind(tc.evict, most=5, to="cold", spec=spec), (few,)),
        "evict_drop": (bind(tc.evict, most=5, to="drop", spec=spec), (few,)),
        "requantize": (bind(tc.requantize, spec=spec), (builders.ids(1, 2),)),
        "fork": (bind(tc.fork, spec=spec), (row, int32(1))),
        "truncate": (bind(tc.truncate, spec=spec), (row, few)),
        "release": (bind(tc.release, spec=spec), (row,)),
        "pin": (tc.pin, (plan, row)),
        "unpin": (tc.unpin, (row,)),
    }
    if spec.num_snapshots:
        found["save_snapshot"] = (bind(tc.save_snapshot, spec=spec), (builders.ids(0, 1),) * 2)
        found["evict_snapshots"] = (bind(tc.evict_snapshots, most=3, spec=spec), (few,))
    return found


COMPILED = {
    "host": sorted(
        {
            "token", "reserve", "rehydrate_share", "rehydrate_hot", "load_snapshot", "insert",
            "mirror", "make_room", "evict_cold", "evict_drop", "fork", "truncate", "release",
            "pin", "unpin", "save_snapshot",
        }
    ),
    "window": ["rehydrate_hot", "requantize"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "name"), [(policy, name) for policy, names in COMPILED.items() for name in names]
)
def test_a_donated_step_copies_no_pool(policy, name):
    spec = SPECS[policy]
    step, rest = steps(spec)[name]
    state = tc.init_state(spec)
    builders.copies_nothing(builders.compile_step(step, state, *rest), state, spec)


def test_a_cache_of_two_formats_without_snapshots_copies_no_pool():
    step, rest = steps(PLAIN)["token"]
    state = tc.init_state(PLAIN)
    builders.copies_nothing(builders.compile_step(step, state, *rest), state, PLAIN)


@pytest.mark.parametrize("name", ["reserve", "requantize", "save_snapshot"])
def test_without_donation_the_same_steps_copy(name):
    """The control: what the test above looks for can be seen."""
    spec = SPECS["host"]
    step, rest = steps(spec)[name]
    program = builders.compile_step(step, tc.init_state(spec), *rest, donate=())
    assert program.copies
    assert program.aliased == 0


def test_a_step_whose_retire_does_not_wait_for_attend_copies_the_bank():
    """What the docstring of `attend` warns of; also that a copy inside a step can be seen."""
    spec = SPECS["window"]
    new = jnp.ones((spec.max_rows, 1, spec.num_kv_heads, spec.head_dim))
    step = functools.partial(step_of_tokens, spec=spec, waits=False)
    assert builders.compile_step(step, tc.init_state(spec), new, new).copies


def test_a_donated_state_is_gone_and_the_banks_stay_where_they_were():
    spec = builders.spec_of()
    state = builders.serve(tc.init_state(spec), spec, 0, builders.prompt(spec, 60), 60, save=(48,))
    state, _ = builders.verbs(spec).release(state, int32(0))
    places = [x.unsafe_buffer_pointer() for x in builders.big_leaves(state)]
    evict = jax.jit(functools.partial(tc.evict, most=5, spec=spec), donate_argnums=0)
    after, info = evict(state, int32(3))
    assert int(info.stored) == 3
    assert [x.unsafe_buffer_pointer() for x in builders.big_leaves(after)] == places
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(state.host.pages)
