"""Rows that share pages: who may end when, what retire gives back, and aborts at every phase."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiercache as tc
from tests.tiercache.sessions import PAGE, session
from tiercache.testing.specs import WINDOW


@functools.cache
def attend_jit():
    def attend(state, q, counts):
        view = tc.view(state, jnp.arange(3), counts, num_tokens=1, spec=WINDOW)
        # The last token counts as the new one: it is written, and sees all before and itself.
        view = view._replace(lengths=jnp.maximum(view.lengths - 1, 0))
        outs = [tc.attend(state, view, layer, q, spec=WINDOW) for layer in range(2)]
        return jnp.stack(outs)[:, :, 0]

    return jax.jit(attend)


def queries() -> np.ndarray:
    """One token's queries for each row, [row, 1, q_head, dim]; small, since some keys are large."""
    return np.random.default_rng(5).standard_normal((3, 1, 2, 64), np.float32) / 1024


def attention(both, row_id):
    """What one query per layer over all tokens of a row gives: [layer, q_head, dim]."""
    counts = jnp.asarray([int(row == row_id) for row in range(3)], jnp.int32)
    return np.array(attend_jit()(both.state, queries(), counts))[:, row_id]


def is_attention_by_hand(both, row_id, have) -> bool:
    """Whether it is what the reference says that the row holds, summed in float64."""
    reference = both.reference
    length, q = reference.rows[row_id].length, queries()[row_id, 0]
    wanted = [reference.attention(row_id, length, layer, q) for layer in range(2)]
    assert all(np.all(one.error < 1e-3 * np.abs(one.out).max()) for one in wanted)
    return not any(one.differs(x).any() for one, x in zip(wanted, have, strict=True))


def entries(both, row_id):
    return both.reference.rows[row_id].entries


def shared_cold_prefix():
    """Rows 1 and 2 share two pages that only cold slots hold, and each has a page of its own."""
    both = session(WINDOW)
    both.fill(0, 2 * PAGE)
    both.publish(0, [1, 2], [2])
    both.release(0)
    assert both.evict_cold(2).packed == 2
    for row_id in (1, 2):
        assert both.admit(row_id, [1, 2, row_id], 40) == 2 * PAGE
        assert both.fill(row_id, 5 + row_id)
    assert entries(both, 1)[:2] == entries(both, 2)[:2] == [-3, -2]  # the leaf was packed first
    return both


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_either_of_two_rows_that_share_cold_slots_may_end_first(first, second):
    both = shared_cold_prefix()
    before = attention(both, second)
    assert is_attention_by_hand(both, second, before)
    assert both.release(first).slots == 0
    np.testing.assert_array_equal(before, attention(both, second))
    both.evict_slots(2)  # pinned by the row that runs
    np.testing.assert_array_equal(before, attention(both, second))
    assert both.extend([0, 3 * (second == 1), 3 * (second == 2)])
    assert is_attention_by_hand(both, second, attention(both, second))
    assert both.release(second).slots == 0
    assert both.evict_slots(2).freed == 2
    assert not both.reference.slots and not both.reference.pages


def test_slots_live_on_in_a_row_when_the_index_lets_go():
    """The slots of a row that was never published are shared with its fork alone."""
    both = session(WINDOW)
    both.fill(0, 3 * PAGE)
    assert [p for p in both.retire().page_ids if p != tc.NO_PAGE]
    both.fork(0, 1)
    before = attention(both, 1)
    assert both.release(0).slots == 0
    np.testing.assert_array_equal(before, attention(both, 1))
    assert both.release(1).slots == 2


def test_retired_pages_are_anyones_at_once():
    both = session(WINDOW)
    both.fill(0, 3 * PAGE)
    both.fill(1, 4 * PAGE)
    free = len(both.reference.free_pages())
    info = both.retire()
    retired = [page for page in info.page_ids if page != tc.NO_PAGE]
    assert len(retired) == 2
    assert len(both.reference.free_pages()) == free + len(retired)
    assert both.fill(2, (free + 2) * PAGE)
    assert set(retired) <= set(entries(both, 2))
    assert not both.reference.free_pages()
    assert both.reserve([0, 1, 0]).reason[1] == tc.Reason.PAGES_FULL


def test_a_page_inside_another_rows_keep_window_is_not_retired():
    both = session(WINDOW)
    both.fill(0, PAGE + 4)
    both.fork(0, 1)
    shared = entries(both, 0)[0]
    assert both.fill(0, 2 * PAGE)  # the shared page is old in row 0, and within the last 20 of 1
    info = both.retire()
    assert shared not in info.page_ids and entries(both, 0)[0] == shared
    assert both.fill(1, PAGE)
    while info.left or any(page != tc.NO_PAGE for page in info.page_ids):
        info = both.retire()
    assert entries(both, 0)[0] == entries(both, 1)[0] <= -2


def test_a_row_that_shares_published_pages_keeps_them_when_the_first_row_ends():
    """The fork was made before anyone knew the pages; it reads them after their row has gone."""
    both = session(WINDOW)
    both.fill(0, 2 * PAGE + 3)
    both.fork(0, 1)
    both.publish(0, [1, 2], [2])
    both.release(0)
    before = attention(both, 1)
    assert both.evict_drop(3).freed == 0
    assert both.truncate(1, 2 * PAGE - 1).reason == tc.Reason.BELOW_COMMITTED
    assert both.extend([0, 2, 0])
    assert both.truncate(1, 2 * PAGE + 3).reason == tc.Reason.OK
    np.testing.assert_array_equal(before, attention(both, 1))
    both.release(1)
    assert both.evict_drop(3).freed == 2


def test_a_page_reserved_ahead_is_not_shared_with_a_fork():
    both = session(WINDOW)
    both.fill(0, PAGE)
    both.reserve([PAGE, 0, 0])
    both.fork(0, 1)
    assert both.extend([4, 4, 0])
    assert both.reference.rows[0].length == both.reference.rows[1].length == PAGE + 4


PHASES = "pin rehydrate load reserve append advance save insert mirror".split()


@pytest.mark.parametrize("stop", range(len(PHASES) + 1))
def test_an_abort_at_any_phase_gives_everything_back(stop):
    both = session(WINDOW)
    both.fill(0, 3 * PAGE)
    both.publish(0, [1, 2, 3], [1, 3])
    both.mirror(0)
    both.release(0)
    both.evict_host(1)  # the last page waits in host memory alone
    free = len(both.reference.free_pages())
    tokens = [1, 2, 3, 4, 5]
    plan = both.match(tokens, 5 * PAGE)
    assert plan.num_pages == 3
    calls = dict(
        pin=lambda: both.pin(plan, 1),
        rehydrate=lambda: both.rehydrate(plan, 1),
        load=lambda: both.load_snapshot(plan, 1),
        reserve=lambda: both.reserve([0, 20, 0]),
        append=lambda: both.append([0, 20, 0]),
        advance=lambda: both.advance([0, 20, 0]),
        save=lambda: both.save_snapshot([1], [4 * PAGE]),
        insert=lambda: both.insert(1, tokens),
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
        assert both.fill(row_id, tokens)  # the whole pool can be had again
    both.save_snapshot([0], [PAGE])
    both.save_snapshot([0], [2 * PAGE])
    assert both.save_snapshot([0], [3 * PAGE]).reason[0] == tc.Reason.OK
