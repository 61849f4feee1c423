"""The machine, its replays, and what it would catch."""

import hashlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.pallas_kernels.codecs import oracle
from tests.tiercache.sessions import session
from tiercache.state import COUNTER_NAMES
from tiercache.testing import Driver, Lockstep, Trace, replay, shrink
from tiercache.testing.calls import VERBS, Call, signature
from tiercache.testing.machine import CacheMachine
from tiercache.testing.specs import SPECS, WINDOW

REPLAYS = sorted((Path(__file__).parent / "replays").glob("*.json"))
# Of the trace below, on every machine and every JAX: the choices are the cache's own.
DIGEST = "3428d0fa20dbaa3a"


class WindowMachine(CacheMachine):
    spec, codecs = WINDOW, oracle


def driven(spec, seed: int, num_steps: int) -> Driver:
    driver = Driver(Lockstep(spec, codecs=oracle, keep_calls=True))
    driver.run_random(seed, num_steps)
    driver.lockstep.flush()
    return driver


# What a trace must reach beside every event that its cache can count.
REACHED = (
    "advance NOT_RESERVED, fork ROW_BUSY, insert TOKENS_MISMATCH, load_snapshot NOT_PINNED, "
    "pin LEASE_BUSY, pin STALE_PLAN, reserve PAGES_FULL, truncate BELOW_COMMITTED, unpin OK"
)


def never_reached(driver: Driver) -> list[str]:
    """Events that did not happen and refusals that were not given: a trace can become too tame."""
    spec, lockstep = driver.spec, driver.lockstep
    lacks = () if spec.num_cold_slots else ("cold",)
    lacks += () if spec.num_snapshots else ("snapshot",)
    events = lockstep.reference.counters
    never = [name for name in COUNTER_NAMES if not events[name]]
    never = [name for name in never if not any(word in name for word in lacks)]
    seen = {" ".join(pair) for pair in lockstep.seen}
    return never + sorted(set(REACHED.split(", ")) - seen)


@pytest.fixture(scope="module")
def window() -> Driver:
    return driven(WINDOW, 0, 3000)


@pytest.mark.slow
def test_hypothesis_finds_no_difference():
    run_state_machine_as_test(
        WindowMachine, settings=settings(max_examples=15, stateful_step_count=30)
    )


@pytest.mark.slow
def test_a_long_trace_reaches_every_verb_event_and_most_refusals(window):
    seen = window.lockstep.seen
    assert {name for name, _ in seen} == set(signature(WINDOW)) - {
        name for name in ("append", "attend", "match", "make_room")
    }
    assert set(signature(WINDOW)) == set(VERBS)
    assert not never_reached(window)
    reasons = {reason for _, reason in seen}
    assert len(reasons) >= 18, sorted(reasons)
    assert window.lockstep.num_outputs > 50_000


@pytest.mark.slow
def test_the_same_seed_makes_the_same_choices_and_bytes(window):
    """Also on two releases of JAX: the digest is a constant."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(jax.device_get(window.lockstep.state)):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    assert digest.hexdigest()[:16] == DIGEST


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("host", 2), ("plain", 7)], ids=["host", "plain"])
def test_other_caches_agree_with_their_reference(name, seed, quick_compiles):
    driver = driven(SPECS[name], seed, 1000)
    assert driver.lockstep.num_calls > 1000
    assert not never_reached(driver)


@pytest.mark.parametrize("path", REPLAYS, ids=lambda path: path.stem)
def test_what_failed_once_holds(path):
    trace = Trace.from_json(path.read_text(encoding="utf-8"))
    assert replay(trace, codecs=oracle, at_once=True).num_calls == len(trace.calls)


def tampered(lockstep: Lockstep, change):
    """Changes the state behind the reference's back, and compares."""
    lockstep.state = change(lockstep.state)
    lockstep.flush()


def flip(leaf, at):
    data = np.array(leaf)
    data.view(np.uint8).reshape(-1)[at] ^= 1
    return jax.device_put(data, leaf.sharding)


@pytest.mark.parametrize("part", ["page", "number", "token", "key"])
def test_one_bit_that_is_wrong_is_seen(part):
    both = session(WINDOW)
    both.fill(0, 16)
    both.publish(0, [0], [1])

    def change(state):
        if part == "page":
            payload = state.pages.payload
            codes = flip(payload[0].codes, 5)
            return state._replace(
                pages=state.pages._replace(payload=(payload[0]._replace(codes=codes), *payload[1:]))
            )
        if part == "number":
            epoch = state.index.epoch.at[3].add(1)
            return state._replace(index=state.index._replace(epoch=epoch))
        leaf = {"token": "tokens", "key": "key"}[part]
        changed = getattr(state.index, leaf).at[1, 1].add(1)
        return state._replace(index=state.index._replace(**{leaf: changed}))

    message = {
        "page": "page 0, layer 0 K", "number": "index.epoch", "token": "index.tokens.1.",
        "key": "index.key.1.",
    }  # fmt: skip
    with pytest.raises(AssertionError, match=message[part]):
        tampered(both.lockstep, change)


def test_a_trace_comes_back_from_its_text():
    for spec in SPECS.values():
        calls = (Call("reserve", ([1, 2, 3],)), Call("release", (-(2**31),)), Call("retire"))
        trace = Trace(spec, calls, "why")
        assert Trace.from_json(trace.to_json()) == trace
        json.loads(trace.to_json())


def test_shrinking_keeps_what_fails():
    calls = [Call("release", (number,)) for number in range(100)]
    wanted = {17, 60, 61}
    kept = shrink(calls, lambda few: wanted <= {call.args[0] for call in few})
    assert {call.args[0] for call in kept} == wanted
