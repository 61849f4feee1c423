"""The index on another device than the pools gives what it gives on the same one."""

import functools

import jax
import numpy as np
import pytest

import tiercache as tc
from pallas_kernels.banks import default_device
from tests.tiercache.sessions import PAGE, known, session
from tiercache.testing import Driver, differences
from tiercache.testing.calls import NAMESPACES, prompt_tokens, signature
from tiercache.testing.reference import info_differences
from tiercache.testing.specs import WINDOW


def devices():
    """Where the pools are, and another device."""
    pools, apart = default_device(), jax.devices("cpu")[-1]
    assert pools != apart
    return pools, apart


@pytest.mark.slow
def test_an_index_on_another_device_gives_the_same():
    pools, apart = devices()
    both = session(WINDOW, index_device=apart)
    Driver(both.lockstep, at_once=True).run_random(seed=2, num_steps=150)
    assert both.state.index.entry.devices() == {apart}
    assert both.state.pages.refs.devices() == {pools}
    without_reason = {"append", "attend", "match", "make_room"}
    assert {name for name, _ in both.lockstep.seen} == set(signature(WINDOW)) - without_reason


def test_a_prompt_is_looked_up_where_the_index_is_and_pinned_where_the_pools_are():
    _, apart = devices()
    both = session(WINDOW, index_device=apart)
    known(both, [1, 2, 3], [3])
    match = jax.jit(functools.partial(tc.prefix.match, needs_snapshot=True))
    tokens = prompt_tokens(both.symbols([1, 2, 3]), WINDOW)
    plan = match(both.state.index, tokens, np.int32(3 * PAGE + 1), NAMESPACES[0])
    assert plan.num_pages.devices() == {apart} and int(plan.num_pages) == 3
    wanted = both.match([1, 2, 3], 3 * PAGE + 1)
    assert not info_differences(wanted, plan)
    pin = tc.with_index(jax.jit(tc.pin))
    state, info = pin(both.state, plan, np.int32(1))
    assert not info_differences(both.reference.pin(wanted, 1), info)
    assert not differences(both.reference, state)
