"""Recency: touching a node touches its path."""

from typing import Final

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32

from tiercache.ids import NO_NODE
from tiercache.prefix.arrays import gather, keep_ids, put
from tiercache.prefix.index import FREE, PrefixIndex

_NEVER: Final = 2**31 - 1


def stamp(
    index: PrefixIndex, path_ids: Int32[Array, "path"], ticks: Int32[Array, ""]
) -> PrefixIndex:
    """Advances the clock by `ticks` and marks a whole path, its root included, as used now."""
    clock = index.clock + ticks
    return index._replace(last_use=put(index.last_use, path_ids, clock), clock=clock)


def touch(index: PrefixIndex, node_ids: Int32[Array, "touched"]) -> PrefixIndex:
    """Marks nodes and all nodes above them as used now; the clock advances by one.

    For a path from depth 1 down, as a plan holds it, one step above it reaches the root; single
    nodes cost one step a page of depth.

    Args:
      index: the known prefixes.
      node_ids: nodes; NO_NODE, and ids of free nodes, are left out.
    """
    now = index.clock + 1

    def climb(carry):
        node_ids, last_use = carry
        last_use = put(last_use, node_ids, now)
        above = gather(index.parent, node_ids, NO_NODE)
        return keep_ids(above, gather(last_use, above, _NEVER) < now), last_use

    used = keep_ids(node_ids, gather(index.depth, node_ids, FREE) > FREE)
    _, last_use = lax.while_loop(
        lambda carry: jnp.any(carry[0] < NO_NODE), climb, (used, index.last_use)
    )
    return index._replace(last_use=last_use, clock=now)
