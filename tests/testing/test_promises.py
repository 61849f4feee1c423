"""What holds over long runs: progress, everything given back, memory that does not grow, and rows
whose order does not matter. Progress and memory run in the program that traces run in."""

import functools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiercache as tc
from tests.pallas_kernels.codecs import oracle
from tests.tiercache import builders
from tests.tiercache.builders import ids
from tiercache.testing import Lockstep
from tiercache.testing.calls import WIDTH, Call, encode
from tiercache.testing.lockstep import BATCH, compiled
from tiercache.testing.specs import WINDOW

PAGE = WINDOW.page_size


class Scheduler:
    """Admits requests for 6 of 10 pages each into 3 rows, aborts some of them at any phase."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.both = Lockstep(WINDOW, codecs=oracle)
        self.key = self.refused = 0

    def phases(self, row_id: int, symbols: list[int], length: int):
        """Does a request phase by phase; each yields whether it was granted."""
        push = self.both.push
        plan = push("match", 0, symbols, length, 0)
        yield push("pin", 0, row_id).ok
        push("make_room", -(-length // PAGE) - plan.num_hot, 2)
        yield not push("rehydrate_hot", 0, row_id).reason
        yield not push("load_snapshot", 0, row_id).reason
        position = plan.num_pages * PAGE
        while position < length:
            count = min(WIDTH, PAGE - position % PAGE, length - position)
            counts = [count * (row == row_id) for row in range(WINDOW.max_rows)]
            granted = push("reserve", counts).granted[row_id]
            yield granted
            self.key += 1
            push("append", counts, self.key, -1)
            yield not push("advance", counts).reason[row_id]
            position += count
            if position % PAGE == 0:
                push("save_snapshot", [row_id, tc.NO_ROW], [position, 0], [0, 0])
        push("insert", row_id, symbols, 0)

    def admit(self, row_id: int) -> bool:
        """Whether a random request was served up to its answer; if not, it gave all back."""
        symbols = (self.rng.random(WINDOW.max_pages) < 0.4).astype(int).tolist()
        length = int(self.rng.integers(1, WINDOW.max_tokens + 1))
        stop = int(self.rng.integers(12)) if self.rng.random() < 0.3 else 99
        for number, granted in enumerate(self.phases(row_id, symbols, length)):
            if not granted or number == stop:
                self.refused += not granted
                self.both.push("release", row_id)
                return bool(granted)
        return True


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_some_request_always_gets_through_and_an_aborted_one_gives_all_back(seed):
    scheduler = Scheduler(seed)
    both, rng = scheduler.both, scheduler.rng
    rows = both.reference.rows
    for _ in range(120):
        idle = [i for i, row in enumerate(rows) if row.is_empty]
        running = [i for i, row in enumerate(rows) if not row.is_empty]
        if not idle or (running and rng.random() < 0.3):
            both.push("release", int(rng.choice(running)))
            continue
        granted = scheduler.admit(idle[0])
        assert granted or running, "a request was refused though no other ran"
        if not granted:
            both.push("release", running[0])
    for row_id in range(WINDOW.max_rows):
        both.push("release", row_id)
    both.flush()
    assert scheduler.refused > 0, "the pool was never too small"
    reference = both.reference
    assert not reference.index.leases
    nodes = reference.index.pages()
    assert sorted(reference.pages) == sorted(node.entry for node in nodes if node.entry >= 0)
    assert len(reference.slots) == sum(node.entry < tc.HOLE for node in nodes)


def resident_bytes() -> int:
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_ten_thousand_cycles_do_not_grow():
    """Two conversations in turn, brought back from host memory, published and evicted; and one
    cycle in five a prompt that is new."""
    cycle = [
        Call("match", (0, [0] * 6, 49, 0)),
        Call("pin", (0, 0)),
        Call("rehydrate_hot", (0, 0)),
        Call("load_snapshot", (0, 0)),
        Call("reserve", ([17, 0, 0],)),
        Call("append", ([17, 0, 0], 1, -1)),
        Call("advance", ([17, 0, 0],)),
        Call("save_snapshot", ([0, tc.NO_ROW], [16, 0], [0, 0])),
        Call("insert", (0, [0] * 6, 0)),
        Call("release", (0,)),
        Call("evict_host", (4,)),
        Call("evict_snapshots_host", (2,)),
    ]
    per_batch = BATCH // len(cycle)

    def batch(turn: int):
        words = np.zeros((BATCH, len(encode(cycle[0], WINDOW))), np.int32)
        for number in range(per_batch):
            symbol = 2 + turn if number == per_batch - 1 else number % 2
            for place, call in enumerate(cycle):
                args = [[symbol] * 6 if arg == [0] * 6 else arg for arg in call.args]
                words[number * len(cycle) + place] = encode(Call(call.name, tuple(args)), WINDOW)
        return words

    held, run = Lockstep(WINDOW)._held, compiled(WINDOW)
    count, half = np.int32(per_batch * len(cycle)), 5_000 // per_batch
    sizes = []
    for turn in range(2 * half):
        held, seen = run(held, batch(turn), count)
        if turn in (half // 5, half, 2 * half - 1):
            assert np.all(seen.ok[:count])
            sizes.append(resident_bytes())
    assert 2 * half * per_batch >= 10_000 - per_batch
    counts = tc.counter_values(held.state)
    assert counts["pages_from_host"] > 5_000 and counts["pages_to_host"] > 1_500
    assert sizes[2] - sizes[1] < 2**21, sizes  # two dispatches' worth of what is seen is 1 MiB


@functools.partial(jax.jit, static_argnames="spec")
def step(state, row_ids, counts, q, k, v, *, spec):
    state, _ = tc.reserve(state, counts[jnp.argsort(row_ids)], max_tokens=4, spec=spec)
    view, outs = tc.view(state, row_ids, counts, num_tokens=4, spec=spec), []
    for layer in range(spec.num_layers):
        state, _ = tc.append(state, view, layer, k[:, :, layer], v[:, :, layer], spec=spec)
        outs.append(tc.attend(state, view, layer, q[:, :, layer], spec=spec))
    return state, jnp.stack(outs, 2)


def test_the_order_of_rows_changes_no_bit():
    spec = builders.spec_of()
    state, rng = tc.init_state(spec), np.random.default_rng(0)
    for row_id, count in enumerate((37, 5, 16)):
        state = builders.grow(state, spec, row_id, count, seed=row_id)
    q = rng.standard_normal((3, 4, spec.num_layers, 6 * spec.num_kv_heads, 64), np.float32)
    k, v = rng.standard_normal((2, 3, 4, spec.num_layers, spec.num_kv_heads, 64), np.float32)
    counts = np.array([4, 2, 3], np.int32)
    base, want = step(state, ids(0, 1, 2), jnp.asarray(counts), q, k, v, spec=spec)
    for order in ([1, 2, 0], [2, 1, 0]):
        after, have = step(
            state, ids(*order), jnp.asarray(counts[order]), q[order], k[order], v[order], spec=spec
        )
        builders.same(base, after)
        for n, row_id in enumerate(order):
            used = counts[row_id]
            np.testing.assert_array_equal(have[n, :used], want[row_id, :used])
