"""What cannot be done changes nothing, and says why."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiercache as tc
from tests.tiercache import builders
from tests.tiercache.builders import NAMESPACE, SPEC, ids, int32
from tiercache import Reason, prefix
from tiercache.prefix import keys

RUN = builders.verbs(SPEC)
PROMPT = builders.prompt(SPEC, 80)
# Ids that do not exist. Minus one must never be taken for the last of anything.
NO_SUCH_ROW = (-1, SPEC.max_rows, tc.NO_ROW, -(2**31))


def refused(before, after, reason, expected: Reason, *, but=()):
    """Asserts that a state only counted a refusal, and that its reason can be read."""
    assert int(reason) == expected, tc.explain(reason)
    builders.same(before, after, but=("counters", *but))
    text = tc.explain(expected)
    assert len(text) > 10
    new = int(after.counters.status) & ~int(before.counters.status)
    assert new in (0, 1 << expected)
    assert text in tc.status_texts(after.counters.status)
    counts = tc.counter_values(after)
    assert counts == {**tc.counter_values(before), "refused": counts["refused"]}
    assert counts["refused"] > tc.counter_values(before)["refused"]


@functools.cache
def full():
    """Every last one is in use: row 2, its lease, page 12, and lease 5."""
    state = builders.serve(tc.init_state(SPEC), SPEC, 2, PROMPT, 80, save=(48, 80), seed=3)
    state = builders.grow(state, SPEC, 1, 80)
    state = builders.grow(state, SPEC, 0, 33)
    assert int(state.pages.refs[12]) == 1
    plan = RUN.match(state, PROMPT, int32(80), NAMESPACE)
    state, info = RUN.pin(state, plan, int32(5))
    assert int(info.reason) == Reason.OK and int(plan.num_pages) == 3
    builders.sound(state, SPEC)
    return state


@functools.cache
def idle():
    """A prefix of three pages with a snapshot at its end, that no row uses."""
    state = builders.serve(tc.init_state(SPEC), SPEC, 2, PROMPT, 53, save=(48,), seed=4)
    return RUN.release(state, int32(2))[0]


def test_a_full_pool_serves_a_row_whole_or_not_at_all():
    state = tc.init_state(SPEC)
    wanted, info = RUN.reserve(state, ids(80, 80, 80), max_tokens=80)
    assert info.granted.tolist() == [True, True, False]
    assert info.reason.tolist() == [0, 0, Reason.PAGES_FULL]
    assert int(info.shortfall) == 2
    assert int(jnp.sum(wanted.pages.refs)) == 10
    again, info = RUN.reserve(wanted, ids(80, 0, 80), max_tokens=80)
    refused(wanted, again, info.reason[2], Reason.PAGES_FULL)
    assert info.granted.tolist() == [True, True, False]


def test_a_row_does_not_grow_past_max_pages():
    state = full()
    after, info = RUN.reserve(state, ids(0, 0, 1), max_tokens=80)
    refused(state, after, info.reason[2], Reason.ROW_FULL)
    assert info.granted.tolist() == [True, True, False]
    after, info = RUN.advance(state, ids(0, 0, 1))
    refused(state, after, info.reason[2], Reason.NOT_RESERVED)


def test_a_step_without_pages_is_not_taken():
    state = tc.init_state(SPEC)
    for counts in ((0, 5, 0), (0, -1, 0)):
        after, info = RUN.advance(state, ids(*counts))
        refused(state, after, info.reason[1], Reason.NOT_RESERVED)


def test_nothing_leaves_while_everything_is_pinned():
    state = full()
    for to in ("host", "cold", "drop"):
        after, info = RUN.evict(state, int32(2), most=4, to=to, tier="hot")
        refused(state, after, info.reason, Reason.ALL_PINNED)
        assert int(info.shortfall) == 2 and int(info.freed) == 0
        assert set(info.node_ids.tolist()) == {tc.NO_NODE}
    after, room = RUN.make_room(state, int32(2), int32(0), to="host", snapshots_to="host")
    refused(state, after, Reason.ALL_PINNED, Reason.ALL_PINNED)
    assert int(room.page_shortfall) == 2 and int(room.pages) == 0
    state, _ = RUN.evict_snapshots(state, int32(0), most=2, to="drop")
    after, info = RUN.evict_snapshots(state, int32(2), most=2, to="drop")
    refused(state, after, info.reason, Reason.ALL_PINNED)


def test_an_oversize_prefix_is_kept_as_far_as_a_snapshot_is_affordable():
    spec = builders.spec_of(index_pages=2, num_nodes=4, num_snapshots=5)
    run = builders.verbs(spec)
    prompt = builders.prompt(spec, 70)
    state, _, _ = builders.start(tc.init_state(spec), spec, 0, prompt, 70)
    state = builders.grow(state, spec, 0, 70)
    rows = jnp.zeros(3, jnp.int32)
    state, _ = run.save_snapshot(state, rows, ids(16, 48, 64), builders.recurrent(spec, 0, 3))
    state, info = run.insert(state, int32(0), prompt, NAMESPACE)
    # Two pages are affordable, but the deepest snapshot of those is at one.
    assert (int(info.reason), int(info.num_pages), int(info.left_out)) == (Reason.OVERSIZE, 1, 3)
    assert tc.explain(Reason.OVERSIZE) in tc.status_texts(state.counters.status)
    builders.sound(state, spec)
    state, _ = run.save_snapshot(
        state, rows, ids(32, tc.NO_ROW, tc.NO_ROW), builders.recurrent(spec, 0, 3)
    )
    state, info = run.insert(state, int32(0), prompt, NAMESPACE)
    assert (int(info.reason), int(info.num_pages)) == (Reason.OVERSIZE, 2)
    assert int(jnp.sum(state.index.entry >= 0)) == spec.index_pages
    # Cold pages cost the index no device page: now nodes are what lacks, and three fit.
    state, moved = run.requantize(state, state.table.entries[0, :2])
    assert not np.any(moved.reason)
    state, info = run.insert(state, int32(0), prompt, NAMESPACE)
    assert (int(info.reason), int(info.num_pages)) == (Reason.OVERSIZE, 3)
    plan = run.match(state, prompt, int32(70), NAMESPACE)
    assert int(plan.num_pages) == 3
    # The row's lease holds all of it, so another namespace finds no node.
    state, _ = run.release(state, int32(0))
    state, _, _ = builders.start(state, spec, 1, prompt, 70)
    before = builders.grow(state, spec, 2, 32)
    before, _ = run.save_snapshot(
        before, ids(2, 2, 2), ids(32, 32, 32), builders.recurrent(spec, 0, 3)
    )
    after, info = run.insert(before, int32(2), prompt, tc.Namespace(tenant="other").lanes())
    refused(before, after, info.reason, Reason.OVERSIZE)
    assert (int(info.num_pages), int(info.left_out)) == (0, 2)
    builders.sound(after, spec)


def test_a_page_whose_bucket_is_full_is_left_out(monkeypatch):
    """Keys that all collide: the ninth page of one depth finds no way. `insert` asks first, so that
    `NODES_FULL` and `BUCKET_FULL` are answers of `prefix.extend` alone."""
    strong = keys.page_hashes
    monkeypatch.setattr(keys, "page_hashes", lambda pages: strong(pages) & np.uint32(0))
    extend = jax.jit(lambda *args: prefix.extend(*args))  # traced anew: the hash is another one
    insert = jax.jit(functools.partial(tc.insert, spec=SPEC), compiler_options=builders.QUICK)
    state = builders.grow(tc.init_state(SPEC), SPEC, 0, 20)
    state, _ = RUN.save_snapshot(state, ids(0), ids(16))
    index = state.index
    for seed in range(8):
        index, grown = extend(index, builders.prompt(SPEC, 16, seed), int32(1), NAMESPACE)
        assert int(grown.reason) == Reason.OK
    ninth = builders.prompt(SPEC, 16, 8)
    full, grown = extend(index, ninth, int32(1), NAMESPACE)
    assert (int(grown.reason), int(grown.shortfall)) == (Reason.BUCKET_FULL, 1)
    builders.same(index, full)
    state = state._replace(index=index)
    after, info = insert(state, int32(0), ninth, NAMESPACE)
    refused(state, after, info.reason, Reason.OVERSIZE)
    assert (int(info.num_pages), int(info.left_out)) == (0, 1)
    known = builders.prompt(SPEC, 16, 3)
    after, info = insert(state, int32(0), known, NAMESPACE)
    assert (int(info.reason), int(info.num_pages), int(info.num_new)) == (Reason.OK, 1, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_layer_keeps_the_whole_page(bad):
    state = full()
    good, page = (int(state.table.entries[1, i]) for i in (0, 2))
    number, plane = SPEC.hot_layout.find(1, 1)
    pool = state.pages.payload[number]
    pool = pool._replace(scales=pool.scales.at[page, plane, 1, 5].set(bad))
    state = state._replace(pages=state.pages._replace(payload=(pool,)))
    after, info = RUN.requantize(state, ids(page, tc.NO_PAGE))
    # The slot that it was tried in is still free: what it holds is nobody's.
    refused(state, after, info.reason[0], Reason.NOT_FINITE, but=("cold.bank",))
    assert int(info.slot_ids[0]) == tc.NO_SLOT
    after, info = RUN.requantize(state, ids(page, good))
    assert info.reason.tolist() == [Reason.NOT_FINITE, 0]
    entries = state.table.entries.at[1, 0].set(-2 - info.slot_ids[1])
    np.testing.assert_array_equal(after.table.entries, entries)
    builders.sound(after, SPEC)


def test_pages_that_are_free_or_open_stay():
    state = full()
    last = int(state.table.entries[0, 2])
    after, info = RUN.requantize(state, ids(last, tc.NO_PAGE))
    refused(state, after, info.reason[0], Reason.OPEN_PAGE)
    state, _ = RUN.release(state, int32(0))
    after, info = RUN.requantize(state, ids(last, tc.NO_PAGE))
    refused(state, after, info.reason[0], Reason.BAD_ID)


def test_slots_run_out():
    state = full()
    pages = [int(x) for x in (*state.table.entries[1], *state.table.entries[2, :2])]
    for page in pages:
        state, info = RUN.requantize(state, ids(page, tc.NO_PAGE))
        assert int(info.reason[0]) == Reason.OK
    after, info = RUN.requantize(state, ids(int(state.table.entries[2, 2]), tc.NO_PAGE))
    refused(state, after, info.reason[0], Reason.SLOTS_FULL)
    builders.sound(state, SPEC)


def test_a_lease_is_given_up_once_and_only_if_it_is_held():
    state = full()
    after, info = RUN.unpin(state, int32(2))
    refused(state, after, info.reason, Reason.ROW_BUSY)
    after, info = RUN.unpin(state, int32(4))
    refused(state, after, info.reason, Reason.NOT_HELD)
    assert not bool(info.ok)
    once, info = RUN.unpin(state, int32(5))
    assert bool(info.ok)
    twice, info = RUN.unpin(once, int32(5))
    refused(once, twice, info.reason, Reason.NOT_HELD)


def test_a_row_is_released_once():
    state = full()
    once, info = RUN.release(state, int32(0))
    assert int(info.pages) == 3
    twice, info = RUN.release(once, int32(0))
    assert int(info.reason) == Reason.OK and int(info.pages) == 0
    builders.same(once, twice)


def test_a_fork_takes_a_free_row_from_one_that_holds_something():
    state = full()
    for source, target, reason in (
        (0, 1, Reason.ROW_BUSY), (0, 0, Reason.BAD_ID), (2, 1, Reason.ROW_BUSY)
    ):  # fmt: skip
        after, info = RUN.fork(state, int32(source), int32(target))
        refused(state, after, info.reason, reason)
    state, _ = RUN.release(state, int32(0))
    after, info = RUN.fork(state, int32(0), int32(0))
    refused(state, after, info.reason, Reason.BAD_ID)
    empty = tc.init_state(SPEC)
    after, info = RUN.fork(empty, int32(0), int32(1))
    refused(empty, after, info.reason, Reason.ROW_EMPTY)
    plan = RUN.match(state, PROMPT, int32(80), NAMESPACE)
    held, _ = RUN.pin(state, plan, int32(0))
    after, info = RUN.fork(held, int32(1), int32(0))
    refused(held, after, info.reason, Reason.LEASE_BUSY)


def test_committed_tokens_are_not_truncated():
    state = full()
    for row, length, reason in (
        (2, 79, Reason.BELOW_COMMITTED), (2, 0, Reason.BELOW_COMMITTED), (2, 81, Reason.BAD_ID),
        (1, -1, Reason.BAD_ID),
    ):  # fmt: skip
        after, info = RUN.truncate(state, int32(row), int32(length))
        refused(state, after, info.reason, reason)
    cold, _ = RUN.requantize(state, ids(int(state.table.entries[1, 1]), tc.NO_PAGE))
    after, info = RUN.truncate(cold, int32(1), int32(31))
    refused(cold, after, info.reason, Reason.BELOW_COMMITTED)
    _, info = RUN.truncate(cold, int32(1), int32(32))
    assert int(info.reason) == Reason.OK and int(info.pages) == 3


def test_a_plan_must_be_fresh_to_be_pinned_and_pinned_to_be_used():
    state = idle()
    plan = RUN.match(state, PROMPT, int32(53), NAMESPACE)
    assert int(plan.num_pages) == 3
    after, info = RUN.rehydrate(state, plan, int32(1), cold="share")
    refused(state, after, info.reason, Reason.NOT_PINNED)
    after, info = RUN.load_snapshot(state, plan, int32(1))
    refused(state, after, info.reason, Reason.NOT_PINNED)
    pinned, _ = RUN.pin(state, plan, int32(0))
    after, info = RUN.rehydrate(pinned, plan, int32(1), cold="share")
    refused(pinned, after, info.reason, Reason.NOT_PINNED)
    after, info = RUN.pin(pinned, plan, int32(0))
    refused(pinned, after, info.reason, Reason.LEASE_BUSY)
    gone, _ = RUN.evict(state, int32(1), most=4, to="drop", tier="hot")
    after, info = RUN.pin(gone, plan, int32(0))
    refused(gone, after, info.reason, Reason.STALE_PLAN)
    gone, _ = RUN.evict_snapshots(state, int32(1), most=2, to="drop")
    after, info = RUN.pin(gone, plan, int32(0))
    refused(gone, after, info.reason, Reason.STALE_PLAN)


def test_a_row_that_runs_takes_no_plan():
    state = full()
    plan = RUN.match(state, PROMPT, int32(80), NAMESPACE)
    after, info = RUN.rehydrate(state, plan, int32(2), cold="share")
    refused(state, after, info.reason, Reason.ROW_BUSY)


def test_rehydration_is_all_or_nothing():
    away, _ = RUN.evict(idle(), int32(3), most=4, to="host", tier="hot")
    crowded = builders.grow(builders.grow(away, SPEC, 0, 80), SPEC, 1, 80)
    plan = RUN.match(crowded, PROMPT, int32(53), NAMESPACE)
    assert int(plan.num_host) == 3
    fits, _ = RUN.pin(crowded, plan, int32(2))
    _, info = RUN.rehydrate(fits, plan, int32(2), cold="share")
    assert int(info.reason) == Reason.OK
    longer, _ = RUN.release(fits, int32(1))
    longer = builders.grow(longer, SPEC, 1, 80)
    longer, _ = RUN.truncate(longer, int32(1), int32(0))
    short = longer._replace(pages=longer.pages._replace(refs=longer.pages.refs.at[5:].set(1)))
    after, info = RUN.rehydrate(short, plan, int32(2), cold="share")
    refused(short, after, info.reason, Reason.PAGES_FULL)
    assert int(info.shortfall) == 3


def test_a_snapshot_of_another_depth_is_never_used():
    state = idle()
    plan = RUN.match(state, PROMPT, int32(53), NAMESPACE)
    state, _ = RUN.pin(state, plan, int32(1))
    moved = state.snapshots.tokens.at[plan.snap_id].add(-16)
    state = state._replace(snapshots=state.snapshots._replace(tokens=moved))
    after, info = RUN.load_snapshot(state, plan, int32(1))
    refused(state, after, info.reason, Reason.DEPTH_MISMATCH)
    assert "snapshot_depths" in tc.failures(state, SPEC)


def test_snapshots_are_saved_at_page_boundaries_while_there_are_free_ones():
    state = full()
    for depth in (0, -16, 17, 47):
        after, info = RUN.save_snapshot(state, ids(0), ids(depth))
        refused(state, after, info.reason[0], Reason.DEPTH_MISMATCH)
    two, info = RUN.save_snapshot(state, ids(0, 1, 1), ids(16, 16, 32))
    assert info.reason.tolist() == [0, 0, Reason.SNAPSHOTS_FULL]
    after, info = RUN.save_snapshot(two, ids(0), ids(32))
    refused(two, after, info.reason[0], Reason.SNAPSHOTS_FULL)
    again, info = RUN.save_snapshot(two, ids(0), ids(16))
    assert int(info.reason[0]) == Reason.OK  # in the place of the first
    builders.sound(again, SPEC)


def test_a_host_bank_that_is_full_and_pinned_takes_nothing():
    state = tc.init_state(SPEC)
    for row, length in ((0, 80), (1, 33)):
        prompt = builders.prompt(SPEC, length, 10 + row)
        depth = length // 16 * 16
        state = builders.serve(state, SPEC, row, prompt, length, save=(depth,), seed=row)
        state, info = RUN.mirror(state, int32(row), most=5)
    assert int(info.pages) == 1 and int(info.left) == 1
    assert int(info.reason) == Reason.HOST_PAGES_FULL
    builders.sound(state, SPEC)
    prompt = builders.prompt(SPEC, 17, 12)
    state = builders.serve(state, SPEC, 2, prompt, 17, save=(16,), seed=2)
    state, info = RUN.mirror(state, int32(2), most=5)
    assert int(info.snapshots) == 1
    state, _ = RUN.pin(state, RUN.match(state, prompt, int32(17), NAMESPACE), int32(5))
    state, _ = RUN.release(state, int32(2))
    other = builders.prompt(SPEC, 17, 13)
    state = builders.serve(state, SPEC, 2, other, 17, save=(16,), seed=2)
    state, _ = RUN.release(state, int32(2))
    after, info = RUN.evict(state, int32(1), most=4, to="host", tier="hot")
    refused(state, after, info.reason, Reason.HOST_PAGES_FULL)
    assert int(info.shortfall) == 1 and int(info.freed) == 0
    after, info = RUN.evict_snapshots(state, int32(1), most=2, to="host")
    refused(state, after, info.reason, Reason.HOST_SNAPSHOTS_FULL)
    builders.sound(after, SPEC)


def test_tokens_that_are_not_those_of_the_path_are_not_inserted():
    state = full()
    other = builders.prompt(SPEC, 80, 9)
    after, info = RUN.insert(state, int32(2), other, NAMESPACE)
    refused(state, after, info.reason, Reason.TOKENS_MISMATCH)
    state, _ = RUN.release(state, int32(0))
    after, info = RUN.insert(state, int32(0), other, NAMESPACE)
    refused(state, after, info.reason, Reason.ROW_EMPTY)


@pytest.mark.parametrize("row", NO_SUCH_ROW)
def test_a_row_that_does_not_exist_is_no_row(row):
    state = full()
    plan = RUN.match(state, PROMPT, int32(80), NAMESPACE)
    nothing = RUN.match(state, PROMPT, int32(5), NAMESPACE)
    row_id = int32(row)
    lease = int32(SPEC.num_leases if row == SPEC.max_rows else row)
    cases = {
        "pin": (RUN.pin(state, plan, lease), Reason.BAD_ID),
        "unpin": (RUN.unpin(state, lease), Reason.BAD_ID),
        "rehydrate": (RUN.rehydrate(state, plan, row_id, cold="share"), Reason.BAD_ID),
        "rehydrate nothing": (RUN.rehydrate(state, nothing, row_id, cold="share"), Reason.BAD_ID),
        "load_snapshot": (RUN.load_snapshot(state, plan, row_id), Reason.BAD_ID),
        "load nothing": (RUN.load_snapshot(state, nothing, row_id), Reason.BAD_ID),
        "insert": (RUN.insert(state, row_id, PROMPT, NAMESPACE), Reason.BAD_ID),
        "mirror": (RUN.mirror(state, lease, most=5), Reason.NOT_HELD),
        "fork from": (RUN.fork(state, row_id, int32(1)), Reason.BAD_ID),
        "fork to": (RUN.fork(state, int32(1), row_id), Reason.BAD_ID),
        "truncate": (RUN.truncate(state, row_id, int32(0)), Reason.BAD_ID),
        "release": (RUN.release(state, row_id), Reason.BAD_ID),
    }
    for name, ((after, info), reason) in cases.items():
        assert int(info.reason) == reason, name
        refused(state, after, info.reason, reason)
    after, info = RUN.save_snapshot(state, ids(row), ids(16))
    if row == tc.NO_ROW:  # asks for nothing
        builders.same(state, after)
    else:
        refused(state, after, info.reason[0], Reason.BAD_ID)


@functools.partial(jax.jit, compiler_options=builders.QUICK)
def read_and_write(state, row_ids):
    view = tc.view(state, row_ids, jnp.array([3]), num_tokens=4, spec=SPEC)
    k = jnp.ones((1, 4, SPEC.num_kv_heads, SPEC.head_dim))
    after, info = tc.append(state, view, 0, k, -k, spec=SPEC)
    out = tc.attend(after, view, 0, jnp.ones((1, 4, 4, SPEC.head_dim)), spec=SPEC)
    return after, view, info, out


@pytest.mark.parametrize("row", NO_SUCH_ROW)
def test_a_row_that_does_not_exist_reads_and_writes_nothing(row):
    state = RUN.truncate(full(), int32(1), int32(70))[0]  # the last page may be written
    after, view, info, out = read_and_write(state, ids(row))
    assert set(np.ravel(view.entries)) == {tc.HOLE} and view.lengths.tolist() == [0]
    assert set(np.ravel(view.write_pages)) == {tc.NO_PAGE}
    builders.same(state, after)
    assert info.dropped.tolist() == [3]
    assert not np.any(out)
    after, _, info, out = read_and_write(state, ids(1))
    assert info.dropped.tolist() == [0] and np.any(out)


@pytest.mark.parametrize("page", [-1, SPEC.num_pages, tc.NO_PAGE - 1, -(2**31)])
def test_a_page_that_does_not_exist_is_no_page(page):
    state = full()
    after, info = RUN.requantize(state, ids(page, tc.NO_PAGE))
    refused(state, after, info.reason[0], Reason.BAD_ID)
    nothing, info = RUN.requantize(state, ids(tc.NO_PAGE, tc.NO_PAGE))
    builders.same(state, nothing)


@pytest.mark.parametrize("number", [0, -1])
def test_to_evict_nothing_does_nothing(number):
    state = idle()
    for to in ("host", "cold", "drop"):
        after, info = RUN.evict(state, int32(number), most=4, to=to, tier="hot")
        builders.same(state, after)
        assert int(info.freed) == 0 and int(info.reason) == Reason.OK
    after, _ = RUN.evict_snapshots(state, int32(number), most=2, to="host")
    builders.same(state, after)
    after, _ = RUN.make_room(state, int32(number), int32(number), to="host", snapshots_to="host")
    builders.same(state, after)


def test_knobs_that_contradict_a_verb_are_errors_while_tracing():
    bare = builders.spec_of(
        policy="none", num_cold_slots=0, keep_tokens=None, num_host_pages=0, num_snapshots=0,
        num_host_snapshots=0,
    )  # fmt: skip
    state = jax.eval_shape(lambda: tc.init_state(bare))

    def fails(text, verb, *args, **static):
        with pytest.raises(ValueError, match=text):
            jax.eval_shape(functools.partial(verb, spec=bare, **static), state, *args)

    one = jax.ShapeDtypeStruct((), jnp.int32)
    some = jax.ShapeDtypeStruct((2,), jnp.int32)
    rows = jax.ShapeDtypeStruct((3,), jnp.int32)
    fails("num_host_pages=0", tc.evict, one, most=2)
    fails("num_cold_slots=0", tc.evict, one, most=2, to="cold")
    fails("num_host_snapshots=0", tc.evict_snapshots, one, most=2)
    fails("num_snapshots", tc.save_snapshot, some, some)
    fails("num_host_pages", tc.mirror, one, most=2)
    fails("num_cold_slots", tc.requantize, some)
    fails("keep_tokens", tc.retire, most=2)
    fails(r"max_tokens=0 .*\[1, 80\]", tc.reserve, rows, max_tokens=0)
    fails(r"max_tokens=81 .*\[1, 80\]", tc.reserve, rows, max_tokens=81)
    fails(r"num_tokens=81 .*\[1, 80\]", tc.view, some, some, num_tokens=81)
    full_spec = jax.eval_shape(lambda: tc.init_state(SPEC))
    with pytest.raises(ValueError, match="tier 'cold' to 'host'"):
        jax.eval_shape(functools.partial(tc.evict, most=2, tier="cold", spec=SPEC), full_spec, one)
    leaves = tuple(jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for leaf in builders.LEAVES)
    with pytest.raises(ValueError, match=r"leaves are .*not"):
        jax.eval_shape(
            functools.partial(tc.save_snapshot, spec=SPEC), full_spec, some, some, leaves
        )


def test_every_reason_has_a_text_of_its_own_and_a_bit():
    texts = [tc.explain(reason) for reason in Reason]
    assert len(set(texts)) == len(Reason)
    assert max(Reason) < 32
    word = sum(1 << reason for reason in Reason if reason)
    assert tc.status_texts(word) == texts[1:]
    assert tc.status_texts(0) == []
