"""Calls one by one and in batches, what a session does with them, and attention among them."""

import jax
import numpy as np
import pytest

from tests.pallas_kernels.codecs import oracle
from tests.tiercache.sessions import PAGE, known, session
from tiercache.testing import Driver, Lockstep
from tiercache.testing.assertions import held_ids
from tiercache.testing.calls import NUM_PLANS
from tiercache.testing.specs import HOST, PLAIN, WINDOW


@pytest.mark.slow
def test_one_by_one_and_in_batches_the_same_calls_give_the_same_bytes():
    states = []
    for at_once in (True, False):
        driver = Driver(Lockstep(WINDOW, codecs=oracle), at_once=at_once)
        driver.run_random(seed=4, num_steps=60)
        driver.lockstep.flush()
        states.append([np.asarray(x).tobytes() for x in jax.tree.leaves(driver.lockstep.state)])
    assert states[0] == states[1]


def test_who_looks_at_a_state_does_not_keep_it_from_being_updated_in_place():
    """A view of pinned memory would: on a GPU the next call raises, on a CPU it copies the bank."""
    both = session(HOST, poison=False)  # poison makes a new state
    known(both, [1], [1])
    where = both.state.host.pages.unsafe_buffer_pointer()
    assert held_ids(both.state)["nodes"]
    both.match([1], PAGE + 1)
    assert both.state.host.pages.unsafe_buffer_pointer() == where


def test_verbs_are_methods_and_a_name_that_is_none_is_an_error():
    both = session(PLAIN)
    assert both.lockstep.calls == [name for name in both.lockstep.calls if hasattr(both, name)]
    for name in ("retire", "save", "_reserve"):  # this spec keeps all pages hot
        with pytest.raises(AttributeError, match=name):
            getattr(both, name)


def test_a_plan_that_was_made_too_long_ago_cannot_be_used():
    both = session(WINDOW)
    known(both, [1], [1])
    old = both.match([1], PAGE + 1)
    for _ in range(NUM_PLANS - 1):
        both.match([1], PAGE + 1)
    assert both.pin(old, 3).ok
    both.match([2], PAGE + 1)
    with pytest.raises(ValueError, match="5 more"):
        both.pin(old, 4)


def test_without_poison_what_nobody_owns_stays_as_it_was():
    for poison in (False, True):
        both = session(WINDOW, poison=poison)
        both.fill(0, PAGE)
        before = np.array(both.state.live[0])[:, 0].tobytes()
        both.release(0)
        assert (np.asarray(both.state.live[0])[:, 0].tobytes() == before) is not poison


SMALL = 1  # a key whose query tells tokens apart that have the largest K


def attended(both):
    """Row 0 has a page and a token that `attend` may look at."""
    assert both.fill(0, PAGE)
    both.reserve([1, 0, 0])
    both.append([1, 0, 0])


@pytest.mark.parametrize("kv", [0, 1])
def test_attention_over_a_wrong_bit_is_seen(kv):
    both = session(WINDOW)
    attended(both)
    wanted = both.attend([1, 0, 0], SMALL)
    assert wanted.out.shape == (2, 3, 1, 2, 64)
    assert np.isfinite(wanted.out).all() and not np.any(wanted.out[:, 1:])
    assert np.any(wanted.error[:, 0] < 1e-3 * np.abs(wanted.out[:, 0]))
    codes = np.array(both.state.pages.payload[0].codes)
    codes[0, kv] = -codes[0, kv]
    pool = both.state.pages.payload[0]._replace(codes=jax.device_put(codes, pools(both)))
    pages = both.state.pages._replace(payload=(pool, *both.state.pages.payload[1:]))
    both.lockstep.state = both.state._replace(pages=pages)
    with pytest.raises(AssertionError, match="attend: "):
        both.attend([1, 0, 0], SMALL)


def pools(both):
    return both.state.pages.payload[0].codes.sharding


def test_attention_is_not_compared_where_nobody_can_know():
    both = session(WINDOW)
    assert both.extend([1, 0, 0], bad=0)
    both.reserve([1, 1, 0])
    both.append([1, 0, 0])
    wanted = both.attend([1, 1, 0], 1)  # an infinite key; and a token that was not written
    assert np.isnan(wanted.out[0, 0]).all() and np.isnan(wanted.out[:, 1]).all()
    assert np.isfinite(wanted.out[1, 0]).all()


def test_attention_of_a_row_that_holds_nothing_is_zero():
    both = session(WINDOW)
    wanted = both.attend([1, 1, 1], 0)
    assert not np.any(wanted.out) and not np.any(wanted.error)
