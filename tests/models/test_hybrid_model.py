"""The whole decoder: against float64 NumPy, chunks against steps, and what must hold to the bit."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.hybrid_gdn import HybridGDN, Recurrent, functional, init_recurrent, tiny
from tests.models import oracles
from tests.models.conftest import build, decode, prefill
from tests.models.dense_cache import dense_attend, init_dense

ROWS, TOKENS = 3, 128
LENGTH = 256  # positions of the dense cache
PROMPTS = np.array([*range(1, 17), 63, 64, 65, 127, 128], np.int32).reshape(-1, ROWS)


def start(config):
    return init_recurrent(config, ROWS), init_dense(config, ROWS, LENGTH)


def random_tokens(config, num_tokens=TOKENS, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, config.vocab_size, (ROWS, num_tokens)).astype(np.int32)


def random_recurrent(config, seed=1):
    rng = np.random.default_rng(seed)
    conv, delta = init_recurrent(config, ROWS)
    return Recurrent(
        jnp.asarray(rng.normal(size=conv.shape), conv.dtype),
        jnp.asarray(rng.normal(size=delta.shape), delta.dtype),
    )


def full(value):
    return np.full(ROWS, value, np.int32)


def to_numpy(tree):
    return jax.tree.map(np.array, tree)


def of_row(tree, row):
    return jax.tree.map(lambda x: x[:, row], tree)


def at_boundary(tree, number):
    return jax.tree.map(lambda x: x[number], tree)


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype and x.tobytes() == y.tobytes()


def weights64(params):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(params))


@pytest.mark.parametrize("kind", ["dense_model", "expert_model"])
def test_prefill_equals_the_float64_model(kind, request):
    config, apply, params = request.getfixturevalue(kind)
    tokens = random_tokens(config)
    counts = np.array([128, 75, 2], np.int32)
    boundaries = np.array([64, 128, -1, -1, -1], np.int32)
    out = prefill(apply, params, tokens, full(0), counts, *start(config), boundaries)
    for row, count in enumerate(counts):
        logits, conv, delta = oracles.decoder(weights64(params), config, tokens[row, :count])
        conv = np.pad(conv, ((0, 0), (3, 0), (0, 0)))
        np.testing.assert_allclose(out.logits[row, :count], logits, atol=2e-3)
        states = [(out.recurrent, count)]
        states += [
            (at_boundary(out.boundary_states, i), min(b, count)) for i, b in [(0, 64), (1, 128)]
        ]
        for state, taken in states:
            state = of_row(state, row)
            np.testing.assert_allclose(state.conv, conv[:, taken : taken + 3], atol=1e-4)
            np.testing.assert_allclose(state.delta, delta[:, taken - 1], atol=1e-4)


@pytest.mark.parametrize("counts", PROMPTS, ids=str)
def test_a_prompt_of_any_length_ends_in_the_state_of_single_steps(counts, dense_model):
    config, apply, params = dense_model
    tokens = random_tokens(config)
    whole = prefill(apply, params, tokens, full(0), counts, *start(config))
    recurrent, cache = start(config)
    for step in range(max(counts)):
        now = (step < counts).astype(np.int32)
        out = decode(apply, params, tokens[:, [step]], full(step), now, recurrent, cache)
        recurrent, cache = out.recurrent, out.cache
        for row in np.flatnonzero(now):
            want = np.asarray(out.logits[row])
            np.testing.assert_allclose(whole.logits[row, step], want, atol=1e-3)
    np.testing.assert_allclose(whole.recurrent.conv, recurrent.conv, atol=1e-4)
    np.testing.assert_allclose(whole.recurrent.delta, recurrent.delta, atol=1e-4)


def test_a_boundary_state_is_the_state_of_a_run_cut_there(dense_model):
    config, apply, params = dense_model
    tokens = random_tokens(config, seed=2)
    boundaries = np.array([64, -1, 128, 64, 100], np.int32)
    whole = prefill(apply, params, tokens, full(0), full(128), *start(config), boundaries)
    cut = prefill(apply, params, tokens, full(0), full(64), *start(config), boundaries)
    kept = to_numpy(whole.boundary_states)
    assert kept.delta.shape[:3] == (5, config.num_gdn_layers, ROWS)
    for number, state in [(0, cut.recurrent), (3, cut.recurrent), (2, whole.recurrent)]:
        assert_same_bits(at_boundary(kept, number), state)
    for number in (1, 4):
        assert not kept.conv[number].any() and not kept.delta[number].any()
    # Past a row's count, a boundary gives the state after the count.
    assert_same_bits(at_boundary(cut.boundary_states, 2), cut.recurrent)


def test_a_run_resumed_from_a_boundary_goes_on_as_if_never_stopped(dense_model):
    config, apply, params = dense_model
    tokens = random_tokens(config, 192, seed=3)
    boundaries = np.array([64, -1, -1, -1, -1], np.int32)
    first = prefill(apply, params, tokens[:, :128], full(0), full(128), *start(config), boundaries)
    resumed = at_boundary(first.boundary_states, 0)
    # The cache holds 128 positions; those from 64 on are written again with the same K and V.
    rest = tokens[:, 64:], full(64), full(128)
    again = prefill(apply, params, *rest, resumed, first.cache)
    for row in range(ROWS):
        logits, _, _ = oracles.decoder(weights64(params), config, tokens[row])
        np.testing.assert_allclose(again.logits[row], logits[64:], atol=2e-3)
    lost = prefill(apply, params, *rest, init_recurrent(config, ROWS), again.cache)
    assert np.abs(lost.logits - again.logits)[:, -1].max() > 0.1  # a lost snapshot shows


@pytest.mark.parametrize("num_tokens", [1, TOKENS])
@pytest.mark.parametrize("kind", ["dense_model", "expert_model"])
def test_a_row_without_tokens_keeps_its_state_to_the_bit(kind, num_tokens, request):
    config, apply, params = request.getfixturevalue(kind)
    recurrent, cache = random_recurrent(config), start(config)[1]
    recurrent = recurrent._replace(delta=recurrent.delta.at[:, 1, :, 0].set(-0.0))
    before = to_numpy(recurrent)
    tokens = random_tokens(config, num_tokens)
    counts = np.array([num_tokens, 0, num_tokens], np.int32)
    call = decode if num_tokens == 1 else prefill
    out = call(apply, params, tokens, full(5), counts, recurrent, cache)
    assert np.isfinite(out.logits).all()
    assert_same_bits(of_row(out.recurrent, 1), of_row(before, 1))
    assert (np.asarray(out.recurrent.delta)[:, 0] != before.delta[:, 0]).any()


@pytest.mark.parametrize("num_tokens", [1, TOKENS])
@pytest.mark.parametrize("kind", ["dense_model", "expert_model"])
def test_padding_and_other_rows_change_nothing_to_the_bit(kind, num_tokens, request):
    config, apply, params = request.getfixturevalue(kind)
    call = decode if num_tokens == 1 else prefill
    tokens = random_tokens(config, num_tokens)
    counts = np.minimum(np.array([70, 128, 9], np.int32), num_tokens)
    recurrent = random_recurrent(config)
    before = to_numpy(recurrent)
    one = call(apply, params, tokens, full(7), counts, recurrent, start(config)[1])
    tokens[0, 70:] = 10**6  # the padding of row 0, and all of row 1
    tokens[1] = random_tokens(config, num_tokens, seed=9)[0]
    other_counts = counts.copy()
    other_counts[1] = 1
    recurrent = Recurrent(*(jnp.asarray(x).at[:, 1].set(jnp.nan) for x in before))
    positions = np.array([7, 90, 7], np.int32)
    two = call(apply, params, tokens, positions, other_counts, recurrent, start(config)[1])
    for row in (0, 2):
        valid = slice(counts[row]) if num_tokens > 1 else ...
        assert_same_bits(one.logits[row][valid], two.logits[row][valid])
        assert_same_bits(of_row(one.recurrent, row), of_row(two.recurrent, row))
    assert np.isnan(two.logits[1]).any()


def test_last_logits_are_the_last_valid_ones_whatever_attend_returns_at_padding(dense_model):
    config, apply, params = dense_model
    tokens, counts = random_tokens(config, 64), np.array([20, 0, 64], np.int32)

    @jax.jit
    def run(garbage):
        dense = dense_attend(full(0), counts)

        def attend(cache, layer, q, k, v):
            cache, out = dense(cache, layer, q, k, v)
            valid = (jnp.arange(64) < counts[:, None])[..., None, None]
            return cache, jnp.where(valid, out, garbage)

        return apply(params, tokens, full(0), counts, *start(config), attend)

    one, two = run(0.0), run(jnp.nan)
    assert_same_bits((one.logits, one.recurrent), (two.logits, two.recurrent))
    assert np.isfinite(two.logits).all()
    assert two.boundary_states is None
    padded = np.pad(tokens, ((0, 0), (0, 64)))
    at_all = prefill(apply, params, padded, full(0), counts, *start(config)).logits
    for row in (0, 2):
        np.testing.assert_allclose(two.logits[row], at_all[row, counts[row] - 1], atol=1e-3)


def test_other_values_do_not_recompile_and_donation_updates_in_place(dense_model):
    config, apply, params = dense_model
    state = start(config)
    sizes = set()
    for position, count, boundary in [(0, 128, 64), (128, 3, -1), (131, 0, 128)]:
        boundaries = np.full(5, boundary, np.int32)
        args = random_tokens(config), full(position), full(count), *state, boundaries
        out = prefill(apply, params, *args)
        sizes.add(prefill._cache_size())
        assert state[0].delta.is_deleted() and state[1].k.is_deleted()
        state = out.recurrent, out.cache
    _, same, _ = build()
    assert same is not apply
    prefill(same, params, *args[:3], *state, args[5])
    sizes.add(prefill._cache_size())
    assert len(sizes) == 1
    state = start(config)
    compiled = decode.lower(apply, params, args[0][:, :1], *args[1:3], *state).compile()
    nbytes = sum(x.nbytes for x in jax.tree.leaves(state))
    assert compiled.memory_analysis().alias_size_in_bytes == nbytes
    copied = re.findall(r"f32\[([\d,]+)\]\S* copy\(", compiled.as_text())
    assert not {",".join(map(str, x.shape)) for x in jax.tree.leaves(state)} & set(copied)


def test_bfloat16_stays_near_the_float64_model():
    config, apply, params = build(dtype=jnp.bfloat16, num_hidden_layers=2)
    tokens = random_tokens(config)
    out = prefill(apply, params, tokens, full(0), full(128), *start(config))
    assert out.recurrent.conv.dtype == jnp.bfloat16
    assert out.recurrent.delta.dtype == out.logits.dtype == jnp.float32
    for row in range(ROWS):
        logits, _, _ = oracles.decoder(weights64(params), config, tokens[row])
        error = np.asarray(out.logits[row]) - logits
        assert np.sqrt(np.mean(error**2)) < 0.05 * np.std(logits)


def test_tiny_writes_varied_text_with_clear_choices():
    """Greedy text must neither collapse to one token nor hang on rounding."""
    config = tiny()
    apply, params = functional(HybridGDN(config, rngs=nnx.Rngs(0)))
    prompt = np.frombuffer(b"def main():\n    return", np.uint8).astype(np.int32)
    state = init_recurrent(config, 1), init_dense(config, 1, LENGTH)
    written, gaps = [], []
    for position in range(len(prompt) + 100):
        now = prompt[position] if position < len(prompt) else written[-1]
        at, one = np.array([position], np.int32), np.ones(1, np.int32)
        out = decode(apply, params, np.full((1, 1), now, np.int32), at, one, *state)
        state = out.recurrent, out.cache
        ranked = np.sort(out.logits[0])
        gaps.append(ranked[-1] - ranked[-2])
        written.append(int(np.argmax(out.logits[0])))
    assert len(set(written[-100:])) > 40
    assert np.median(gaps) > 0.3 and np.min(gaps) > 1e-3


def test_misuse_is_refused(dense_model):
    config, apply, params = dense_model

    def call(num_tokens=64, num_rows=ROWS, recurrent=None, **knobs):
        tokens = jnp.zeros((ROWS, num_tokens), jnp.int32)
        state, cache = start(config)
        rows = jnp.zeros(num_rows, jnp.int32)
        attend = knobs.pop("attend", dense_attend(rows, rows))
        jax.eval_shape(
            lambda: apply(params, tokens, rows, rows, recurrent or state, cache, attend, **knobs)
        )

    for num_tokens in (0, 2, 63, 100):
        with pytest.raises(ValueError, match=f"token={num_tokens} is neither 1 nor a multiple"):
            call(num_tokens)
    with pytest.raises(ValueError, match="boundaries need a prefill"):
        call(1, boundaries=jnp.array([64]))
    with pytest.raises(ValueError, match="logits_at='first'"):
        call(logits_at="first")
    with pytest.raises(ValueError, match=r"positions \(2,\) and counts \(2,\) must be \(3,\)"):
        call(num_rows=2)
    with pytest.raises(ValueError, match="recurrent.conv is float32"):
        call(recurrent=init_recurrent(config, 2))
    with pytest.raises(ValueError, match="attend returned"):
        call(attend=lambda cache, layer, q, k, v: (cache, k))
