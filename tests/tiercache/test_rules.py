"""The ten rules that always hold, one test or more for each. Numbers are those of the design."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiercache as tc
from pallas_kernels.banks import to_numpy
from pallas_kernels.page_layout import K
from tests.tiercache.sessions import PAGE, known, page_bytes, path, session
from tiercache.testing import Driver, Session, free_storage, poison_free
from tiercache.testing.specs import PLAIN, WINDOW

few = settings(max_examples=6)


def driven(seed: int) -> Session:
    """A session with a cache that random steps have led somewhere."""
    both = session(WINDOW)
    Driver(both.lockstep, at_once=True).run_random(seed, 60)
    return both


def unchanged(before, after, *, but=("counters",)):
    """Every leaf outside some fields has the same bytes."""
    for name in before._fields:
        if name not in but:
            same_bytes(getattr(before, name), getattr(after, name))


def copy_of(state):
    """NumPy arrays of their own: the next call is donated the state."""
    return jax.tree.map(np.array, state)


def values_of(both):
    """What each page of row 0 holds, decoded, by (layer, K or V)."""
    reference = both.reference
    held = [entry for entry in reference.rows[0].entries if entry >= 0]
    return [reference.pages[page_id].values(reference.codecs) for page_id in held]


def same_bytes(one, other):
    """Bytes and not values: much of a poisoned cache is not a number."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.tobytes() == b.tobytes()


@few
@given(
    depths=st.sets(st.integers(1, 4), max_size=3),
    to_host=st.integers(0, 4),
    dropped=st.integers(0, 3),
    snapshots=st.integers(0, 2),
)
def test_rule_1_a_hit_has_every_page_and_a_snapshot_of_its_depth(
    depths, to_host, dropped, snapshots
):
    both = session(WINDOW)
    states = {}
    for depth in range(1, 5):
        assert both.fill(0, PAGE)
        states[depth] = both.reference.rows[0].live
        if depth in depths:
            both.save_snapshot([0], [depth * PAGE])
    both.insert(0, [1, 2, 3, 4])
    both.release(0)
    both.evict_snapshots_host(snapshots)
    both.evict_host(to_host)
    both.evict_drop(dropped)
    plan = both.match([1, 2, 3, 4], 80)
    index = jax.device_get(both.state.index)
    for node_id in plan.node_ids[: plan.num_pages]:
        assert index.entry[node_id] != tc.HOLE or index.host_id[node_id] != tc.NO_HOST
    if plan.num_pages:
        assert plan.num_pages in depths
        assert both.admit(1, [1, 2, 3, 4], 80) == plan.num_pages * PAGE
        live = [np.asarray(x)[:, 1].tobytes() for x in jax.device_get(both.state.live)]
        assert live == [x.tobytes() for x in states[plan.num_pages]]


@pytest.mark.parametrize("dirt", [0x00, 0xFF, 0x5A])
def test_rule_2_a_host_round_trip_restores_every_leaf_over_dirt(dirt):
    both = session(WINDOW, poison=False)
    both.fill(0, 3 * PAGE)
    both.publish(0, [1, 2, 3], [3])
    before = [page_bytes(both, node.entry) for node in path(both, [1, 2, 3])]
    live = [np.asarray(x)[:, 0].tobytes() for x in jax.device_get(both.state.live)]
    assert len(set(map(tuple, before))) == 3 and len(before[0]) == 3  # bf16; int8, its scales
    both.mirror(0)
    both.release(0)
    both.evict_host(3)
    both.evict_snapshots_host(1)
    assert not both.reference.pages and not both.reference.snapshots
    both.lockstep.state = poison_free(both.state, both.spec, byte=dirt)
    both.reference.forget_unowned()
    assert both.admit(2, [1, 2, 3], 60) == 3 * PAGE
    assert before == [page_bytes(both, node.entry) for node in path(both, [1, 2, 3])]
    assert live == [np.asarray(x)[:, 2].tobytes() for x in jax.device_get(both.state.live)]


@pytest.mark.parametrize("layer", [0, 1])
def test_rule_3_one_bad_layer_keeps_the_whole_page_where_it_was(layer):
    both = session(WINDOW, poison=False)
    assert both.extend([PAGE, 0, 0], bad={0: 0, 1: 2}[layer])
    assert both.fill(0, PAGE)
    finite = [np.isfinite(x[layer, K]).all() for x in values_of(both)]
    assert finite == [False, True]
    before = copy_of(both.state)
    info = both.requantize([0, tc.NO_PAGE, tc.NO_PAGE])
    assert info.reason[0] == tc.Reason.NOT_FINITE
    unchanged(before, copy_of(both.state), but=("counters", "cold"))
    assert free_storage(both.state).slots.all()


def refusals(both, old_plan, plan, deep):
    """Calls that are refused, by what they get wrong."""
    reason, bad = tc.Reason, 2**30
    return {
        "reserve past max_pages": (lambda: both.reserve([40, 0, 0]), reason.ROW_FULL),
        "reserve of too much": (lambda: both.reserve([0, 0, 40]), reason.PAGES_FULL),
        "advance without pages": (lambda: both.advance([0, 5, 0]), reason.NOT_RESERVED),
        "fork of nothing": (lambda: both.fork(2, 1), reason.ROW_EMPTY),
        "fork onto a row": (lambda: both.fork(1, 0), reason.ROW_BUSY),
        "fork of no row": (lambda: both.fork(-1, 2), reason.BAD_ID),
        "fork under a lease": (lambda: both.fork(0, 2), reason.LEASE_BUSY),
        "truncate what is published": (lambda: both.truncate(1, 3), reason.BELOW_COMMITTED),
        "truncate to more": (lambda: both.truncate(1, 90), reason.BAD_ID),
        "release of no row": (lambda: both.release(bad), reason.BAD_ID),
        "insert of other tokens": (
            lambda: both.insert(1, [7, 7]), reason.TOKENS_MISMATCH,
        ),
        "insert of nothing": (lambda: both.insert(2, [1]), reason.ROW_EMPTY),
        "insert of no row": (lambda: both.insert(-1, [1]), reason.BAD_ID),
        "pin of an old plan": (lambda: both.pin(old_plan, 4), reason.STALE_PLAN),
        "pin twice": (lambda: both.pin(plan, 2), reason.LEASE_BUSY),
        "pin under a running row": (lambda: both.pin(plan, 0), reason.ROW_BUSY),
        "pin under no lease": (lambda: both.pin(plan, 5), reason.BAD_ID),
        "unpin of a free lease": (lambda: both.unpin(4), reason.NOT_HELD),
        "unpin of a running row": (lambda: both.unpin(1), reason.ROW_BUSY),
        "unpin of no lease": (lambda: both.unpin(-1), reason.BAD_ID),
        "rehydrate a busy row": (lambda: both.rehydrate(plan, 1), reason.ROW_BUSY),
        "rehydrate no row": (lambda: both.rehydrate(plan, 97), reason.BAD_ID),
        "rehydrate what is not pinned": (lambda: both.rehydrate(deep, 2), reason.NOT_PINNED),
        "load what is not pinned": (lambda: both.load_snapshot(deep, 2), reason.NOT_PINNED),
        "load into no row": (lambda: both.load_snapshot(plan, 3), reason.BAD_ID),
        "save off the boundary": (lambda: both.save_snapshot([0], [5]), reason.DEPTH_MISMATCH),
        "save of no row": (lambda: both.save_snapshot([-1], [16]), reason.BAD_ID),
        "evict what is used": (lambda: both.evict_drop(1), reason.ALL_PINNED),
        "evict slots there are none of": (lambda: both.evict_slots(1), reason.ALL_PINNED),
        "evict a snapshot in use": (lambda: both.evict_snapshots_drop(3), reason.ALL_PINNED),
        "mirror of a free lease": (lambda: both.mirror(4), reason.NOT_HELD),
        "mirror of no lease": (lambda: both.mirror(-1), reason.NOT_HELD),
        "pack an open page": (
            lambda: both.requantize([both.reference.rows[0].entries[5]] + [tc.NO_PAGE] * 2),
            reason.OPEN_PAGE,
        ),
        "pack a free page": (
            lambda: both.requantize([both.reference.free_pages()[0], -1, 10]), reason.BAD_ID,
        ),
    }  # fmt: skip


def test_rule_4_a_refusal_changes_nothing_but_the_counters():
    both = session(WINDOW, poison=False)
    known(both, [1, 2], [2])
    old_plan = both.match([1, 2], 40)
    both.evict_drop(2)
    known(both, [1, 2], [1])
    plan = both.match([1, 2], 40)
    both.pin(plan, 2)
    assert both.admit(1, [1, 2], 40) == PAGE and both.fill(1, PAGE)
    both.publish(1, [1, 2], [2])
    deep = both.match([1, 2], 40)
    assert both.fill(0, 5 * PAGE + 3)
    for name, (call, reason) in refusals(both, old_plan, plan, deep).items():
        before = copy_of(both.state)
        info = call()
        reasons = np.atleast_1d(info.reason)
        assert reason in reasons, (name, info)
        after = copy_of(both.state)
        unchanged(before, after)
        assert int(after.counters.status) >> int(reason) & 1
        refused = tc.state.COUNTER_NAMES.index("refused")
        change = after.counters.values - before.counters.values
        assert change[refused] == np.sum(reasons > 0) and change.sum() == change[refused], name


@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1))
def test_rule_5_everything_can_be_given_back_once(seed):
    both, spec = driven(seed), WINDOW
    for row_id in range(spec.max_rows):
        both.release(row_id)
        again = both.release(row_id)
        assert (again.pages, again.slots) == (0, 0)
    for lease_id in range(spec.max_rows, spec.num_leases):
        both.unpin(lease_id)
        assert both.unpin(lease_id).reason == tc.Reason.NOT_HELD
    for _ in range(3):
        both.evict_drop(4)
        both.evict_slots(4)
        both.evict_snapshots_drop(3)
    free = free_storage(both.state)
    assert free.pages.all() and free.slots.all() and free.snapshots.all() and free.rows.all()
    assert both.fill(0, 5 * PAGE) and both.fill(1, 5 * PAGE)
    assert not free_storage(both.state).pages.any()


def test_rule_6_room_for_a_hit_never_comes_from_the_hit():
    both = session(WINDOW)
    known(both, [1, 2, 3], [3])
    both.evict_host(3)
    known(both, [4, 5, 6, 7], [4])
    before = [both.reference.host_pages[node.host_id].record() for node in path(both, [1, 2, 3])]
    both.fill(0, 5 * PAGE)  # one page is free, two host pages are
    plan = both.match([1, 2, 3], 60)
    assert (plan.num_host, plan.num_pages) == (3, 3) and both.pin(plan, 1).ok
    assert both.rehydrate(plan, 1).reason == tc.Reason.PAGES_FULL
    assert both.make_room(3, 2).pages == 2
    assert len(both.reference.free_ids(both.reference.host_pages, 5)) == 0
    assert both.rehydrate(plan, 1).num_host == 3
    assert before == [
        both.reference.pages[entry].record() for entry in both.reference.rows[1].entries[:3]
    ]
    info = both.evict_host(4)  # the other prompt's last two pages, and no more
    assert (info.reason, info.freed) == (tc.Reason.ALL_PINNED, 2)
    both.release(1)
    assert both.evict_host(4).freed == 3


def test_rule_6_a_host_full_of_pinned_copies_refuses_and_loses_nothing():
    both = session(WINDOW)
    known(both, [1, 2, 3, 4, 5], [5])
    both.evict_host(4)
    both.evict_host(1)
    both.pin(both.match([1, 2, 3, 4, 5], 96), 3)
    known(both, [6, 7], [2])
    info = both.evict_host(2)
    assert info.reason == tc.Reason.HOST_PAGES_FULL and info.freed == info.dropped == 0
    assert both.match([1, 2, 3, 4, 5], 96).num_host == 5
    assert both.match([6, 7], 40).num_hot == 2
    both.unpin(3)
    assert both.evict_host(2).stored == 2


def test_rule_7_published_bytes_never_change():
    both = session(WINDOW)
    both.fill(0, 2 * PAGE + 5)
    both.publish(0, [1, 2], [2])
    nodes = path(both, [1, 2])

    def published():
        snapshot = nodes[-1].snap_id
        leaves = [np.asarray(x)[snapshot].tobytes() for x in both.state.snapshots.leaves]
        return [page_bytes(both, node.entry) for node in nodes], leaves

    before = published()
    both.fork(0, 1)
    shared = both.reference.rows[0].entries[2]
    assert both.extend([7, 9, 0])  # both write into what was one page
    assert len({shared, *(row.entries[2] for row in both.reference.rows[:2])}) == 3
    assert both.truncate(1, 2 * PAGE).reason == tc.Reason.OK
    assert both.extend([20, 20, 0])
    assert both.truncate(1, 2 * PAGE - 1).reason == tc.Reason.BELOW_COMMITTED
    assert before == published()


@few
@given(seed=st.integers(0, 2**16))
def test_rule_8_a_page_loses_bits_once(seed):
    both = session(WINDOW, key=seed)
    known(both, [1, 2], [2])
    records = []
    for _ in range(3):
        assert both.evict_cold(2).packed == 2
        nodes = path(both, [1, 2])
        bank = to_numpy(both.state.cold.bank)
        records.append([bank[-2 - node.entry].tobytes() for node in nodes])
        assert both.admit(0, [1, 2], 40, cold="hot") == 2 * PAGE
        both.release(0)
    assert records[0] == records[1] == records[2]


def test_rule_8_an_exact_copy_is_preferred_wherever_it_is():
    both = session(WINDOW)
    both.fill(0, 2 * PAGE)
    both.publish(0, [1, 2], [2])
    before = [page_bytes(both, node.entry) for node in path(both, [1, 2])]
    both.mirror(0)
    both.release(0)
    assert both.evict_cold(2).packed == 2
    plan = both.match([1, 2], 40)
    assert (plan.num_host, plan.num_cold) == (2, 0)
    assert both.admit(1, [1, 2], 40, cold="share") == 2 * PAGE
    assert before == [page_bytes(both, node.entry) for node in path(both, [1, 2])]


def test_rule_9_victims_are_the_oldest_and_of_a_path_the_deepest():
    both = session(WINDOW)
    known(both, [1, 2, 3], [1, 3])
    known(both, [4, 5], [2])
    first, second = path(both, [1, 2, 3]), path(both, [4, 5])
    order = [node.node_id for node in [*first[::-1], *second[::-1]]]
    assert both.evict_host(4).node_ids == order[:4]
    assert both.evict_snapshots_drop(2).node_ids[:2] == [first[0].node_id, first[2].node_id]
    known(both, [1, 2, 3], [3])
    both.pin(both.match([4, 5], 40), 3)  # used: younger than the rest now
    both.unpin(3)
    assert both.evict_drop(3).node_ids[:3] == order[:3]


def test_rule_9_the_same_calls_give_the_same_state():
    states = []
    for _ in range(2):
        states.append(copy_of(driven(11).state))
    same_bytes(*states)


@pytest.mark.parametrize("spec", [WINDOW, PLAIN], ids=["window", "plain"])
def test_rule_10_bytes_are_those_of_the_arrays(spec):
    state = tc.init_state(spec)

    def size(tree):
        return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))

    measured = dict(
        device_pages=size(state.pages.payload),
        cold_slots=size(state.cold.bank),
        host_pages=size(state.host.pages),
        device_snapshots=size(state.snapshots.leaves),
        host_snapshots=size(state.host.snapshots),
        live_rows=size(state.live),
    )
    assert measured == tc.tier_bytes(spec)
    assert measured["device_pages"] == spec.num_pages * tc.bytes_per_page(spec, "device")


def test_rule_10_every_budget_bounds_the_bytes_of_its_tier():
    page, cold = (tc.bytes_per_page(WINDOW, tier) for tier in ("device", "cold"))
    snapshot = tc.bytes_per_snapshot(WINDOW)
    budgets = dict(
        device_bytes=("device_pages", 7 * page + 5),
        cold_bytes=("cold_slots", 4 * cold + 5),
        host_bytes=("host_pages", 9 * page + 5),
        device_snapshot_bytes=("device_snapshots", 2 * snapshot + 5),
        host_snapshot_bytes=("host_snapshots", 6 * snapshot + 5),
    )
    for knob, (tier, budget) in budgets.items():
        spec = tc.with_budgets(dataclasses.replace(WINDOW, index_pages=4), **{knob: budget})
        assert tc.tier_bytes(spec)[tier] == budget - 5, knob
        others = {k: v for k, v in tc.tier_bytes(spec).items() if k != tier}
        assert others == {k: v for k, v in tc.tier_bytes(WINDOW).items() if k != tier}
        with pytest.raises(ValueError, match=knob):
            tc.with_budgets(WINDOW, **{knob: 3})


@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1))
def test_rule_10_what_the_host_holds_is_what_went_there_less_what_was_dropped(seed):
    both = driven(seed)
    counts, free = tc.counter_values(both.state), free_storage(both.state)
    pages, snapshots = int((~free.host_pages).sum()), int((~free.host_snapshots).sum())
    assert counts["pages_to_host"] - counts["host_pages_dropped"] == pages
    assert counts["snapshots_to_host"] - counts["host_snapshots_dropped"] == snapshots
    moved = tc.traffic(both.state, WINDOW)
    page, snapshot = tc.bytes_per_page(WINDOW, "host"), tc.bytes_per_snapshot(WINDOW)
    assert moved["device_to_host"] == (
        counts["pages_to_host"] * page + counts["snapshots_to_host"] * snapshot
    )


# Each of these was wrong once.


@pytest.mark.slow
def test_the_index_keeps_to_its_budget_when_pages_come_back(quick_compiles):
    both = session(PLAIN, at_once=False)  # index_pages=5
    known(both, [1, 2, 3, 4], [])
    both.evict_host(4)
    known(both, [5, 6, 7], [])
    assert both.admit(1, [1, 2, 3, 4], 80) == 4 * PAGE
    assert sum(node.entry >= 0 for node in both.reference.index.nodes()) == 5
    both.release(1)
    assert len(both.reference.free_pages()) == 5
    both.lockstep.flush()


def test_one_row_and_depth_is_one_snapshot_within_a_call():
    both = session(WINDOW)
    both.fill(0, 2 * PAGE)
    assert both.save_snapshot([0, 0], [PAGE, PAGE]).snap_ids == [0, 0]
    assert both.save_snapshot([0, 0], [2 * PAGE, 3 * PAGE], [PAGE, PAGE]).snap_ids == [0, 1]
    assert both.insert(0, [1, 2]).num_snapshots == 1


def test_a_mirrored_snapshot_takes_the_place_of_an_idle_younger_one():
    both = session(WINDOW)
    both.fill(0, PAGE)
    both.publish(0, [9], [1])
    for symbol in (1, 2, 3):
        known(both, [symbol], [1], row_id=1)
        assert both.evict_snapshots_host(1).stored == 1
    assert both.mirror(0).snapshots == 1


def test_a_row_that_does_not_exist_reads_and_writes_nothing():
    both = session(WINDOW)
    both.reserve([0, 0, 4])
    rows, counts = jnp.array([-1, 3], jnp.int32), jnp.ones(2, jnp.int32)
    view = tc.view(both.state, rows, counts, num_tokens=1, spec=WINDOW)
    assert (np.asarray(view.entries) == tc.HOLE).all()
    assert (np.asarray(view.write_pages) == tc.NO_PAGE).all()
