"""The prefix index on another device than the pools: where it is moved, and when."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from tiercache.state import CacheState


def place_index(state: CacheState, device) -> CacheState:
    """The state with its index on `device` (a `jax.Device` or a sharding), outside `jit`."""
    return state._replace(index=jax.device_put(state.index, device))


def with_index(verb: Callable[..., Any]) -> Callable[..., Any]:
    """A verb, jitted by the caller, for states whose index lives on another device.

    `match` and the functions of `tiercache.prefix` run where the index is; a plan is moved to the
    pools' device with the verb that takes it. The other verbs read and write pools and index in one
    program: this wrapper brings the index to the pools for the call and takes it back afterwards.
    With pages of 64 tokens, 65,536 nodes are 28 MB each way.

    Args:
      verb: `verb(state, ...) -> (state, info)`, jitted; it may donate the state.

    Returns:
      The same verb. Arrays among its further arguments are moved to the pools' device.
    """

    @functools.wraps(verb)
    def call(state: CacheState, *args, **kwargs):
        home = state.index.clock.sharding
        pools = state.pages.refs.sharding
        args, kwargs = jax.tree.map(
            lambda x: jax.device_put(x, pools) if isinstance(x, jax.Array) else x, (args, kwargs)
        )
        state, info = verb(place_index(state, pools), *args, **kwargs)
        return place_index(state, home), info

    return call
