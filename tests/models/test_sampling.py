"""Greedy, temperature and nucleus sampling: distributions, limits and independence of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.sampling import _row_keys, sample

jit_sample = jax.jit(sample)
SHARES = np.array([0.05, 0.5, 0.15, 0.3])
LOGITS = jnp.asarray(np.log(SHARES), jnp.float32)


def frequencies(temperature, top_p, num_draws=20_000):
    logits = jnp.broadcast_to(LOGITS, (num_draws, 4))
    tokens = jit_sample(logits, jax.random.key(0), temperature=temperature, top_p=top_p)
    return np.bincount(tokens, minlength=4) / num_draws


@pytest.mark.parametrize(
    ("temperature", "top_p", "shares"),
    [
        (1.0, 1.0, SHARES),
        (2.0, 1.0, SHARES**0.5),
        (0.5, 1.0, SHARES**2),
        (1.0, 0.5, [0, 1, 0, 0]),
        (1.0, 0.51, [0, 0.5, 0, 0.3]),
        (1.0, 0.8, [0, 0.5, 0, 0.3]),
        (1.0, 0.9, [0, 0.5, 0.15, 0.3]),
        (1.0, 0.96, SHARES),
    ],
)
def test_draws_follow_the_distribution(temperature, top_p, shares):
    shares = np.asarray(shares) / np.sum(shares)
    got = frequencies(jnp.float32(temperature), jnp.float32(top_p))
    np.testing.assert_allclose(got, shares, atol=0.015)
    assert not got[shares == 0].any()


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (1.0, 0.0), (1e-30, 1.0)])
def test_the_limits_are_greedy(temperature, top_p):
    logits = np.random.default_rng(0).normal(size=(64, 50)).astype(np.float32)
    logits[:, 7] = logits[:, 3] = logits.max(axis=1) + 1e-3  # a tie
    tokens = jit_sample(
        logits, jax.random.key(1), temperature=jnp.float32(temperature), top_p=jnp.float32(top_p)
    )
    if temperature == 1e-30:
        assert set(np.asarray(tokens)) == {3, 7}
    else:
        np.testing.assert_array_equal(tokens, np.full(64, 3))


def test_every_row_has_its_own_knobs_under_one_compile():
    logits = jnp.broadcast_to(LOGITS, (3, 4))
    seen = [set(), set(), set()]
    before = jit_sample._cache_size()
    for seed in range(60):
        tokens = jit_sample(
            logits,
            jax.random.key(seed),
            temperature=jnp.array([0.0, 1.0, 1.0 + seed]),
            top_p=jnp.array([1.0, 0.8, 1.0]),
        )
        for row in range(3):
            seen[row].add(int(tokens[row]))
    assert seen == [{1}, {1, 3}, {0, 1, 2, 3}]
    assert jit_sample._cache_size() == before + 1


def test_a_draw_does_not_depend_on_other_rows():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(8, 100)).astype(np.float32)
    key = jax.random.key(3)
    all_rows = jit_sample(logits, key)
    other = logits.copy()
    other[3:] = rng.normal(size=(5, 100))
    np.testing.assert_array_equal(jit_sample(other, key)[:3], all_rows[:3])
    np.testing.assert_array_equal(jit_sample(logits[:3], key), all_rows[:3])
    keys = jax.random.split(key, 8)
    by_row = jit_sample(logits, keys)
    np.testing.assert_array_equal(jit_sample(logits[::-1], keys[::-1]), by_row[::-1])
    assert len(set(np.asarray(jit_sample(np.tile(logits[:1], (50, 1)), key)))) > 10


def test_raw_keys_are_the_typed_ones():
    keys = jax.random.split(jax.random.key(5), 3)
    for key in (keys, keys[0]):
        raw, typed = (_row_keys(k, 3) for k in (jax.random.key_data(key), key))
        np.testing.assert_array_equal(jax.random.key_data(raw), jax.random.key_data(typed))


def test_a_forbidden_token_is_never_drawn():
    logits = jnp.tile(jnp.array([[-jnp.inf, 0.0, -jnp.inf, 0.0]]), (500, 1))
    assert set(np.asarray(jit_sample(logits, jax.random.key(4)))) == {1, 3}


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"temperature": -0.1}, r"temperature=-0\.1 is not"),
        ({"temperature": float("nan")}, "temperature=nan is not"),
        ({"temperature": float("inf")}, "temperature=inf is not"),
        ({"top_p": 1.5}, r"top_p=1\.5 is not"),
        ({"top_p": -1}, "top_p=-1 is not"),
        ({"top_p": jnp.ones(3)}, r"top_p has shape \(3,\), neither \(\) nor \(2,\)"),
        ({"temperature": jnp.ones((2, 1))}, r"temperature has shape \(2, 1\)"),
    ],
)
def test_misuse_is_refused(knobs, message):
    with pytest.raises(ValueError, match=message):
        sample(jnp.zeros((2, 4)), jax.random.key(0), **knobs)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"logits has shape \(4,\)"):
        sample(jnp.zeros(4), jax.random.key(0))
    with pytest.raises(ValueError, match=r"key has shape \(3,\)"):
        sample(jnp.zeros((2, 4)), jax.random.split(jax.random.key(0), 3))
