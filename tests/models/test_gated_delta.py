"""The delta rule and the convolution against float64 NumPy, and what must hold bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from models.hybrid_gdn.gated_delta import (
    causal_conv,
    chunk_gated_delta_rule,
    conv_state,
    recurrent_gated_delta_step,
)
from tests.models import oracles

ROWS, HEADS, DK, DV = 2, 3, 16, 24
jit_chunk = jax.jit(chunk_gated_delta_rule)
jit_step = jax.jit(recurrent_gated_delta_step)


def inputs(seed, num_tokens=128, decay=0.1):
    """Random (q, k, v, g, beta, state) in float32, k of length one."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, ROWS, num_tokens, HEADS, DK))
    v = rng.normal(size=(ROWS, num_tokens, HEADS, DV))
    g = -decay * rng.exponential(size=(ROWS, num_tokens, HEADS))
    beta = rng.uniform(size=(ROWS, num_tokens, HEADS))
    state = rng.normal(size=(ROWS, HEADS, DK, DV))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    q /= np.linalg.norm(q, axis=-1, keepdims=True) * np.sqrt(DK)
    return [x.astype(np.float32) for x in (q, k, v, g, beta, state)]


def expected(q, k, v, g, beta, state):
    """Reads [row, token, head, dv] and states [token, row, head, dk, dv], in float64."""
    q, k, v, g, beta, state = (np.asarray(x, np.float64) for x in (q, k, v, g, beta, state))
    out = np.zeros(v.shape)
    states = np.zeros((q.shape[1], *state.shape))
    for row in range(ROWS):
        for head in range(HEADS):
            at = row, slice(None), head
            out[at], states[:, row, head] = oracles.delta_rule(
                q[at], k[at], v[at], g[at], beta[at], state[row, head]
            )
    return out, states


@pytest.mark.parametrize("decay", [0.0, 0.1, 30.0])
def test_chunks_follow_the_sequential_rule(decay):
    args = inputs(0, decay=decay)
    out, states = expected(*args)
    got = jit_chunk(*args)
    np.testing.assert_allclose(got.out, out, atol=3e-5)
    np.testing.assert_allclose(got.state, states[-1], atol=3e-5)


def test_chunks_survive_one_key_repeated():
    q, k, v, g, beta, state = inputs(1)
    k[:] = k[:, :1]
    g, beta = 0 * g, 0 * beta + 0.999
    out, states = expected(q, k, v, g, beta, state)
    got = jit_chunk(q, k, v, g, beta, state)
    np.testing.assert_allclose(got.out, out, atol=3e-5)
    np.testing.assert_allclose(got.state, states[-1], atol=3e-5)


def test_steps_follow_the_sequential_rule():
    q, k, v, g, beta, state = inputs(2)
    out, states = expected(q, k, v, g, beta, state)
    for t in range(40):
        read, state = jit_step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], state)
        np.testing.assert_allclose(read, out[:, t], atol=1e-5)
    np.testing.assert_allclose(state, states[39], atol=1e-5)


def test_boundary_states_are_those_after_that_many_tokens():
    args = inputs(3)
    boundaries = jnp.array([128, 64, -1, 64, 32, 192, 0, 2**30], jnp.int32)
    got = jit_chunk(*args, boundaries=boundaries)
    plain = jit_chunk(*args)
    np.testing.assert_array_equal(got.out, plain.out)
    np.testing.assert_array_equal(got.state, plain.state)
    kept = np.asarray(got.boundary_states)
    np.testing.assert_array_equal(kept[0], plain.state)
    _, states = expected(*args)
    np.testing.assert_allclose(kept[1], states[63], atol=3e-5)
    np.testing.assert_array_equal(kept[1], kept[3])
    assert not kept[[2, 4, 5, 6, 7]].any()


def shapes_in(jaxpr):
    for eqn in jaxpr.eqns:
        yield from (var.aval.shape for var in eqn.outvars)
        for sub in jaxprs_in_params(eqn.params):
            yield from shapes_in(sub)


def test_no_state_of_a_chunk_that_is_no_boundary_is_kept():
    num_tokens, one_state = 64 * 8, ROWS * HEADS * DK * DV
    args = [*inputs(4, num_tokens), jnp.array([64], jnp.int32)]
    closed = jax.make_jaxpr(lambda *a: chunk_gated_delta_rule(*a[:-1], boundaries=a[-1]))(*args)
    states = [shape for shape in shapes_in(closed.jaxpr) if shape[-2:] == (DK, DV)]
    assert states
    assert max(np.prod(shape) for shape in states) == 2 * one_state  # one boundary, one trash slot


def bits(x):
    x = np.asarray(x)
    return x.view(np.uint16 if x.dtype.itemsize == 2 else np.uint32)


def test_idle_tokens_leave_the_state_untouched_to_the_bit():
    q, k, v, g, beta, state = inputs(5)
    state[0, 0, 0, :4] = [-0.0, 0.0, 1e-42, 3e38]
    g[:], beta[:] = 0, 0
    beta[1, 70] = 0.5  # row 1 is not idle
    got = jit_chunk(q, k, v, g, beta, state)
    np.testing.assert_array_equal(bits(got.state)[0], bits(state)[0])
    assert (bits(got.state)[1] != bits(state)[1]).any()
    _, stepped = jit_step(q[:, 70], k[:, 70], v[:, 70], g[:, 70], beta[:, 70], state)
    np.testing.assert_array_equal(bits(stepped)[0], bits(state)[0])
    assert (bits(stepped)[1] != bits(state)[1]).any()


@pytest.mark.parametrize("num_tokens", [0, 1, 63, 65])
def test_other_lengths_than_whole_chunks_are_refused(num_tokens):
    args = inputs(6, num_tokens)
    with pytest.raises(ValueError, match=f"token={num_tokens} is not a positive multiple of 64"):
        chunk_gated_delta_rule(*args)


def test_convolution_continues_from_its_state():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(2, 9, 5)).astype(np.float32)
    state = rng.normal(size=(2, 3, 5)).astype(np.float32)
    weight = rng.normal(size=(4, 5)).astype(np.float32)
    out, joined = causal_conv(x, state, weight)
    for row in range(2):
        np.testing.assert_allclose(out[row], oracles.causal_conv(x[row], state[row], weight), 1e-5)
    for count in range(10):
        cut = conv_state(joined, jnp.array([count, 9 - count], jnp.int32), kernel=4)
        for row, taken in enumerate([count, 9 - count]):
            history = np.concatenate([state[row], x[row, :taken]])
            np.testing.assert_array_equal(cut[row], history[-3:])
