"""Which state of a chunk each snapshot gets."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import tiercache as tc
from models.decode import prefill_chunk
from models.hybrid_gdn import Output
from tests.tiercache import builders
from tests.tiercache.builders import ids, int32


def apply(params, tokens, positions, counts, live, cache, attend, *, boundaries):
    """A model whose recurrent state is the number of tokens that it has seen."""

    def states(x, depths):
        return jnp.zeros((*depths.shape, *x.shape), x.dtype) + jnp.expand_dims(
            depths.astype(x.dtype), range(1, x.ndim + 1)
        )

    inner = jax.tree.map(lambda x: states(x, positions[0] + boundaries), live)
    last = jax.tree.map(lambda x: states(x, positions + counts)[0], live)
    return Output(jnp.zeros((1, 7)), last, cache, inner)


def test_every_boundary_inside_a_chunk_gets_its_own_state():
    spec = builders.spec_of(max_pages=12, num_pages=14)
    run = jax.jit(functools.partial(prefill_chunk, apply=apply, spec=spec))
    state = builders.grow(tc.init_state(spec), spec, 1, 16)
    tokens = jnp.zeros(128, jnp.int32)
    # 48 is no multiple of 64 after the start, and 80 is; 128 is the end, and 144 past it.
    state, info = run(None, state, int32(1), tokens, int32(112), ids(48, 80, 128, 144))
    assert int(info.reason) == tc.Reason.OK and not np.any(info.snapshots)
    saved = np.asarray(state.snapshots.owner) == 1
    assert np.asarray(state.snapshots.tokens)[saved].tolist() == [80, 128]
    for leaf in state.snapshots.leaves:
        values = np.asarray(leaf, np.float32)[saved].reshape(2, -1)
        assert [set(row) for row in values.tolist()] == [{80.0}, {128.0}]
    assert all(np.all(np.asarray(x, np.float32)[:, 1] == 128) for x in state.live)
