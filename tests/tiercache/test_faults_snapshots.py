"""States that stand where their tokens no longer do, or never did."""

import jax
import numpy as np

import tiercache as tc
from tests.tiercache.builders import ids
from tests.tiercache.sessions import PAGE, known, session
from tests.tiercache.test_policies import boundaries, plan_of
from tiercache.policies import SnapshotPlacement, decode_boundaries
from tiercache.testing.specs import PLAIN, WINDOW


def test_a_snapshot_of_tokens_that_were_taken_back_is_gone():
    both = session(WINDOW)
    both.fill(0, 2 * PAGE)
    both.save_snapshot([0, 0], [PAGE, 2 * PAGE])
    assert both.truncate(0, PAGE + 3).reason == tc.Reason.OK
    assert both.fill(0, PAGE)
    info = both.insert(0, [1, 7])
    assert (info.num_pages, info.num_snapshots) == (1, 1)


def test_a_new_row_starts_from_the_state_of_zeros():
    both = session(WINDOW, poison=False)
    both.fill(0, PAGE)
    both.release(0)
    assert all(np.any(np.asarray(x)[:, 0]) for x in jax.device_get(both.state.live))
    assert both.admit(0, [1], PAGE) == 0
    assert not any(np.any(np.asarray(x)[:, 0]) for x in jax.device_get(both.state.live))


def test_decoding_leaves_the_snapshot_at_the_prompts_end():
    due, replaces = decode_boundaries(
        ids(48, 64, 48), ids(32, 32, 33), SnapshotPlacement(), page_size=16
    )
    assert due.tolist() == [True] * 3
    assert replaces.tolist() == [0, 48, 0]


def num_unreachable(both) -> int:
    return int(tc.num_unreachable_pages(both.state, spec=WINDOW))


def test_pages_that_no_snapshot_reaches_are_counted():
    both = session(WINDOW)
    known(both, [1, 2, 3], [1, 3])
    assert num_unreachable(both) == 0
    both.pin(both.match([1, 2, 3], PAGE + 1), 3)  # what a lease ends at stays
    assert both.evict_snapshots_drop(1).freed == 1
    assert num_unreachable(both) == 2
    both.unpin(3)
    assert both.evict_snapshots_host(1).stored == 1
    assert num_unreachable(both) == 2
    assert both.evict_host(1).stored == 1  # a page on the host is as dead
    assert num_unreachable(both) == 2
    known(both, [1, 2], [2])
    assert num_unreachable(both) == 1
    assert int(tc.num_unreachable_pages(tc.init_state(PLAIN), spec=PLAIN)) == 0


def test_a_prompt_of_whole_pages_is_saved_a_page_before_its_end():
    """Its last token has to be computed, so a snapshot at its end would never be hit."""
    for length, wanted in ((48, [32, -1]), (49, [48, -1]), (16, [-1, -1])):
        found = boundaries(
            plan_of(0, 0), np.int32(length), SnapshotPlacement(), page_size=16, most=2
        )
        assert found.tokens.tolist() == wanted
