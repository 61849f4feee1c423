"""Rows that share pages: who may end when, what retire gives back, and aborts at every phase."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiercache as tc
from pallas_kernels.page_layout import K, V
from tests.tiercache.lockstep import NAMESPACES, PAGE, WINDOW, Lockstep, prompt

SPACE = NAMESPACES[0]


@functools.cache
def attend_jit():
    def attend(state, q, counts):
        view = tc.view(state, jnp.arange(3), counts, num_tokens=1, spec=WINDOW)
        # The last token counts as the new one: it is written, and sees all before and itself.
        view = view._replace(lengths=jnp.maximum(view.lengths - 1, 0))
        outs = [tc.attend(state, view, layer, q, spec=WINDOW) for layer in range(2)]
        return jnp.stack(outs)[:, :, 0]

    return jax.jit(attend)


def attention(both, row_id):
    """One query per layer over all tokens of a row: [layer, q_head, dim]."""
    rng = np.random.default_rng(5)
    q = jnp.asarray(rng.standard_normal((3, 1, 4, 64), np.float32))
    counts = jnp.asarray([int(row == row_id) for row in range(3)], jnp.int32)
    return np.asarray(attend_jit()(both.state, q, counts))[:, row_id], np.asarray(q)[row_id, 0]


def attention_by_hand(both, row_id, q):
    """The same in float64, from what the reference says that the row holds."""
    reference = both.reference
    row, outs = reference.rows[row_id], []
    held = [entry for entry in row.entries if entry != tc.HOLE]
    pages = [reference.pages[e] if e >= 0 else reference.slots[-2 - e] for e in held]
    values = [page.values(reference.codecs) for page in pages]
    for layer in range(2):
        k, v = (np.concatenate([x[layer, kv] for x in values], 1)[:, : row.length] for kv in (K, V))
        k, v = np.repeat(k, 2, 0).astype(np.float64), np.repeat(v, 2, 0).astype(np.float64)
        scores = np.einsum("hd,htd->ht", q.astype(np.float64), k) / 8
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        outs.append(np.einsum("ht,htd->hd", weights / weights.sum(-1, keepdims=True), v))
    return np.stack(outs)


def entries(both, row_id):
    return both.reference.rows[row_id].entries


def shared_cold_prefix():
    """Rows 1 and 2 share two pages that only cold slots hold, and each has a page of its own."""
    both = Lockstep(WINDOW)
    both.prefill(0, 2 * PAGE)
    both.publish(0, prompt([1, 2]), SPACE, [2])
    both.release(0)
    assert both.evict_cold(2).packed == 2
    for row_id in (1, 2):
        assert both.admit(row_id, prompt([1, 2, row_id]), 40, SPACE) == 2 * PAGE
        assert both.prefill(row_id, 5 + row_id)
    assert entries(both, 1)[:2] == entries(both, 2)[:2] == [-3, -2]  # the leaf was packed first
    return both


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_either_of_two_rows_that_share_cold_slots_may_end_first(first, second):
    both = shared_cold_prefix()
    before, q = attention(both, second)
    np.testing.assert_allclose(before, attention_by_hand(both, second, q), rtol=2e-2, atol=2e-2)
    assert both.release(first).slots == 0
    after, _ = attention(both, second)
    np.testing.assert_array_equal(before, after)
    both.evict_slots(2)  # pinned by the row that runs
    np.testing.assert_array_equal(before, attention(both, second)[0])
    assert both.extend([0, 3 * (second == 1), 3 * (second == 2)])
    longer, q = attention(both, second)
    np.testing.assert_allclose(longer, attention_by_hand(both, second, q), rtol=2e-2, atol=2e-2)
    assert both.release(second).slots == 0
    assert both.evict_slots(2).freed == 2
    assert not both.reference.slots and not both.reference.pages


def test_slots_live_on_in_a_row_when_the_index_lets_go():
    """The slots of a row that was never published are shared with its fork alone."""
    both = Lockstep(WINDOW)
    both.prefill(0, 3 * PAGE)
    assert [p for p in both.retire().page_ids if p != tc.NO_PAGE]
    both.fork(0, 1)
    before, _ = attention(both, 1)
    assert both.release(0).slots == 0
    np.testing.assert_array_equal(before, attention(both, 1)[0])
    assert both.release(1).slots == 2


def test_retired_pages_are_anyones_at_once():
    both = Lockstep(WINDOW)
    both.prefill(0, 3 * PAGE)
    both.prefill(1, 4 * PAGE)
    free = len(both.reference.free_pages())
    info = both.retire()
    retired = [page for page in info.page_ids if page != tc.NO_PAGE]
    assert len(retired) == 2
    assert len(both.reference.free_pages()) == free + len(retired)
    assert both.prefill(2, (free + 2) * PAGE)
    assert set(retired) <= set(entries(both, 2))
    assert not both.reference.free_pages()
    assert both.reserve([0, 1, 0]).reason[1] == tc.Reason.PAGES_FULL


def test_a_page_inside_another_rows_keep_window_is_not_retired():
    both = Lockstep(WINDOW)
    both.prefill(0, PAGE + 4)
    both.fork(0, 1)
    shared = entries(both, 0)[0]
    assert both.prefill(0, 2 * PAGE)  # the shared page is old in row 0, and within the last 20 of 1
    info = both.retire()
    assert shared not in info.page_ids and entries(both, 0)[0] == shared
    assert both.prefill(1, PAGE)
    while info.left or any(page != tc.NO_PAGE for page in info.page_ids):
        info = both.retire()
    assert entries(both, 0)[0] == entries(both, 1)[0] <= -2


def test_a_row_that_shares_published_pages_keeps_them_when_the_first_row_ends():
    """The fork was made before anyone knew the pages; it reads them after their row has gone."""
    both = Lockstep(WINDOW)
    both.prefill(0, 2 * PAGE + 3)
    both.fork(0, 1)
    both.publish(0, prompt([1, 2]), SPACE, [2])
    both.release(0)
    before, _ = attention(both, 1)
    assert both.evict_drop(3).freed == 0
    assert both.truncate(1, 2 * PAGE - 1).reason == tc.Reason.BELOW_COMMITTED
    assert both.extend([0, 2, 0])
    assert both.truncate(1, 2 * PAGE + 3).reason == tc.Reason.OK
    np.testing.assert_array_equal(before, attention(both, 1)[0])
    both.release(1)
    assert both.evict_drop(3).freed == 2


def test_a_page_reserved_ahead_is_not_shared_with_a_fork():
    both = Lockstep(WINDOW)
    both.prefill(0, PAGE)
    both.reserve([PAGE, 0, 0])
    both.fork(0, 1)
    assert both.extend([4, 4, 0])
    assert both.reference.rows[0].length == both.reference.rows[1].length == PAGE + 4


PHASES = "pin rehydrate load reserve append advance save insert mirror".split()


@pytest.mark.parametrize("stop", range(len(PHASES) + 1))
def test_an_abort_at_any_phase_gives_everything_back(stop):
    both = Lockstep(WINDOW)
    both.prefill(0, 3 * PAGE)
    both.publish(0, prompt([1, 2, 3]), SPACE, [1, 3])
    both.mirror(0)
    both.release(0)
    both.evict_host(1)  # the last page waits in host memory alone
    free = len(both.reference.free_pages())
    tokens = prompt([1, 2, 3, 4, 5])
    plan = both.match(tokens, 5 * PAGE, SPACE)
    assert plan.num_pages == 3
    calls = dict(
        pin=lambda: both.pin(plan, 1),
        rehydrate=lambda: both.rehydrate(plan, 1),
        load=lambda: both.load_snapshot(plan, 1),
        reserve=lambda: both.reserve([0, 20, 0]),
        append=lambda: both.append([0, 20, 0]),
        advance=lambda: both.advance([0, 20, 0]),
        save=lambda: both.save_snapshot([1], [4 * PAGE]),
        insert=lambda: both.insert(1, tokens, SPACE),
        mirror=lambda: both.mirror(1),
    )
    for phase in PHASES[:stop]:
        calls[phase]()
    both.release(1)
    assert not both.reference.index.leases
    known = sum(node.entry >= 0 for node in both.reference.index.nodes())
    assert len(both.reference.free_pages()) == WINDOW.num_pages - known
    assert known - (WINDOW.num_pages - free) == [0, 0, 1, 1, 1, 1, 1, 1, 2, 2][stop]
    both.evict_drop(4)
    both.evict_drop(4)
    both.evict_snapshots_drop(3)
    assert not both.reference.pages and not both.reference.snapshots
    for row_id, tokens in enumerate((5 * PAGE, 5 * PAGE)):
        assert both.prefill(row_id, tokens)  # the whole pool can be had again
    both.save_snapshot([0], [PAGE])
    both.save_snapshot([0], [2 * PAGE])
    assert both.save_snapshot([0], [3 * PAGE]).reason == [tc.Reason.OK]
