"""Ids that do not exist, and ids that are somebody else's by now."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiercache.prefix.machine import NAMESPACES, prompt
from tests.tiercache.prefix.test_match import full_match, jit_extend, jit_pin, known
from tiercache import prefix
from tiercache.prefix.arrays import add, gather, put
from tiercache.reasons import Reason


@pytest.mark.parametrize("missing", [-1, -3, 3, 2**30, -(2**31)])
def test_a_negative_id_is_not_counted_from_the_end(missing):
    values, ids = jnp.arange(3), jnp.array([missing, 1], jnp.int32)
    assert gather(values, ids, 7).tolist() == [7, 1]
    assert put(values, ids, 5).tolist() == [0, 5, 2]
    assert add(values, ids, 5).tolist() == [0, 6, 2]


def test_nodes_with_other_tenants_make_a_plan_stale():
    index, node_ids = known([0, 1])
    index, kept = jit_extend(index, prompt([2]), jnp.int32(1), NAMESPACES[0])
    index = prefix.set_entries(index, kept.node_ids[:1], jnp.array([50], jnp.int32))
    plan = full_match(index, symbols=[0, 1], needs_snapshot=False)
    assert plan.num_pages == 2
    index = prefix.set_entries(index, node_ids, jnp.full_like(node_ids, -1))
    index, num_dropped = prefix.drop_dead(index)
    assert num_dropped == 2
    index, info = jit_extend(index, prompt([1, 1]), jnp.int32(2), NAMESPACES[0])
    np.testing.assert_array_equal(info.node_ids[:2], plan.node_ids[:2])
    index = prefix.set_entries(index, info.node_ids[:2], jnp.array([60, 61], jnp.int32))
    after, pinned = jit_pin(index, plan, jnp.int32(0))
    assert int(pinned.reason) == Reason.STALE_PLAN
    assert not np.any(after.pins)
