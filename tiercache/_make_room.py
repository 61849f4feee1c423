"""`make_room`: evicts as much as it takes to have so many pages and snapshots free."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
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
    state, gone = evict(state, lacking, most=spec.num_pages, to=to, spec=spec)
    freed, short = jnp.int32(0), jnp.int32(0)
    if spec.num_snapshots:
        lacking_snapshots = snapshots - num_true(state.snapshots.owner == FREE)
        lacking_snapshots = jnp.maximum(lacking_snapshots, 0)
        state, gone_snapshots = evict_snapshots(
            state, lacking_snapshots, most=spec.num_snapshots, to=snapshots_to, spec=spec
        )
        freed = gone_snapshots.freed
        short = jnp.maximum(lacking_snapshots - freed, 0)
    return state, RoomInfo(gone.freed, freed, jnp.maximum(lacking - gone.freed, 0), short)
