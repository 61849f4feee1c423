"""Memory after many round trips."""

import functools

import jax
import jax.numpy as jnp

import tiercache as tc
from tests.tiercache import builders
from tests.tiercache.builders import NAMESPACE, SPEC, int32

NUM_CYCLES = 200


@functools.partial(jax.jit, donate_argnums=0)
def cycle(state, tokens):
    """Everything leaves the device, a row brings it back, and ends."""
    state, evicted = tc.evict(state, jnp.int32(3), most=3, spec=SPEC)
    plan = tc.match(state, tokens, jnp.int32(53), jnp.asarray(NAMESPACE), spec=SPEC)
    state, _ = tc.pin(state, plan, jnp.int32(1))
    state, back = tc.rehydrate(state, plan, jnp.int32(1), spec=SPEC)
    state, _ = tc.release(state, jnp.int32(1), spec=SPEC)
    return state, (evicted.freed, back.num_host)


def test_hundreds_of_round_trips_keep_memory_as_it_is():
    tokens = jnp.asarray(builders.prompt(SPEC, 53))
    state = builders.serve(tc.init_state(SPEC), SPEC, 0, tokens, 53, save=(48,))
    state, _ = builders.verbs(SPEC).release(state, int32(0))
    state, moved = cycle(state, tokens)
    places = [x.unsafe_buffer_pointer() for x in builders.big_leaves(state)]
    num_arrays = len(jax.live_arrays())
    for _ in range(NUM_CYCLES):
        state, moved = cycle(state, tokens)
    assert [int(x) for x in moved] == [3, 3]
    assert len(jax.live_arrays()) <= num_arrays
    assert [x.unsafe_buffer_pointer() for x in builders.big_leaves(state)] == places
    assert tc.counter_values(state)["pages_from_host"] == 3 * (NUM_CYCLES + 1)
    builders.sound(state, SPEC)
