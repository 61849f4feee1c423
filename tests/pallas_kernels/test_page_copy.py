"""Copies of whole items: kernel and reference against plain NumPy, byte for byte."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.page_copy import arg_specs, pallas, reference
from pallas_kernels.page_copy.api import copy_items, copy_within, load_records, store_records
from pallas_kernels.page_copy.pairs import existing
from tests.pallas_kernels.kernel_inputs import (
    SENTINEL,
    as_bytes,
    assert_same_bytes,
    in_host,
    is_in_host,
    lowered_for_h200,
    random_array,
    that_exist,
    unchecked,
)

# Leaves of an item: whole chunks; chunks and a tail; less than a chunk, and no power of two of
# words; one word. Without their axis of items.
LEAVES = (
    ((3, 2, 8, 4), "bfloat16"),
    ((3, 2, 7, 2), "float32"),
    ((3, 5, 12), "uint8"),
    ((3, 2, 2), "float16"),
)
ITEMS, SLOTS = 6, 9
TUNING = pallas.Tuning(programs=5, chunk=16, num_warps=4)  # no divisor of the chunks there are

# Sentinels of every kind on either side, and eight pairs that exist, for five programs.
ITEM_IDS = (3, -1, 0, SENTINEL, 5, ITEMS, 1, 3, 2, -(2**31), 4, 0, 3, 1)
SLOT_IDS = (4, 1, 0, 5, SLOTS, 2, SENTINEL, 8, 1, 3, 6, 7, 2, 3)


class Side(NamedTuple):
    """One pool in several shapes: `axis` counts the items of every leaf."""

    axis: int

    def leaves(self, seed: int, number: int = ITEMS) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(seed)
        return tuple(
            random_array(rng, (*shape[: self.axis], number, *shape[self.axis :]), dtype)
            for shape, dtype in LEAVES
        )

    def items(self, leaves) -> list[np.ndarray]:
        """Views with the items first."""
        return [np.moveaxis(np.asarray(x), self.axis, 0) for x in leaves]

    def records(self, leaves) -> np.ndarray:
        """One row of bytes per item."""
        items = [as_bytes(x) for x in self.items(leaves)]
        return np.concatenate([x.reshape(x.shape[0], -1) for x in items], axis=1)


POOL, LIVE = Side(0), Side(1)
RECORD = POOL.records(POOL.leaves(0)).shape[1]


def poisoned(number: int) -> np.ndarray:
    return np.full((number + 1, RECORD), 0xFF, np.uint8)


def ids(values) -> jax.Array:
    return jnp.array(values, jnp.int32)


def on_device(leaves) -> tuple[jax.Array, ...]:
    return tuple(map(jnp.asarray, leaves))


def both(name: str, **static):
    """(the kernel, interpreted, and the reference) of `name`, compiled once for all tests."""
    kernel = functools.partial(getattr(pallas, name), tuning=TUNING, interpret=True, **static)
    plain = functools.partial(getattr(reference, name), **static)
    return jax.jit(kernel), jax.jit(plain)


STORE = {side: both("store_records", axis=side.axis) for side in (POOL, LIVE)}
LOAD = {side: both("load_records", axis=side.axis) for side in (POOL, LIVE)}
NONE = (SENTINEL,) * len(ITEM_IDS)


@pytest.mark.parametrize("side", [POOL, LIVE], ids=["pool", "live"])
@pytest.mark.parametrize("host", [False, True], ids=["device", "host"])
def test_records_are_the_bytes_of_items_and_nothing_else_is_written(side, host):
    leaves = side.leaves(1)
    put = in_host if host else jnp.asarray
    for item_ids in (ITEM_IDS, NONE):
        pairs = existing(ids(item_ids), ITEMS, ids(SLOT_IDS), SLOTS)
        want = poisoned(SLOTS)
        for item, slot in that_exist(item_ids, ITEMS, SLOT_IDS, SLOTS):
            want[slot] = side.records(leaves)[item]
        assert (want[-1] == 0xFF).all()
        for store in STORE[side]:
            bank = store(leaves, put(poisoned(SLOTS)), pairs)
            assert_same_bytes(bank, want)
            assert is_in_host(bank) == host


@pytest.mark.parametrize("side", [POOL, LIVE], ids=["pool", "live"])
@pytest.mark.parametrize("host", [False, True], ids=["device", "host"])
def test_items_are_those_of_their_records_and_nothing_else_is_written(side, host):
    bank = side.records(side.leaves(2, SLOTS + 1))
    put = in_host if host else jnp.asarray
    slot_ids = (*SLOT_IDS[:5], *NONE[:5], 7, SLOTS, 1, 2)
    item_ids = (4, 0, 1, 2, 3, *ITEM_IDS[:5], -1, 5, 3, SENTINEL)
    for sources in (slot_ids, NONE):
        pairs = existing(ids(sources), SLOTS, ids(item_ids), ITEMS)
        old = side.leaves(3)
        records = side.records(old)
        for slot, item in that_exist(sources, SLOTS, item_ids, ITEMS):
            records[item] = bank[slot]
        for load in LOAD[side]:
            new = load(old, put(bank), pairs)
            np.testing.assert_array_equal(side.records(new), records)
            assert [(x.dtype, x.shape) for x in new] == [(x.dtype, x.shape) for x in old]


@pytest.mark.parametrize(("old", "new"), [(LIVE, POOL), (POOL, LIVE), (Side(2), LIVE)])
def test_items_move_between_pools_of_two_shapes(old, new):
    sources, targets = old.leaves(4), new.leaves(5, SLOTS)
    copies = both("copy_items", source_axis=old.axis, target_axis=new.axis)
    for source_ids in (ITEM_IDS, NONE):
        pairs = existing(ids(source_ids), ITEMS, ids(SLOT_IDS), SLOTS)
        want = new.records(targets)
        for source, target in that_exist(source_ids, ITEMS, SLOT_IDS, SLOTS):
            want[target] = old.records(sources)[source]
        for copy in copies:
            np.testing.assert_array_equal(new.records(copy(sources, targets, pairs)), want)


def test_items_move_within_a_pool():
    leaves = POOL.leaves(6, SLOTS)
    target_ids = tuple(x if x in (6, 7, 8, SLOTS, SENTINEL) else -1 for x in SLOT_IDS)
    pairs = existing(ids(ITEM_IDS), SLOTS, ids(target_ids), SLOTS)
    want = POOL.records(leaves)
    for source, target in that_exist(ITEM_IDS, SLOTS, target_ids, SLOTS):
        want[target] = POOL.records(leaves)[source]
    for copy in both("copy_within"):
        np.testing.assert_array_equal(POOL.records(copy(leaves, pairs)), want)


@jax.jit
def every_op(leaves, bank, item_ids, slot_ids):
    stored = store_records(leaves, bank, item_ids, slot_ids)
    loaded = load_records(leaves, bank, item_ids, slot_ids)
    copied = copy_items(leaves, leaves, item_ids, slot_ids, source_axis=0, target_axis=0)
    return stored, loaded, copied, copy_within(leaves, item_ids, slot_ids)


def test_off_a_gpu_the_reference_serves():
    leaves, bank = POOL.leaves(7), POOL.records(POOL.leaves(8, 4))
    stored, *pools = every_op(leaves, bank, ids([4, -1, 1]), ids([0, 1, SENTINEL]))
    records = POOL.records(leaves)
    want = bank.copy()
    want[0] = records[4]
    assert_same_bytes(stored, want)
    for pool, (target, record) in zip(
        pools, [(4, bank[0]), (0, records[4]), (0, records[4])], strict=True
    ):
        want = records.copy()
        want[target] = record
        np.testing.assert_array_equal(POOL.records(pool), want)


def test_no_ids_change_nothing():
    leaves, bank = POOL.leaves(7), POOL.records(POOL.leaves(8, 4))
    stored, *pools = every_op(leaves, bank, ids([]), ids([]))
    assert_same_bytes(stored, bank)
    for pool in pools:
        assert_same_bytes(pool, leaves)


LOWERED = ("qwen3-next-80b int8_g64 to host", "16 snapshots of qwen3.5-27b save")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", LOWERED)
def test_kernels_lower_for_a_gpu(name):
    (case,) = [case for case in arg_specs.CASES if case.name == name]
    assert "triton" in lowered_for_h200(case)


@pytest.mark.parametrize("name", ["store_records", "load_records", "copy_items", "copy_within"])
def test_the_kernel_says_why_it_cannot_serve(name):
    leaves, bank, none = on_device(POOL.leaves(0)), jnp.asarray(poisoned(2)), ids([0])
    args = {
        "store_records": (leaves, bank, none, none),
        "load_records": (leaves, bank, none, none),
        "copy_items": (leaves, leaves, none, none),
        "copy_within": (leaves, none, none),
    }[name]
    op = globals()[name]
    with pytest.raises(NotImplementedError, match=f"kernel of {name} runs on GPUs, not on a cpu"):
        op(*args, implementation="pallas")
    with unchecked(), pytest.raises(ValueError, match="'fastest' .*'pallas', 'reference'"):
        op(*args, implementation="fastest")


def test_only_whole_words_are_moved_by_the_kernel():
    odd, bank = (jnp.zeros((4, 3), jnp.uint8),), jnp.zeros((3, 3), jnp.uint8)
    pairs = existing(ids([1]), 4, ids([0]), 2)
    with pytest.raises(NotImplementedError, match="3 bytes"):
        pallas.store_records(odd, bank, pairs, axis=0, interpret=True)
    assert_same_bytes(store_records(odd, bank, ids([1]), ids([0])), bank)


def test_items_of_another_size_are_an_error():
    leaves = on_device(POOL.leaves(0))
    with pytest.raises(ValueError, match=f"items of {RECORD} bytes .* records of {RECORD + 4}"):
        store_records(leaves, jnp.zeros((3, RECORD + 4), jnp.uint8), ids([0]), ids([0]))
    with pytest.raises(ValueError, match=f"items of {RECORD} bytes .* records of {RECORD + 4}"):
        load_records(leaves, jnp.zeros((3, RECORD + 4), jnp.uint8), ids([0]), ids([0]))
    with pytest.raises(ValueError, match=r"\(3, 2, 8, 4\), 'bfloat16'.*do not fit into"):
        copy_items(leaves, leaves[:2], ids([0]), ids([0]))
