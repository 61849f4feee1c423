"""Copies that could come to differ from what they are copies of."""

from tests.tiercache.lockstep import NAMESPACES, PAGE, WINDOW, Lockstep, prompt
from tests.tiercache.test_rules import known, page_bytes, path

SPACE = NAMESPACES[0]


def test_a_mirror_gives_way_to_a_page_that_was_computed_again():
    both = Lockstep(WINDOW)
    known(both, [1, 2], [2])
    assert both.evict_host(2).stored == 2
    both.prefill(1, 2 * PAGE)  # without looking the prompt up, and not to the same bits
    both.publish(1, prompt([1, 2]), SPACE, [2])
    both.release(1)
    before = [page_bytes(both, node.entry) for node in path(both, [1, 2])]
    assert both.evict_host(2).stored == 2
    assert both.admit(0, prompt([1, 2]), 40, SPACE) == 2 * PAGE
    assert before == [page_bytes(both, node.entry) for node in path(both, [1, 2])]
