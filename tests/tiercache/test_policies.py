"""Where snapshots are taken, against the definition in plain Python."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiercache as tc
from tests.tiercache import builders
from tests.tiercache.builders import NAMESPACE, SPEC, ids, int32
from tiercache.policies import SnapshotPlacement, decode_boundaries, snapshot_boundaries

PAGE, MAX_PAGES = 16, 9
PLACEMENTS = [
    SnapshotPlacement(every, last_page, branches)
    for every in (0, 16, 48)
    for last_page in (False, True)
    for branches in (False, True)
]


@functools.cache
def empty_plan():
    spec = builders.spec_of(max_pages=MAX_PAGES)
    return jax.eval_shape(
        functools.partial(tc.match, spec=spec), jax.eval_shape(lambda: tc.init_state(spec)),
        jax.ShapeDtypeStruct((spec.max_tokens,), np.int32), jax.ShapeDtypeStruct((), np.int32),
        jax.ShapeDtypeStruct((16,), np.uint32),
    )  # fmt: skip


def plan_of(num_pages: int, known_pages: int) -> tc.Plan:
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), empty_plan())
    return zeros._replace(num_pages=np.int32(num_pages), known_pages=np.int32(known_pages))


MOST = 120  # tokens decoded
at_decode = jax.jit(decode_boundaries, static_argnames=("placement", "page_size"))
boundaries = jax.jit(snapshot_boundaries, static_argnames=("placement", "page_size", "most"))


@given(
    placement=st.sampled_from(PLACEMENTS),
    most=st.sampled_from([1, 2, MAX_PAGES]),
    length=st.integers(1, MAX_PAGES * PAGE),
    known=st.integers(0, MAX_PAGES),
    resumed=st.integers(0, MAX_PAGES),
)
def test_boundaries_are_those_of_the_definition(placement, most, length, known, resumed):
    known = min(known, (length - 1) // PAGE)
    resumed = min(resumed, known)
    wanted = set()
    for depth in range(PAGE, length, PAGE):
        every = placement.every and depth % placement.every == 0
        last = placement.last_page and depth + PAGE >= length
        branch = placement.branches and depth == known * PAGE
        if depth > resumed * PAGE and (every or last or branch):
            wanted.add(depth)
    wanted = sorted(wanted)[-most:]  # the deepest
    got = boundaries(
        plan_of(resumed, known), np.int32(length), placement, page_size=PAGE, most=most
    ).tokens.tolist()
    assert got == wanted + [-1] * (most - len(wanted))


@given(
    placement=st.sampled_from(PLACEMENTS),
    prompt=st.integers(1, 100),
    number=st.integers(0, MOST),
)
def test_decode_boundaries_leave_what_a_row_should_keep(placement, prompt, number):
    """Replays a row token by token, as the decode loop does: one waiting snapshot that moves."""
    lengths = prompt + 1 + np.arange(MOST, dtype=np.int32)
    due, replaces = at_decode(lengths, np.full(MOST, prompt, np.int32), placement, page_size=PAGE)
    steps = zip(lengths.tolist(), due.tolist(), replaces.tolist(), strict=True)
    waiting, most = set(), 0
    for length, is_due, replaced in itertools.islice(steps, number):
        if not is_due:
            continue
        assert length % PAGE == 0
        waiting -= {replaced}
        waiting.add(length)
        most = max(most, len(waiting))
    passed = [n for n in range(prompt + 1, prompt + number + 1) if n % PAGE == 0]
    wanted = {n for n in passed if placement.every and n % placement.every == 0}
    if placement.last_page:
        wanted |= set(passed[-1:])
    assert waiting == wanted
    assert most <= len(wanted) + 1
    if placement.last_page and not placement.every:
        assert most <= 1


def test_an_empty_row_saves_nothing():
    due, _ = decode_boundaries(ids(0, 0), ids(0, 0), SnapshotPlacement(), page_size=PAGE)
    assert not np.any(due)


@pytest.mark.parametrize("every", [8, 24, -16])
def test_every_is_a_whole_number_of_pages(every):
    with pytest.raises(ValueError, match=f"every={every} .*page_size=16"):
        SnapshotPlacement(every).check(PAGE)
    with pytest.raises(ValueError, match=f"every={every} "):
        boundaries(plan_of(0, 0), np.int32(40), SnapshotPlacement(every), page_size=PAGE, most=2)


def test_a_placement_is_a_static_argument():
    assert hash(SnapshotPlacement()) == hash(SnapshotPlacement())
    with pytest.raises(dataclasses.FrozenInstanceError):
        SnapshotPlacement().every = 3


def test_a_third_prompt_resumes_where_the_second_left_the_first():
    """The branch point is saved when it is first seen, and serves from then on."""
    run = builders.verbs(SPEC)
    first = builders.prompt(SPEC, 70, 1)
    second = builders.prompt(SPEC, 70, 2, like=first, shared=37)
    third = builders.prompt(SPEC, 70, 3, like=first, shared=37)
    state, found = tc.init_state(SPEC), []
    for tokens in (first, second, third):
        plan = run.match(state, tokens, int32(70), NAMESPACE)
        depths = boundaries(plan, int32(70), SnapshotPlacement(), page_size=PAGE, most=5).tokens
        found.append((int(plan.num_pages), [d for d in depths.tolist() if d > 0]))
        state = builders.serve(state, SPEC, 0, tokens, 70, save=found[-1][1])
        state, _ = run.release(state, int32(0))
    assert found == [(0, [64]), (0, [32, 64]), (2, [64])]


def test_a_decoding_row_needs_one_snapshot_however_long_it_runs():
    run = builders.verbs(SPEC)
    state = builders.grow(tc.init_state(SPEC), SPEC, 1, 13)
    depths = []
    for length in range(14, 81):
        state = builders.grow(state, SPEC, 1, 1, seed=length)
        due, replaces = at_decode(
            state.table.lengths, ids(0, 13, 0), SnapshotPlacement(), page_size=PAGE
        )
        if due[1]:
            state, info = run.save_snapshot(state, ids(1), ids(length), replaces=replaces[1:2])
            assert not np.any(info.reason)
            depths.append(length)
        assert int(np.sum(np.asarray(state.snapshots.owner) == 1)) == min(len(depths), 1)
    assert depths == [16, 32, 48, 64, 80]
    state, info = run.insert(state, int32(1), builders.prompt(SPEC, 80, 4), NAMESPACE)
    assert (int(info.num_pages), int(info.num_snapshots)) == (5, 1)
