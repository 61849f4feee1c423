"""What an experiment expects of a cache, and how it compares."""

import numpy as np
import pytest

from experiments.arms import resumable_tokens
from experiments.lossy import loss
from experiments.setup import CHURN, FLUSH
from models.engine import Report
from tiercache.policies import SnapshotPlacement


@pytest.mark.parametrize(
    ("prompt", "answer", "measured", "depth"),
    [
        (130, 20, 300, 128),  # the answer stays within a page: the prompt's last boundary
        (128, 20, 300, 64),  # the prompt's last token is always computed
        (130, 63, 300, 192),  # 192 tokens were fed: the answer's last one was not
        (130, 62, 300, 128),
        (130, 200, 150, 128),  # not past the measured prompt
        (40, 5, 100, 0),
    ],
)
def test_resumable_tokens_by_hand(prompt, answer, measured, depth):
    assert resumable_tokens(prompt, answer, measured, SnapshotPlacement(), 64) == depth


def test_resumable_tokens_follow_the_placement():
    sparse = SnapshotPlacement(every=128, last_page=False)
    assert resumable_tokens(700, 10, 900, sparse, 64) == 640
    assert resumable_tokens(100, 10, 900, sparse, 64) == 0


def test_the_presets_push_out_what_they_say():
    for name, sizes in FLUSH.items():
        pages = [-(-n // 64) for n in (sizes.other_tokens, sizes.conversation_tokens)]
        assert max(pages) <= sizes.num_pages < 2 * pages[0], name
    for name, sizes in CHURN.items():
        assert sizes.num_others > sizes.num_snapshots, name
        assert sizes.conversation_tokens >= 4000, name


def test_loss_counts_tokens_before_the_first_difference():
    control = Report(10, outputs=[1, 2, 3], first_logits=np.array([1.0, 2.0, 0.0]))
    same = loss(control, control)
    assert (same.logit_kl, same.logit_max_diff, same.tokens_equal) == (0, 0, 3)
    other = Report(10, outputs=[1, 9, 3], first_logits=np.array([1.0, 2.5, 0.0]))
    found = loss(other, control)
    p, q = (np.exp(x.first_logits) / np.exp(x.first_logits).sum() for x in (control, other))
    assert found.logit_kl == pytest.approx(np.sum(p * np.log(p / q)))
    assert (found.logit_max_diff, found.tokens_equal) == (0.5, 1)
