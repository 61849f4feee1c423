"""States that stand where their tokens no longer do, or never did."""

import jax
import numpy as np

import tiercache as tc
from tests.tiercache.builders import ids
from tests.tiercache.lockstep import NAMESPACES, PAGE, WINDOW, Lockstep, prompt
from tiercache.policies import SnapshotPlacement, decode_boundaries

SPACE = NAMESPACES[0]


def test_a_snapshot_of_tokens_that_were_taken_back_is_gone():
    both = Lockstep(WINDOW)
    both.prefill(0, 2 * PAGE)
    both.save_snapshot([0, 0], [PAGE, 2 * PAGE])
    assert both.truncate(0, PAGE + 3).reason == tc.Reason.OK
    assert both.prefill(0, PAGE)
    info = both.insert(0, prompt([1, 7]), SPACE)
    assert (info.num_pages, info.num_snapshots) == (1, 1)


def test_a_new_row_starts_from_the_state_of_zeros():
    both = Lockstep(WINDOW, poison=False)
    both.prefill(0, PAGE)
    both.release(0)
    assert all(np.any(np.asarray(x)[:, 0]) for x in jax.device_get(both.state.live))
    assert both.admit(0, prompt([1]), PAGE, SPACE) == 0
    assert not any(np.any(np.asarray(x)[:, 0]) for x in jax.device_get(both.state.live))


def test_decoding_leaves_the_snapshot_at_the_prompts_end():
    due, replaces = decode_boundaries(
        ids(48, 64, 48), ids(32, 32, 33), SnapshotPlacement(), page_size=16
    )
    assert due.tolist() == [True] * 3
    assert replaces.tolist() == [0, 48, 0]
