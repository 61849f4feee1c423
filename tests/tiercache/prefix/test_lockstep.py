"""The index against a trie of dicts, over random traces."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings

from tests.tiercache.prefix import machine
from tiercache import prefix
from tiercache.prefix import keys, lookup

VERBS = machine.jitted()

# What random traces must reach to prove anything.
MUST_HAPPEN = {
    *(("extend", name) for name in ("OK", "NODES_FULL", "OVERSIZE")),
    *(("pin", name) for name in ("OK", "STALE_PLAN", "LEASE_BUSY", "BAD_ID")),
    *(("unpin", name) for name in ("OK", "NOT_HELD", "BAD_ID")),
    *(("repin", name) for name in ("OK", "BAD_ID")),
    *(("cut", cut) for cut in prefix.CUT_TEXTS),
    *(("source", source) for source in range(4)),
    *(("snapshot", source) for source in range(3)),
    ("dropped", True),
}


@pytest.mark.slow
def test_every_verb_does_what_the_trie_of_dicts_does():
    seen = collections.Counter()

    @settings(max_examples=60)
    @given(trace=machine.traces())
    def lockstep(trace):
        seen.update(machine.Machine(VERBS).run(trace))

    lockstep()
    assert set(seen) >= MUST_HAPPEN, MUST_HAPPEN - set(seen)


@pytest.fixture(scope="module", params=[0, 1], ids=["one-hash", "two-hashes"])
def weak_verbs(request):
    """Verbs under a hash of so many bits: pages, and even namespaces, share keys all the time."""
    patch = pytest.MonkeyPatch()
    strong = keys.page_hashes
    patch.setattr(keys, "page_hashes", lambda pages: strong(pages) & np.uint32(request.param))
    verbs = VERBS | machine.jitted(machine.HASHING)
    machine.Machine(verbs).run(WARM_UP)
    yield verbs
    patch.undo()


# Traces each verb that hashes, while the hash is weak.
WARM_UP = [("store", [0, 1], 1, 1), ("resume", [0, 1], 5, 0), ("resume", [0, 1], 6, 0)]


def test_colliding_keys_change_nothing(weak_verbs):
    seen = collections.Counter()

    @settings(max_examples=20)
    @given(trace=machine.traces())
    def lockstep(trace):
        seen.update(machine.Machine(weak_verbs, crowded=True).run(trace))

    lockstep()
    assert seen["extend", "OK"] > 100
    assert seen["source", prefix.SOURCE_HOT] > 10


def test_the_weak_hash_hits_wrongly_without_the_comparison(monkeypatch):
    strong = keys.page_hashes
    monkeypatch.setattr(keys, "page_hashes", lambda pages: strong(pages) & np.uint32(0))
    monkeypatch.setattr(
        lookup, "_rows_equal", lambda rows, pages: np.ones(pages.shape[0], np.bool_)
    )
    with pytest.raises(AssertionError):
        machine.Machine(VERBS | machine.jitted(machine.HASHING)).run(
            [("store", [0, 1], 1, 0), ("resume", [0, 2, 1], 5, 0)]
        )
