"""Each assertion passes where it should, and fails where it should with words that help."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiercache as tc
from tests.tiercache import builders
from tests.tiercache.builders import int32
from tiercache.testing import (
    assert_compiles_once,
    assert_conserved,
    assert_invariants,
    assert_no_pool_copy,
    assert_outputs_equal_cold,
)

SMALL = builders.spec_of(num_pages=29)


def test_a_sound_state_passes_and_a_broken_one_is_named():
    state = tc.init_state(SMALL)
    assert_invariants(state, SMALL)
    broken = state._replace(pages=state.pages._replace(refs=state.pages.refs.at[3].set(1)))
    with pytest.raises(AssertionError, match="page_refs"):
        assert_invariants(broken, SMALL)


def test_what_was_not_given_back_is_named():
    state = tc.init_state(SMALL)
    taken = builders.grow(state, SMALL, 1, 20)
    with pytest.raises(AssertionError, match=r"0 pages were in use, now 2: new \[0, 1\]"):
        assert_conserved(state, taken)
    back, _ = builders.verbs(SMALL).release(taken, int32(1))
    assert_conserved(state, back)


def test_a_copy_is_seen_unless_the_state_is_donated():
    state = tc.init_state(SMALL)
    release = functools.partial(tc.release, spec=SMALL)
    assert_no_pool_copy(jax.jit(release, donate_argnums=0), state, int32(0))
    reserve = functools.partial(tc.reserve, max_tokens=20, spec=SMALL)
    with pytest.raises(AssertionError, match="the step copies whole pools"):
        assert_no_pool_copy(jax.jit(reserve), state, builders.ids(1, 2, 3))
    with pytest.raises(ValueError, match="no CacheState"):
        assert_no_pool_copy(jax.jit(jnp.sin), jnp.ones(3))


def test_a_second_compile_is_seen():
    def double(x):
        return 2 * x

    jitted = jax.jit(double)
    with assert_compiles_once(jitted):
        jitted(jnp.ones(3))
        jitted(jnp.zeros(3))
    with pytest.raises(AssertionError, match="double compiled 2 times"):
        with assert_compiles_once(jitted):
            jitted(jnp.ones(4))
            jitted(jnp.ones(5))


class Server:
    """Answers with what it has seen of a prompt and with what it has not, as a cache may: alike."""

    def __init__(self, *, wrong: bool = False):
        self.known: set[tuple[int, ...]] = set()
        self.wrong = wrong

    def __call__(self, prompt: tuple[int, ...]) -> dict[str, np.ndarray]:
        resumed = prompt in self.known
        self.known.add(prompt)
        return {"tokens": np.array(prompt) + 1, "logits": np.array([0.5, self.wrong and resumed])}


def test_outputs_are_those_of_a_cold_run():
    prompts = [(1, 2, 3), (1, 2), (4,)]
    assert_outputs_equal_cold(Server, prompts)
    wrong = functools.partial(Server, wrong=True)
    with pytest.raises(AssertionError, match=r"prompt 0, served the second time .*\['logits'\]"):
        assert_outputs_equal_cold(wrong, prompts)
    numbers = iter(range(100))
    with pytest.raises(AssertionError, match="another structure"):
        assert_outputs_equal_cold(lambda: lambda prompt: (0,) * next(numbers), prompts)
