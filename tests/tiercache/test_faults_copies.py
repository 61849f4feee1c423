"""Copies that could come to differ from what they are copies of."""

from tests.tiercache.sessions import PAGE, known, page_bytes, path, session
from tiercache.testing.specs import WINDOW


def test_a_mirror_gives_way_to_a_page_that_was_computed_again():
    both = session(WINDOW)
    known(both, [1, 2], [2])
    assert both.evict_host(2).stored == 2
    both.fill(1, 2 * PAGE)  # without looking the prompt up, and not to the same bits
    both.publish(1, [1, 2], [2])
    both.release(1)
    before = [page_bytes(both, node.entry) for node in path(both, [1, 2])]
    assert both.evict_host(2).stored == 2
    assert both.admit(0, [1, 2], 40) == 2 * PAGE
    assert before == [page_bytes(both, node.entry) for node in path(both, [1, 2])]


def test_sessions_that_come_back_from_host_memory_alone_get_their_own_bytes():
    both = session(WINDOW)
    pages = {}
    for symbol in range(5):
        both.fill(0, PAGE)
        both.publish(0, [symbol], [1])
        both.release(0)
        pages[symbol] = page_bytes(both, path(both, [symbol])[0].entry)
        both.evict_snapshots_host(3)
    assert len(set(map(tuple, pages.values()))) == 5
    both.evict_host(4)
    both.evict_host(4)
    assert not both.reference.pages
    found = []
    for symbol in (3, 0, 4, 2, 1):
        plan = both.match([symbol], 20)
        if plan.num_pages:
            found.append(symbol)
            both.admit(1, [symbol], 20)
            assert page_bytes(both, both.reference.rows[1].entries[0]) == pages[symbol]
            both.release(1)
    assert found == [3, 4, 2]  # the host keeps five pages and the youngest three states
