"""The spec: what it refuses, and that its byte arithmetic is that of the arrays."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import tiercache as tc
from tests.tiercache.builders import LEAVES, spec_of

MIXED = spec_of(
    num_layers=3,
    head_dim=128,
    hot_formats="all:bf16; 0:fp8_e4m3; 2.v:int8_g64",
    cold_formats="all:nvfp4_g16; 0:int4_g16; 2.v:e2m1_g64",
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_layers": 0}, ["num_layers=0"]),
        ({"num_kv_heads": 0}, ["num_kv_heads=0", "1"]),
        ({"num_pages": 0}, ["num_pages=0", "1"]),
        ({"num_pages": 2**30}, ["num_pages=1073741824", "2**30"]),
        ({"max_rows": 0}, ["max_rows=0", "1"]),
        ({"max_pages": 0}, ["max_pages=0", "1"]),
        ({"num_nodes": 1}, ["num_nodes=1", "2"]),
        ({"num_leases": 2}, ["num_leases=2", "3"]),
        ({"num_cold_slots": -1}, ["num_cold_slots=-1", "0"]),
        ({"num_host_pages": -1}, ["num_host_pages=-1", "0"]),
        ({"num_snapshots": -1}, ["num_snapshots=-1", "0"]),
        ({"num_host_snapshots": -1}, ["num_host_snapshots=-1", "0"]),
        ({"index_pages": -2}, ["index_pages=-2", "0"]),
        ({"index_pages": 14}, ["index_pages=14", "num_pages=13"]),
        ({"page_size": 8}, ["page_size=8", "16"]),
        ({"page_size": 48}, ["page_size=48", "power of two"]),
        ({"head_dim": 96}, ["head_dim=96", "64, 128 or 256"]),
        ({"policy": "none"}, ["policy='none'", "num_cold_slots=7"]),
        ({"num_cold_slots": 0}, ["policy='host'", "num_cold_slots=0"]),
        (
            {"policy": "none", "num_cold_slots": 0},
            ["keep_tokens=16", "policy='none'"],
        ),
        ({"keep_tokens": 15}, ["keep_tokens=15", "page_size=16"]),
        ({"snapshot_leaves": ()}, ["num_snapshots=4", "num_host_snapshots=3", "snapshot_leaves"]),
        ({"snapshot_leaves": (LEAVES[0], LEAVES[0])}, ["snapshot_leaves", "'conv', 'conv'"]),
        ({"hot_formats": (("bf16", "bf16"),)}, ["hot_formats", "1", "num_layers=2"]),
        ({"cold_formats": (("bf16", "bf16"),)}, ["cold_formats", "1", "num_layers=2"]),
        ({"hot_formats": "all:int7"}, ["character 4", "int7"]),
        ({"hot_formats": "0:bf16"}, ["1"]),
        (
            {"cold_formats": "all:int8_g64"},
            ["cold_formats 'int8_g64'", "hot_formats 'int8_g64'", "layer 0 K", "2112", "force"],
        ),
        (
            {"hot_formats": "all:int8_g64; 1.v:nvfp4_g16"},
            ["'e2m1_g64'", "'nvfp4_g16'", "layer 1 V", "same bytes", "force_codecs"],
        ),
        (
            {"hot_formats": "all:int8_g64", "cold_formats": "all:e2m1_g64; 1.k:nvfp4_g16"},
            ["'nvfp4_g16'", "'int8_g64'", "layer 1 K", "same bytes", "force_codecs"],
        ),
    ],
)  # fmt: skip
def test_a_contradiction_names_the_knob_and_the_numbers(changes, words):
    with pytest.raises(ValueError) as error:
        spec_of(**changes)
    for word in words:
        assert word in str(error.value)


def test_forced_codecs_need_neither_shrink_nor_be_stable():
    for cold in ("all:int8_g64", "all:bf16", "all:nvfp4_g16"):
        spec = spec_of(cold_formats=cold, force_codecs=True)
        assert tc.bytes_per_page(spec, "cold") == spec.cold_layout.record_bytes


def test_without_cold_slots_cold_formats_do_not_matter():
    spec_of(policy="none", num_cold_slots=0, keep_tokens=None, cold_formats="all:bf16")


@pytest.mark.parametrize("spec", [spec_of(), spec_of(policy="window"), MIXED])
def test_bytes_are_those_of_the_arrays(spec):
    state = jax.eval_shape(lambda: tc.init_state(spec))

    def num_bytes(tree):
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))

    assert tc.tier_bytes(spec) == {
        "device_pages": num_bytes(state.pages.payload),
        "cold_slots": num_bytes(state.cold.bank),
        "host_pages": num_bytes(state.host.pages),
        "device_snapshots": num_bytes(state.snapshots.leaves),
        "host_snapshots": num_bytes(state.host.snapshots),
        "live_rows": num_bytes(state.live),
    }
    assert tc.bytes_per_page(spec, "device") == num_bytes(state.pages.payload) // spec.num_pages
    assert tc.bytes_per_page(spec, "host") == state.host.pages.shape[1]
    assert tc.bytes_per_page(spec, "cold") == state.cold.bank.shape[1]
    assert tc.bytes_per_snapshot(spec) == num_bytes(state.live) // spec.max_rows


def test_bytes_per_page_by_hand():
    # Two layers, K and V, two heads, 16 tokens: 64 int8 codes and a float16 scale a token.
    assert tc.bytes_per_page(spec_of(), "device") == 2 * 2 * 2 * 16 * (64 + 2)
    assert tc.bytes_per_page(spec_of(), "cold") == 2 * 2 * 2 * 16 * (32 + 1)
    assert tc.bytes_per_snapshot(spec_of()) == 2 * 3 * 5 * 2 + 2 * 2 * 3 * 4 * 4


@pytest.mark.parametrize("extra", [0, 1, -1])
def test_a_budget_is_a_most(extra):
    page, cold = tc.bytes_per_page(MIXED, "device"), tc.bytes_per_page(MIXED, "cold")
    snapshot = tc.bytes_per_snapshot(MIXED)
    spec = tc.with_budgets(
        MIXED,
        device_bytes=9 * page + extra,
        cold_bytes=9 * cold + extra,
        host_bytes=9 * page + extra,
        device_snapshot_bytes=9 * snapshot + extra,
        host_snapshot_bytes=9 * snapshot + extra,
    )
    less = extra < 0
    assert (spec.num_pages, spec.num_snapshots) == (9 - less,) * 2
    assert (spec.num_cold_slots, spec.num_host_pages, spec.num_host_snapshots) == (8 - less,) * 3
    assert spec.index_pages == spec.num_pages
    assert spec.num_nodes == spec.num_pages + spec.num_cold_slots + spec.num_host_pages + 8 + 3
    sizes = tc.tier_bytes(spec)
    assert sizes["device_pages"] <= 9 * page + extra
    assert sizes["cold_slots"] <= 9 * cold + extra
    assert sizes["host_pages"] <= 9 * page + extra
    assert sizes["device_snapshots"] <= 9 * snapshot + extra
    assert sizes["host_snapshots"] <= 9 * snapshot + extra


def test_budgets_leave_what_they_do_not_name():
    assert tc.with_budgets(spec_of()) == spec_of()
    spec = tc.with_budgets(spec_of(), host_bytes=10**6)
    for field in ("num_pages", "num_cold_slots", "num_snapshots", "num_host_snapshots"):
        assert getattr(spec, field) == getattr(spec_of(), field)


@pytest.mark.parametrize(
    ("knob", "record", "spare"),
    [
        ("device_bytes", 8448, False),
        ("cold_bytes", 4224, True),
        ("host_bytes", 8448, True),
        ("device_snapshot_bytes", 252, False),
        ("host_snapshot_bytes", 252, True),
    ],
)
def test_a_budget_too_small_for_one_record_is_refused(knob, record, spare):
    for budget in (0, record - 1, *([2 * record - 1] if spare else [])):
        with pytest.raises(ValueError, match=rf"{knob}={budget} .* {record} bytes"):
            tc.with_budgets(spec_of(), **{knob: budget})
    tc.with_budgets(spec_of(), **{knob: (1 + spare) * record})


def test_a_budget_for_snapshots_that_do_not_exist_is_refused():
    spec = spec_of(snapshot_leaves=(), num_snapshots=0, num_host_snapshots=0)
    with pytest.raises(ValueError, match="device_snapshot_bytes=100.*snapshot_leaves"):
        tc.with_budgets(spec, device_snapshot_bytes=100)


def test_formats_read_as_text_or_as_names():
    assert MIXED.hot_formats == (
        ("fp8_e4m3", "fp8_e4m3"), ("bf16", "bf16"), ("bf16", "int8_g64")
    )  # fmt: skip
    assert dataclasses.replace(MIXED, hot_formats=MIXED.hot_formats) == MIXED


def test_a_spec_is_frozen_hashable_and_told_apart():
    assert spec_of() == spec_of() and hash(spec_of()) == hash(spec_of())
    assert spec_of() != spec_of(num_pages=14)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec_of().num_pages = 3
    assert tc.Cache(spec_of()) == tc.Cache(spec_of())


def test_capacities_that_are_not_named_follow_from_the_others():
    spec = spec_of()
    assert spec.index_pages == 13
    assert spec.num_nodes == 13 + 7 + 6 + 8 + 3
    assert spec.num_leases == 6
    assert spec.max_tokens == 80
    assert spec.needs_snapshot
    assert not spec_of(snapshot_leaves=(), num_snapshots=0, num_host_snapshots=0).needs_snapshot


def test_a_fresh_state_is_sound_and_all_on_the_device_but_the_banks():
    spec = spec_of()
    state = tc.init_state(spec)
    assert tc.failures(state, spec) == []
    in_host = [
        jax.tree_util.keystr(path)
        for path, x in jax.tree_util.tree_flatten_with_path(state)[0]
        if x.sharding.memory_kind == "pinned_host"
    ]
    assert in_host == [".cold.bank", ".host.pages", ".host.snapshots"]
    assert all(x.committed for x in jax.tree.leaves(state))
    for changes, expected in (
        ({"policy": "window"}, [".host.pages", ".host.snapshots"]), ({"host_memory": "device"}, [])
    ):  # fmt: skip
        state = tc.init_state(spec_of(**changes))
        assert [
            jax.tree_util.keystr(path)
            for path, x in jax.tree_util.tree_flatten_with_path(state)[0]
            if x.sharding.memory_kind == "pinned_host"
        ] == expected
    assert np.all(np.asarray(state.table.entries) == tc.HOLE)


def test_cache_has_every_verb_bound_to_its_spec():
    cache = tc.Cache(spec_of())
    state = jax.eval_shape(cache.init)
    wanted = jax.eval_shape(lambda: tc.init_state(spec_of()))
    assert jax.tree.map(lambda x: x.shape, state) == jax.tree.map(lambda x: x.shape, wanted)
    for name in (
        "reserve", "view", "append", "attend", "advance", "match", "rehydrate", "load_snapshot",
        "save_snapshot", "insert", "mirror", "evict", "evict_snapshots", "make_room", "requantize",
        "retire", "fork", "truncate", "release", "check", "is_writable",
        "num_unreachable_pages",
    ):  # fmt: skip
        assert getattr(cache, name).keywords == {"spec": spec_of()}
    assert (cache.pin, cache.unpin) == (tc.pin, tc.unpin)
    with pytest.raises(AttributeError, match="defrost"):
        _ = cache.defrost
