"""Prefill in chunks and the decode loop, against the model over a dense cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiercache as tc
from models import decode as loops
from models.hybrid_gdn import Recurrent, init_recurrent
from models.sampling import sample
from tests.models import serving
from tests.models.conftest import decode as dense_decode
from tests.models.conftest import prefill as dense_prefill
from tests.models.dense_cache import init_dense
from tests.models.serving import CONFIG, SPEC, engine, num_free, request
from tests.tiercache import builders
from tests.tiercache.builders import int32

MAX_NEW = 20


@functools.cache
def rounding_apply():
    """The model with K and V rounded to the pages' bfloat16 before a dense cache keeps them."""
    _, apply, _ = serving.model()

    def rounded(params, tokens, positions, counts, recurrent, cache, attend, **options):
        def attend_rounded(cache, layer, q, k, v):
            k, v = (x.astype(jnp.bfloat16).astype(x.dtype) for x in (k, v))
            return attend(cache, layer, q, k, v)

        return apply(params, tokens, positions, counts, recurrent, cache, attend_rounded, **options)

    return rounded


@functools.cache
def dense_answer(tokens: tuple[int, ...]):
    """(logits of each greedy step, tokens) of the model alone: one prefill, one token at a time."""
    config, _, params = serving.model()
    width = 128
    padded = np.zeros((1, width), np.int32)
    padded[0, : len(tokens)] = tokens
    zero, count = jnp.zeros(1, jnp.int32), jnp.array([len(tokens)])
    out = dense_prefill(
        rounding_apply(), params, padded, zero, count, init_recurrent(config, 1),
        init_dense(config, 1, 192),
    )  # fmt: skip
    logits, answer = [np.asarray(out.logits[0, len(tokens) - 1])], []
    for step in range(MAX_NEW):
        answer.append(int(np.argmax(logits[-1])))
        out = dense_decode(
            rounding_apply(), params, jnp.array([[answer[-1]]]), count + step, jnp.ones_like(count),
            out.recurrent, out.cache,
        )  # fmt: skip
        logits.append(np.asarray(out.logits[0]))
    return np.stack(logits), answer


@pytest.mark.parametrize("length", [5, 64, 70, 128])
def test_chunks_and_the_loop_are_the_model_over_a_dense_cache(length):
    wanted = request(length, seed=length, max_new=MAX_NEW)
    logits, answer = dense_answer(wanted.tokens)
    report = engine().serve(wanted)
    np.testing.assert_allclose(report.first_logits, logits[0], atol=2e-3)
    assert report.outputs == answer
    margins = np.sort(logits, axis=1)
    assert np.min(margins[:, -1] - margins[:, -2]) > 1e-4  # no answer hangs on rounding


def prefilled(row: int, length: int):
    """(cache, rows, tokens) with one row that has computed its prompt, ready to decode."""
    served = engine()
    wanted = request(length, seed=length, max_new=MAX_NEW)
    assert [served.admit(wanted) for _ in range(row + 1)][-1] == row
    return served, wanted


def test_the_loop_in_parts_is_the_loop_in_one():
    served, wanted = prefilled(0, 50)
    for steps in (1, 3, 2, 100):
        served.decode(steps)
    assert served.finish(0).outputs == engine().serve(wanted).outputs
    assert served._jit.decode._cache_size() == 1


def test_the_loop_ends_when_no_row_is_active_or_at_its_steps():
    served, _ = prefilled(0, 50)
    run = served._jit.decode
    cache, rows, taken = run(served.params, served.cache, served.rows, int32(4))
    assert int(taken) == 4 and int(cache.table.lengths[0]) == 54
    cache, rows, taken = run(served.params, cache, rows, int32(100))
    assert int(taken) == MAX_NEW - 1 - 4 and not np.any(rows.active)
    cache, rows, taken = run(served.params, cache, rows, int32(100))
    assert int(taken) == 0


def test_rows_that_do_not_run_keep_their_state_to_the_bit():
    served, _ = prefilled(2, 40)
    active = jax.device_put(jnp.array([True, False, True]), served.rows.active.sharding)
    rows = served.rows._replace(active=active)
    live = [np.asarray(x)[:, 1] for x in served.cache.live]
    length = int(served.cache.table.lengths[1])
    cache, rows, _ = served._jit.decode(served.params, served.cache, rows, int32(5))
    for before, after in zip(live, cache.live, strict=True):
        np.testing.assert_array_equal(before, np.asarray(after)[:, 1])
        assert not np.array_equal(np.asarray(after)[:, 0], np.asarray(after)[:, 1])
    assert cache.table.lengths.tolist() == [45, length, 45]


def test_a_chunk_that_gets_no_page_does_nothing_but_say_so():
    served = engine()
    for row, length in enumerate((180, 140)):
        served.admit(request(length, seed=row, max_new=1))
    before = jax.device_get(served.cache)
    after, info = served._jit.prefill(
        served.params, served.cache, int32(2), np.zeros(64, np.int32), int32(40),
        np.full(2, -1, np.int32),
    )  # fmt: skip
    assert int(info.reason) == tc.Reason.PAGES_FULL
    builders.same(before, after, but=("counters",))


def test_a_decoding_row_leaves_its_last_page_boundary_to_the_next_turn():
    served, _ = prefilled(0, 50)
    served.decode()
    waiting = np.asarray(served.cache.snapshots.owner) == 0
    depths = np.asarray(served.cache.snapshots.tokens)[waiting]
    assert depths.tolist() == [64]  # 50 + 19 tokens
    served.finish(0)
    assert num_free(served.cache)["snapshots"] == SPEC.num_snapshots - 2  # 48 and 64


def test_the_first_token_is_sampled_as_the_rest():
    rows = loops.init_rows(SPEC, seed=3)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=61), jnp.float32)
    _, draw = jax.random.split(rows.key)
    wanted = sample(logits[None], draw, temperature=jnp.array([0.7]), top_p=jnp.array([0.8]))[0]
    tokens = jnp.arange(SPEC.max_tokens + 1, dtype=jnp.int32)
    rows, token = jax.jit(loops.start_row)(
        rows, int32(1), tokens, int32(9), logits, int32(4), jnp.float32(0.7), jnp.float32(0.8),
        jnp.array([-1]),
    )  # fmt: skip
    assert int(token) == int(wanted) == int(rows.tokens[1, 9])
    assert rows.active.tolist() == [False, True, False]
    assert rows.remaining.tolist() == [0, 3, 0] and rows.prompt.tolist() == [0, 9, 0]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["decode", "prefill"])
def test_donated_the_loop_and_a_chunk_copy_no_pool(part):
    spec = serving.spec_of(
        num_pages=211, num_host_pages=103, num_snapshots=61, num_host_snapshots=67,
        policy="host", num_cold_slots=97, keep_tokens=32,
    )  # fmt: skip
    _, apply, params = serving.model()
    state = tc.init_state(spec)
    if part == "decode":
        step = functools.partial(loops.decode, apply=apply, placement=CONFIG.placement, spec=spec)
        rest = (state, loops.init_rows(spec), int32(5))
        program = builders.compile_step(step, params, *rest, donate=(1, 2), position=1)
    else:
        step = functools.partial(loops.prefill_chunk, apply=apply, spec=spec)
        rest = (state, int32(0), jnp.zeros(64, jnp.int32), int32(5), jnp.full(2, -1, jnp.int32))
        program = builders.compile_step(step, params, *rest, donate=(1,), position=1)
    assert not program.copies, program.copies
    assert program.aliased >= builders.num_bytes(builders.big_leaves(state))
    pool = builders.num_bytes(jax.tree.leaves(state.pages.payload))
    assert program.temporary < pool / 2


@pytest.mark.slow
def test_pages_retired_in_the_loop_serve_another_row_in_the_same_call():
    spec = serving.spec_of(
        num_pages=6, policy="window", num_cold_slots=30, keep_tokens=32, num_host_pages=0,
        num_host_snapshots=0,
    )  # fmt: skip
    _, apply, params = serving.model()
    step = functools.partial(loops.decode, apply=apply, placement=CONFIG.placement, spec=spec)
    rows = loops.init_rows(spec)
    rows = rows._replace(
        active=jnp.array([True, False, True]),
        remaining=jnp.array([150, 0, 150]),
        tokens=rows.tokens.at[:, 0].set(jnp.array([3, 0, 9])),
    )
    cache, rows, taken = jax.jit(step, donate_argnums=(1, 2))(
        params, tc.init_state(spec), rows, int32(120)
    )
    assert int(taken) == 120 and not np.any(rows.stalled)
    assert cache.table.lengths.tolist() == [120, 0, 120]  # sixteen pages through a pool of six
    assert tc.counter_values(cache)["pages_to_cold"] == 10
    assert num_free(cache) == {"pages": 0, "slots": 20, "snapshots": 5, "pins": 0}
    assert tc.failures(cache, spec) == []


def test_recurrent_leaves_are_in_the_order_of_the_spec():
    config, _, _ = serving.model()
    leaves = init_recurrent(config, SPEC.max_rows)
    assert isinstance(leaves, Recurrent)
    state = jax.eval_shape(lambda: tc.init_state(SPEC))
    assert [(x.shape, x.dtype) for x in leaves] == [(x.shape, x.dtype) for x in state.live]
