"""What a caller who forgets a step cannot do to other rows."""

import tiercache as tc
from tests.tiercache.sessions import PAGE, page_bytes, session
from tiercache.testing.specs import WINDOW


def test_without_reserve_nothing_is_written_to_a_shared_page():
    both = session(WINDOW)
    both.fill(0, PAGE + 5)
    both.fork(0, 1)
    shared = both.reference.rows[1].entries[1]
    before = page_bytes(both, shared)
    assert both.append([3, 0, 0]).dropped[0] == 3
    assert both.advance([3, 0, 0]).reason[0] == tc.Reason.NOT_RESERVED
    assert before == page_bytes(both, shared)
    assert both.extend([3, 0, 0])
    assert before == page_bytes(both, shared)
