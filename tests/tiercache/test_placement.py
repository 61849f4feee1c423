"""The index on another device than the pools gives what it gives on the same one."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiercache as tc

ROOT = Path(__file__).resolve().parents[2]
SPEC = tc.CacheSpec(
    num_layers=2, num_kv_heads=2, head_dim=64, page_size=16, num_pages=8, max_rows=2, max_pages=4,
    num_host_pages=4,
)  # fmt: skip
NAMESPACE = tc.Namespace(tenant="a").lanes()


def jitted(verb, **static):
    return jax.jit(functools.partial(verb, spec=SPEC, **static), donate_argnums=0)


def story(wrap) -> tuple[tc.CacheState, list]:
    """A row is filled, published, released, evicted and brought back."""
    state, row = tc.init_state(SPEC), jnp.int32(0)
    if wrap is not tc.with_index:
        plan_device = None
    else:
        plan_device = jax.devices()[1]
        state = tc.place_index(state, plan_device)
    tokens = jax.device_put(jnp.arange(SPEC.max_tokens, dtype=jnp.int32), plan_device)
    match = jax.jit(functools.partial(tc.prefix.match, needs_snapshot=False))
    counts = jnp.array([40, 0], jnp.int32)
    state, _ = wrap(jitted(tc.reserve, max_tokens=48))(state, counts)
    state, _ = wrap(jitted(tc.advance))(state, counts)
    infos = []
    for verb, args in [
        (jitted(tc.insert), (row, tokens, NAMESPACE)),
        (jitted(tc.release), (row,)),
        (jitted(tc.evict, most=4, to="host"), (jnp.int32(2),)),
    ]:
        state, info = wrap(verb)(state, *args)
        infos.append(info)
    plan = match(state.index, tokens, jnp.int32(40), NAMESPACE)
    state, info = wrap(jax.jit(tc.pin, donate_argnums=0))(state, plan, row)
    infos.append(info)
    state, info = wrap(jitted(tc.rehydrate))(state, plan, row)
    return state, [*infos, plan, info]


def compare():
    state, infos = story(tc.with_index)
    assert state.index.entry.devices() == {jax.devices()[1]}
    assert state.pages.refs.devices() == {jax.devices()[0]}
    together, infos_together = story(lambda verb: verb)
    assert infos[-1].num_host == 2
    jax.tree.map(
        np.testing.assert_array_equal, (state.index, infos), (together.index, infos_together)
    )
    jax.tree.map(np.testing.assert_array_equal, state.table, together.table)


@pytest.mark.slow
def test_an_index_on_another_device_gives_the_same():
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    code = "from tests.tiercache.test_placement import compare; compare()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
