"""What a prompt may be resumed from: joint hits, boundaries, preferences, namespaces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiercache.prefix.machine import MAX_PAGES, NAMESPACES, PAGE_SIZE, empty_index, prompt
from tiercache import prefix
from tiercache.ids import NO_HOST, NO_NODE, NO_SNAP
from tiercache.reasons import Reason

jit_match = jax.jit(prefix.match, static_argnames="needs_snapshot")
jit_extend = jax.jit(prefix.extend)
jit_can_extend = jax.jit(prefix.can_extend)
jit_pin = jax.jit(prefix.pin)
jit_check = jax.jit(prefix.check)
SYMBOLS = [0, 1, 2, 0]


def known(symbols=SYMBOLS, namespace=NAMESPACES[0]):
    """An index that knows one prompt, hot pages 10, 11, … and no snapshot; and its nodes."""
    index, info = jit_extend(empty_index(), prompt(symbols), jnp.int32(len(symbols)), namespace)
    entries = jnp.arange(10, 10 + MAX_PAGES, dtype=jnp.int32)
    return prefix.set_entries(index, info.node_ids, entries), info.node_ids


def with_snapshots(index, node_ids, depths):
    depths = np.array(depths)
    return prefix.set_snapshots(index, node_ids[depths - 1], jnp.asarray(depths, jnp.int32))


def full_match(index, symbols=(*SYMBOLS,), length=MAX_PAGES * PAGE_SIZE, **kwargs):
    return jit_match(index, prompt(symbols), jnp.int32(length), NAMESPACES[0], **kwargs)


def test_the_last_token_is_never_matched():
    index, _ = known()
    for length in range(MAX_PAGES * PAGE_SIZE + 1):
        plan = full_match(index, length=length, needs_snapshot=False)
        assert plan.num_pages == max(length - 1, 0) // PAGE_SIZE
    assert jit_match._cache_size() <= 2  # one compile for all lengths, by `needs_snapshot`


def test_tokens_past_the_length_do_not_count():
    index, _ = known()
    plan = full_match(index, symbols=[0, 1], length=2 * PAGE_SIZE + 1, needs_snapshot=False)
    assert (int(plan.num_pages), int(plan.cut)) == (2, prefix.CUT_NONE)
    plan = full_match(index, symbols=[0, 1], length=2 * PAGE_SIZE, needs_snapshot=False)
    assert plan.num_pages == 1


def test_a_snapshot_at_the_leaf_alone_is_enough():
    index, node_ids = known()
    plan = full_match(with_snapshots(index, node_ids, [3]))
    assert (int(plan.num_pages), int(plan.snap_id)) == (3, 3)
    assert plan.cut == prefix.CUT_NONE


def test_without_a_snapshot_nothing_is_resumed_and_the_plan_says_why():
    index, _ = known()
    plan = full_match(index)
    assert (int(plan.num_pages), int(plan.kv_pages)) == (0, 3)
    assert plan.cut == prefix.CUT_SNAPSHOT
    assert plan.snap_id == NO_SNAP
    assert not np.any(plan.source)


def test_the_deepest_complete_depth_wins_over_a_deeper_one_that_lacks_its_snapshot():
    index, node_ids = known()
    plan = full_match(with_snapshots(index, node_ids, [1, 2]))
    assert (int(plan.num_pages), int(plan.kv_pages)) == (2, 3)
    assert plan.cut == prefix.CUT_SNAPSHOT


def test_the_deepest_complete_depth_wins_over_a_deeper_one_that_lacks_a_page():
    index, node_ids = known()
    index = with_snapshots(index, node_ids, [1, 3])
    index = prefix.set_entries(index, node_ids[1], jnp.int32(-1))
    plan = full_match(index)
    assert (int(plan.num_pages), int(plan.kv_pages), int(plan.known_pages)) == (1, 1, 3)
    assert plan.cut == prefix.CUT_PAGE


def test_exact_copies_come_before_the_lossy_one():
    index, node_ids = known()
    index = prefix.set_entries(index, node_ids[:3], jnp.array([10, -2, -3], jnp.int32))
    index = prefix.set_host_ids(index, node_ids[:3], jnp.array([4, 5, NO_HOST], jnp.int32))
    plan = full_match(index, needs_snapshot=False)
    expected = [prefix.SOURCE_HOT, prefix.SOURCE_HOST, prefix.SOURCE_COLD, prefix.SOURCE_NONE]
    assert plan.source.tolist() == expected
    assert (int(plan.num_hot), int(plan.num_host), int(plan.num_cold)) == (1, 1, 1)


def test_a_device_snapshot_comes_before_one_on_the_host():
    index, node_ids = known()
    index = prefix.set_host_snapshots(index, node_ids[2], jnp.int32(8))
    assert full_match(index).snapshot_source == prefix.SNAPSHOT_HOST
    plan = full_match(with_snapshots(index, node_ids, [3]))
    assert plan.snapshot_source == prefix.SNAPSHOT_DEVICE
    assert (int(plan.snap_id), int(plan.host_snap_id)) == (3, 8)


def test_a_snapshot_of_another_depth_is_refused_and_recency_stays():
    index, node_ids = known()
    after, info = prefix.attach_snapshot(index, node_ids[2], jnp.int32(1), jnp.int32(2 * PAGE_SIZE))
    assert (bool(info.ok), int(info.reason)) == (False, Reason.DEPTH_MISMATCH)
    jax.tree.map(np.testing.assert_array_equal, index, after)


@pytest.mark.parametrize(
    "other",
    [
        prefix.Namespace(adapter="x"),
        prefix.Namespace(weights="x"),
        prefix.Namespace(codec="x"),
        prefix.Namespace(),
        prefix.Namespace(tenant="x", adapter="x"),
        prefix.Namespace(tenant="xx"),
    ],
)
def test_a_namespace_hits_itself_and_no_other(other):
    own = prefix.Namespace(tenant="x")
    index, _ = known(namespace=own.lanes())
    tokens, length = prompt(SYMBOLS), jnp.int32(MAX_PAGES * PAGE_SIZE)
    hit = jit_match(index, tokens, length, own.lanes(), needs_snapshot=False)
    miss = jit_match(index, tokens, length, other.lanes(), needs_snapshot=False)
    assert (int(hit.num_pages), int(miss.known_pages)) == (3, 0)
    assert (int(miss.root_id), int(miss.cut)) == (NO_NODE, prefix.CUT_UNKNOWN)


def test_fields_are_parts_of_their_own():
    parts = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    lanes = {tuple(prefix.Namespace(tenant=a, adapter=b).lanes()) for a, b in parts}
    assert len(lanes) == len(parts)
    assert len(prefix.Namespace(tenant="a").lanes()) == 16


def test_a_plan_of_a_reused_node_is_stale():
    index, node_ids = known([0, 1])
    plan = full_match(index, symbols=[0, 1], needs_snapshot=False)
    index = prefix.set_entries(index, node_ids, jnp.full_like(node_ids, -1))
    index, num_dropped = prefix.drop_dead(index)
    assert num_dropped == 3  # the namespace root too
    index, info = jit_extend(index, prompt([2, 2]), jnp.int32(2), NAMESPACES[0])
    assert set(info.node_ids[:2].tolist()) == set(plan.node_ids[:2].tolist())
    index = prefix.set_entries(index, info.node_ids, jnp.arange(4, dtype=jnp.int32))
    after, pinned = jit_pin(index, plan, jnp.int32(0))
    assert (bool(pinned.ok), int(pinned.reason)) == (False, Reason.STALE_PLAN)
    jax.tree.map(np.testing.assert_array_equal, index, after)


def test_a_plan_whose_snapshot_went_is_stale():
    index, node_ids = known()
    index = with_snapshots(index, node_ids, [3])
    plan = full_match(index)
    for gone in (NO_SNAP, 7):
        changed = prefix.set_snapshots(index, node_ids[2], jnp.int32(gone))
        assert jit_pin(changed, plan, jnp.int32(0))[1].reason == Reason.STALE_PLAN
    assert jit_pin(index, plan, jnp.int32(0))[1].ok


def test_a_plan_of_an_unknown_namespace_pins_nothing():
    index, _ = known()
    plan = jit_match(index, prompt(SYMBOLS), jnp.int32(40), NAMESPACES[1])
    after, info = jit_pin(index, plan, jnp.int32(0))
    assert info.ok
    assert not np.any(after.pins)
    assert prefix.unpin(after, jnp.int32(0))[1].reason == Reason.NOT_HELD


def test_an_id_that_is_negative_or_past_the_end_touches_nothing():
    index, _ = known()
    ids = jnp.array([-1, -12, 12, NO_NODE], jnp.int32)
    zeros = jnp.zeros_like(ids)
    for verb in (prefix.set_entries, prefix.set_host_ids, prefix.set_snapshots):
        jax.tree.map(np.testing.assert_array_equal, index, verb(index, ids, zeros))
    np.testing.assert_array_equal(prefix.touch(index, ids).last_use, index.last_use)
    assert prefix.unpin(index, jnp.int32(-1))[1].reason == Reason.BAD_ID


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("children", "children"),
        ("pins", "pins"),
        ("depth", "parents"),
        ("last_use", "recency"),
        ("key", "buckets"),
        ("parent", "parents"),
        ("leases", "leases"),
        ("snap_id", "free"),
    ],
)
def test_check_sees_a_broken_field(field, name):
    index, _ = known()
    assert all(jit_check(index))
    broken = index._replace(**{field: getattr(index, field).at[0].add(-3)})
    assert not getattr(jit_check(broken), name)


def test_check_sees_a_page_below_a_lost_one_and_an_id_at_two_nodes():
    index, node_ids = known()
    assert not jit_check(prefix.set_entries(index, node_ids[1], jnp.int32(-1))).paths
    assert not jit_check(prefix.set_entries(index, node_ids[1], jnp.int32(10))).unique


def test_a_full_index_refuses_and_can_extend_says_how_far():
    index, _ = known()
    index, _ = jit_extend(index, prompt([1, 1, 1, 1]), jnp.int32(4), NAMESPACES[0])
    tokens = prompt([2, 2, 2, 2])
    assert tuple(map(int, jit_can_extend(index, tokens, jnp.int32(4), NAMESPACES[0]))) == (0, 3)
    after, info = jit_extend(index, tokens, jnp.int32(4), NAMESPACES[0])
    assert (int(info.reason), int(info.shortfall)) == (Reason.NODES_FULL, 1)
    jax.tree.map(np.testing.assert_array_equal, index, after)


@pytest.mark.parametrize(
    ("knob", "value"),
    [("num_nodes", 0), ("page_size", 8), ("page_size", 24), ("max_pages", 0), ("num_leases", 0)],
)
def test_sizes_out_of_range_are_refused(knob, value):
    sizes = dict(num_nodes=4, page_size=16, max_pages=2, num_leases=1)
    with pytest.raises(ValueError, match=f"{knob}={value}"):
        prefix.init_index(**sizes | {knob: value})


def test_a_prompt_that_is_not_padded_is_refused():
    with pytest.raises(ValueError, match="max_pages=4"):
        jit_match(empty_index(), prompt(SYMBOLS)[:-1], jnp.int32(3), NAMESPACES[0])
