"""Which pairs of ids exist: sentinels are skipped, wherever they stand, and never clamped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels.page_copy.pairs import existing
from tests.pallas_kernels.kernel_inputs import unchecked

SOURCES, TARGETS, MOST = 4, 6, 8
find = jax.jit(lambda sources, targets: existing(sources, SOURCES, targets, TARGETS))
ids = st.sampled_from([-(2**31), -1, 0, 1, 3, 4, 5, 6, 7, 2**30, 2**31 - 1])
lists = st.lists(ids, min_size=MOST, max_size=MOST)


@given(sources=lists, targets=lists)
def test_pairs_that_exist_come_first_and_in_order(sources, targets):
    pairs = find(jnp.array(sources, jnp.int32), jnp.array(targets, jnp.int32))
    want = [
        (source, target, place)
        for place, (source, target) in enumerate(zip(sources, targets, strict=True))
        if 0 <= source < SOURCES and 0 <= target < TARGETS
    ]
    number = int(pairs.number)
    columns = (pairs.sources, pairs.targets, pairs.places)
    assert list(zip(*(np.asarray(x)[:number].tolist() for x in columns), strict=True)) == want
    assert (np.asarray(pairs.places)[number:] >= MOST).all()  # a scatter by places drops the rest
    np.testing.assert_array_equal(pairs.flags, np.ones(MOST))


def test_no_pairs():
    none = jnp.zeros(0, jnp.int32)
    assert int(existing(none, SOURCES, none, TARGETS).number) == 0


def test_lists_of_two_lengths_are_an_error():
    with unchecked(), pytest.raises(ValueError, match=r"\(3,\) sources for \(2,\) targets"):
        existing(jnp.zeros(3, jnp.int32), SOURCES, jnp.zeros(2, jnp.int32), TARGETS)
