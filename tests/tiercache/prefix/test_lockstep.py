"""The index against a trie of dicts, over random traces."""

import numpy as np
import pytest
from hypothesis import given, settings

from tests.tiercache.prefix import machine
from tiercache.prefix import keys, lookup

VERBS = machine.jitted()


@settings(max_examples=120)
@given(trace=machine.traces)
def test_every_verb_does_what_the_trie_of_dicts_does(trace):
    machine.Machine(VERBS).run(trace)


@pytest.fixture(scope="module", params=[0, 1], ids=["one-key-a-depth", "two-hashes"])
def weak_verbs(request):
    """Verbs under a hash of so many bits: pages, and even namespaces, share keys all the time."""
    patch = pytest.MonkeyPatch()
    strong = keys.page_hashes
    patch.setattr(keys, "page_hashes", lambda pages: strong(pages) & np.uint32(request.param))
    verbs = machine.jitted()
    machine.Machine(verbs).run(WARM_UP)
    yield verbs
    patch.undo()


# Traces each verb once, while the hash is weak.
WARM_UP = [
    ("store", [0, 1], 1, 1),
    ("resume", [0, 1], 5, 1),
    ("resume", [0, 1], 6, 1),
    ("unpin", [], 0, 1),
    ("repin", [], 2, 1),
    ("touch", [], 0, 0),
    ("touch", [], 0, 1),
    ("demote", [], 1, 0),
    ("evict", [], 1, 0),
    ("snapshot", [], 1, 1),
    ("snapshot", [], 1, 2),
    ("strip", [], 0, 0),
    ("drop", [], 0, 0),
]


@given(trace=machine.traces)
def test_colliding_keys_change_nothing(weak_verbs, trace):
    machine.Machine(weak_verbs).run(trace)


def test_the_weak_hash_hits_wrongly_without_the_comparison(monkeypatch):
    strong = keys.page_hashes
    monkeypatch.setattr(keys, "page_hashes", lambda pages: strong(pages) & np.uint32(0))
    monkeypatch.setattr(
        lookup, "_rows_equal", lambda rows, pages: np.ones(pages.shape[0], np.bool_)
    )
    with pytest.raises(AssertionError):
        machine.Machine(machine.jitted()).run(
            [("store", [0, 1], 1, 1), ("resume", [0, 2, 1], 5, 1)]
        )
