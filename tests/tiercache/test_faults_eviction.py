"""Victims: what may not be one, what goes with one, and who gives way when memory is full."""

import tiercache as tc
from tests.tiercache.sessions import PAGE, known, session
from tiercache.testing import free_storage
from tiercache.testing.specs import WINDOW


def test_idle_pages_under_a_lease_survive_every_eviction():
    both = session(WINDOW)
    known(both, [1, 2], [2])
    both.pin(both.match([1, 2], 40), 3)
    for evict in (both.evict_drop, both.evict_host, both.evict_cold, both.evict_snapshots_drop):
        info = evict(2)
        assert (info.reason, info.freed) == (tc.Reason.ALL_PINNED, 0)
    assert both.match([1, 2], 40).num_hot == 2
    both.unpin(3)
    assert both.evict_drop(2).freed == 2


def test_a_full_host_keeps_the_younger_of_two():
    both = session(WINDOW)
    known(both, [9, 8], [2])
    both.fill(0, 5 * PAGE)
    both.publish(0, [1, 2, 3, 4, 5], [5])
    both.mirror(0)
    both.mirror(0)
    both.release(0)
    assert not free_storage(both.state).host_pages.any()
    info = both.evict_host(2)  # the older prompt, and every place is a younger one's
    assert (info.freed, info.stored, info.dropped) == (2, 0, 2)
    both.evict_host(4)
    both.evict_host(1)
    assert both.match([1, 2, 3, 4, 5], 96).num_host == 5


def test_what_hangs_below_a_lost_page_goes_with_it():
    """Retired, a path's first pages are in slots while its last is hot."""
    both = session(WINDOW)
    both.fill(0, 3 * PAGE)
    both.publish(0, [1, 2, 3], [3])
    assert both.retire().left == 0
    both.release(0)
    plan = both.match([1, 2, 3], 60)
    assert (plan.num_cold, plan.num_hot) == (2, 1)
    assert both.evict_slots(1).freed == 2  # the second page, and with it the third
    plan = both.match([1, 2, 3], 60)
    assert (plan.num_pages, plan.kv_pages) == (0, 1)
    free = free_storage(both.state)
    assert free.pages.all() and free.snapshots.all()


def test_a_path_that_leaves_page_by_page_moves_each_page_once():
    both = session(WINDOW)
    known(both, [1, 2, 3, 4], [4])
    for moved in range(1, 5):
        assert both.evict_host(1).stored == 1
        assert both.reference.counters["pages_to_host"] == moved
    assert both.admit(0, [1, 2, 3, 4], 80) == 4 * PAGE
    both.release(0)
    assert (both.evict_host(4).freed, both.reference.counters["pages_to_host"]) == (4, 4)
