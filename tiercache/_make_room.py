"""`make_room`: evicts as much as it takes to have so many pages and snapshots free."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32

from tiercache._evict import evict
from tiercache._evict_snapshots import evict_snapshots
from tiercache._transfer import num_true
from tiercache.spec import CacheSpec
from tiercache.state import FREE, CacheState


class RoomInfo(NamedTuple):
    """What was evicted, and what still lacks.

    Attributes:
      pages: pages freed.
      snapshots: snapshots freed.
      page_shortfall: pages that are not free yet.
      snapshot_shortfall: snapshots that are not free yet.
    """

    pages: Int32[Array, ""]
    snapshots: Int32[Array, ""]
    page_shortfall: Int32[Array, ""]
    snapshot_shortfall: Int32[Array, ""]


def make_room(
    state: CacheState,
    pages: Int32[Array, ""],
    snapshots: Int32[Array, ""],
    *,
    to: Literal["host", "cold", "drop"] = "host",
    snapshots_to: Literal["host", "drop"] = "host",
    spec: CacheSpec,
) -> tuple[CacheState, RoomInfo]:
    """Evicts until `pages` pages and `snapshots` snapshots are free, or nothing may go.

    The numbers are looked up on the device: no round trip, and no work where there is room.

    Args:
      state: the cache.
      pages, snapshots: how many are to be free.
      to: where pages go, as in `evict`; static.
      snapshots_to: where snapshots go, as in `evict_snapshots`; static.
      spec: the geometry.
    """
    lacking = jnp.maximum(pages - num_true(state.pages.refs == 0), 0)

    def free_pages(state: CacheState):
        state, info = evict(state, lacking, most=spec.num_pages, to=to, spec=spec)
        return state, info.freed

    state, freed_pages = _if_any(lacking, free_pages, state)
    if not spec.num_snapshots:
        nothing = jnp.int32(0)
        return state, RoomInfo(freed_pages, nothing, lacking - freed_pages, nothing)
    lacking_snapshots = jnp.maximum(snapshots - num_true(state.snapshots.owner == FREE), 0)

    def free_snapshots(state: CacheState):
        state, info = evict_snapshots(
            state, lacking_snapshots, most=spec.num_snapshots, to=snapshots_to, spec=spec
        )
        return state, info.freed

    state, freed = _if_any(lacking_snapshots, free_snapshots, state)
    return state, RoomInfo(freed_pages, freed, lacking - freed_pages, lacking_snapshots - freed)


def _if_any(number: Int32[Array, ""], free, state: CacheState):
    """`free(state)` where `number` is above 0: a loop of one turn or none, so nothing is copied."""
    return lax.fori_loop(
        0, (number > 0).astype(jnp.int32), lambda _, carry: free(carry[0]), (state, jnp.int32(0))
    )
