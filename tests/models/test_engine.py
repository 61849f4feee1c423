"""The engine: what is cached changes nothing but the time; what fails leaves nothing behind."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import tiercache as tc
from models.engine import Config, Engine, Refused
from tests.models import serving
from tests.models.serving import engine, num_free, request, sound
from tiercache.policies import SnapshotPlacement
from tiercache.testing import assert_outputs_equal_cold


def same_answer(one, two):
    assert one.outputs == two.outputs
    np.testing.assert_array_equal(one.first_logits, two.first_logits)


def split(wanted, position):
    """A request whose cold run ends a prefill call where the other resumed."""
    return request_like(wanted, split_at=(position,))


def request_like(wanted, **changes):
    return dataclasses.replace(wanted, **changes)


def evict_all(served: Engine):
    """Everything idle goes to host memory."""
    served._make_room(served.spec.num_pages, served.spec.num_snapshots)
    assert num_free(served.cache)["pages"] == served.spec.num_pages
    assert num_free(served.cache)["snapshots"] == served.spec.num_snapshots


@pytest.mark.parametrize("tier", ["hot", "host"])
@pytest.mark.parametrize("length", [97, 150])
def test_a_resumed_prompt_answers_like_a_cold_one_to_the_bit(tier, length):
    wanted = request(length, seed=length)
    served = engine()
    first = served.serve(wanted)
    assert (first.cached_tokens, first.snapshot) == (0, "none")
    if tier == "host":
        evict_all(served)
    again = served.serve(wanted)
    sound(served)
    assert again.cached_tokens == (length - 1) // 16 * 16
    assert again.from_hot == (again.cached_tokens // 16 if tier == "hot" else 0)
    assert again.from_host == (again.cached_tokens // 16 if tier == "host" else 0)
    assert again.snapshot == {"hot": "device", "host": "host"}[tier]
    cold = engine().serve(split(wanted, again.cached_tokens))
    assert cold.cached_tokens == 0
    same_answer(again, cold)
    np.testing.assert_allclose(again.first_logits, first.first_logits, atol=1e-3)


def test_the_assertion_of_the_kit_holds_of_the_engine():
    """With prompts in pieces, so that cold and resumed runs are cut alike."""

    def server():
        served = engine()

        def answer(wanted):
            report = served.serve(wanted)
            return np.array(report.outputs), report.first_logits

        return answer

    prompts = [request(65, seed=1, split_at=(48, 64)), request(33, seed=2, split_at=(32,))]
    assert_outputs_equal_cold(server, prompts)


def test_a_conversation_goes_on_from_what_was_generated():
    served = engine()
    first = request(70, seed=1, max_new=30)
    report = served.serve(first)
    longer = request_like(first, tokens=(*first.tokens, *report.outputs, 3, 1, 4))
    evict_all(served)
    second = served.serve(longer)
    assert second.cached_tokens == 96  # 99 tokens had K and V: the last page boundary of those
    cold = engine().serve(split(longer, 96))
    assert second.outputs == cold.outputs
    np.testing.assert_allclose(second.first_logits, cold.first_logits, atol=2e-3)
    sound(served)


def test_prompts_that_share_a_beginning_share_it_from_the_third_on():
    served = engine()
    first = request(90, seed=2)
    reports = [served.serve(first)]
    for seed in (3, 4):
        wanted = request(90, seed=seed, like=first, shared=50)
        reports.append(served.serve(wanted))
    assert [r.cached_tokens for r in reports] == [0, 0, 48]
    same_answer(reports[2], engine().serve(split(wanted, 48)))


def test_rows_that_run_together_answer_as_each_alone():
    wanted = [request(n, seed=n, max_new=m) for n, m in ((70, 30), (33, 5), (100, 17))]
    alone = [engine().serve(r) for r in wanted]
    served = engine()
    rows = [served.admit(r) for r in wanted]
    assert rows == [0, 1, 2]
    with pytest.raises(Refused, match="all 3 rows run"):
        served.admit(wanted[0])
    served.decode(4)
    served.decode()
    for row, one in zip(rows, alone, strict=True):
        same_answer(served.finish(row), one)
    sound(served)
    assert num_free(served.cache)["pins"] == 0


def test_every_function_compiles_once():
    """Engines of other specs in this process share `pin` and `start`: what counts is growth."""
    served = engine()

    def sizes() -> dict[str, int]:
        return {name: function._cache_size() for name, function in vars(served._jit).items()}

    before = sizes()
    served.serve(request(5, seed=0, max_new=3))
    first = sizes()
    assert all(first[name] - before[name] in (0, 1) for name in first)
    assert all(first[name] >= 1 for name in first if name != "mirror")
    for seed, (length, max_new) in enumerate([(64, 1), (65, 20), (129, 2), (170, 9)]):
        served.serve(request(length, seed=seed, max_new=max_new))
    served.serve(request(170, seed=3, max_new=3))
    evict_all(served)
    served.serve(request(170, seed=3, max_new=3))
    assert sizes() == first


def test_an_answer_ends_at_a_stop_token_or_when_it_is_long_enough():
    wanted = request(40, seed=5, max_new=25)
    full = engine().serve(wanted).outputs
    assert len(full) == 25
    place = next(i for i in range(3, 25) if full[i] not in full[:i])
    assert engine().serve(request_like(wanted, stop=(full[place],))).outputs == full[: place + 1]
    assert engine().serve(request_like(wanted, stop=(full[0],))).outputs == full[:1]
    assert engine().serve(request_like(wanted, max_new=1)).outputs == full[:1]
    assert engine().serve(request_like(wanted, max_new=7)).outputs == full[:7]
    with pytest.raises(ValueError, match="2 stop tokens, but num_stop=1"):
        engine().serve(request_like(wanted, stop=(1, 2)))


def test_a_seed_draws_the_same_answer_again():
    wanted = request(40, seed=6, max_new=25, temperature=1.0, top_p=0.9)
    one, two, other = (engine(seed=seed).serve(wanted).outputs for seed in (1, 1, 2))
    assert one == two != other


def test_a_namespace_keeps_its_prefixes_to_itself():
    served = engine()
    wanted = request(80, seed=7, namespace=tc.Namespace(tenant="a"))
    served.serve(wanted)
    assert (
        served.serve(request_like(wanted, namespace=tc.Namespace(adapter="a"))).cached_tokens == 0
    )
    assert served.serve(wanted).cached_tokens == 64


def test_a_refused_request_gives_everything_back():
    served = engine()
    known = request(60, seed=8)
    served.serve(known)
    rows = [served.admit(request(n, seed=n, max_new=1)) for n in (180, 120)]  # 20 of 21 pages
    before = num_free(served.cache)
    held = tuple(np.asarray(x).tolist() for x in served.cache.table[1:])
    with pytest.raises(Refused, match="too few free pages"):
        served.admit(request(100, seed=9, like=known, shared=60))
    sound(served)
    assert tuple(np.asarray(x).tolist() for x in served.cache.table[1:]) == held
    after = num_free(served.cache)
    assert after["pages"] >= before["pages"] and after["pins"] == before["pins"]
    assert "too few free pages" in tc.status_texts(served.cache.counters.status)[0]
    for row in rows:
        served.finish(row)
    sound(served)
    assert num_free(served.cache)["pins"] == 0
    again = request(100, seed=9, like=known, shared=60)
    answer = served.serve(again)
    same_answer(answer, engine().serve(split(again, answer.cached_tokens)))


def test_a_stalled_row_goes_on_once_there_is_room():
    wanted = [request(n, seed=n, max_new=60) for n in (100, 99, 70)]  # 30 pages in the end, of 21
    alone = [engine().serve(r).outputs for r in wanted]
    served = engine()
    rows = [served.admit(r) for r in wanted]
    with pytest.raises(Refused, match="too few free pages"):
        served.decode()
    sound(served)
    assert np.any(served.rows.stalled)
    part = served.finish(rows[2])
    assert part.outputs == alone[2][: len(part.outputs)] and len(part.outputs) < 60
    served.decode()
    assert [served.finish(row).outputs for row in rows[:2]] == alone[:2]
    sound(served)
    assert num_free(served.cache)["pins"] == 0


def test_what_does_not_fit_is_an_error_before_anything_is_done():
    served = engine()
    for wanted in (request(0), request(185), request(10, max_new=183)):
        with pytest.raises(ValueError, match=r"max_pages=12 of 16 tokens"):
            served.admit(wanted)
    with pytest.raises(ValueError, match="2 stop tokens, but num_stop=1"):
        served.admit(dataclasses.replace(request(10), stop=(1, 2)))
    assert served.reports == {}
    assert int(served.cache.table.lengths.max()) == 0


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (Config(chunk=32), "chunk=32 .* 64"),
        (Config(chunk=96), "chunk=96 .* 64"),
        (Config(chunk=64, placement=SnapshotPlacement(every=24)), "every=24"),
    ],
)
def test_a_config_that_does_not_fit_the_spec_is_refused(config, text):
    _, apply, params = serving.model()
    with pytest.raises(ValueError, match=text):
        Engine(apply, params, serving.SPEC, config)


def test_writing_through_to_nowhere_is_refused():
    _, apply, params = serving.model()
    spec = serving.spec_of(num_host_pages=0)
    with pytest.raises(ValueError, match="write='through' with num_host_pages=0"):
        Engine(apply, params, spec, Config(chunk=64, write="through"))


@pytest.mark.slow
def test_written_through_and_retired_while_it_decodes(quick_compiles):
    """Cold slots, write-through and retirement in the loop: one engine with everything on."""
    spec = serving.spec_of(policy="window", num_cold_slots=20, keep_tokens=32, num_pages=13)
    served = engine(spec, dataclasses.replace(serving.CONFIG, write="through"))
    wanted = request(64, seed=11, max_new=100)
    row = served.admit(wanted)
    counts = tc.counter_values(served.cache)
    assert counts["pages_to_host"] == 3 and counts["snapshots_to_host"] == 1
    other = served.admit(request(60, seed=12, max_new=100))
    served.decode()
    # Both need eleven pages in the end, of thirteen: what was retired went round.
    state = served.cache
    assert tc.counter_values(state)["pages_to_cold"] >= 12
    for r in (row, other):
        length = int(state.table.lengths[r])
        old = np.asarray(state.table.entries[r, : (length - 32) // 16])
        assert np.all(old < tc.HOLE)
    sound(served)
    report = served.finish(row)
    assert len(report.outputs) == 100
    served.finish(other)
    sound(served)
    again = served.serve(request_like(wanted, max_new=3))
    # The first pages had exact copies when they were packed; restoring uses those.
    assert again.cached_tokens == 48
    assert (again.from_host, again.from_cold) == (3, 0)
    cold = engine(spec, serving.CONFIG).serve(request_like(wanted, max_new=3, split_at=(48,)))
    same_answer(again, cold)


@pytest.mark.slow
def test_without_host_memory_what_leaves_is_computed_again(quick_compiles):
    spec = serving.spec_of(num_host_pages=0, num_host_snapshots=0)
    config = Config(chunk=64, decode_steps=32, pages_to="drop", snapshots_to="drop")
    served = engine(spec, config)
    wanted = request(97, seed=13)
    first = served.serve(wanted)
    assert served.serve(wanted).cached_tokens == 96
    evict_all(served)
    gone = served.serve(wanted)
    assert gone.cached_tokens == 0
    same_answer(gone, first)
    sound(served)
    assert jnp.sum(served.cache.index.host_id < tc.NO_HOST) == 0
