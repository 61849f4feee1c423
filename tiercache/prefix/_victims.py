"""Which nodes give up a copy first."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from tiercache.prefix.arrays import keep_ids
from tiercache.prefix.index import FREE, PrefixIndex


def victims(
    index: PrefixIndex, score_mask: Bool[Array, "node"], *, want: int
) -> Int32[Array, "want"]:
    """The first eligible nodes in the order (oldest `last_use`, deepest, lowest node id).

    A child is never used later than its parent and lies deeper, so it comes before its parent.

    Args:
      index: the known prefixes.
      score_mask: nodes that may be taken; pinned and free ones are left out of these.
      want: most nodes to take, in [1, num_nodes]; static.

    Returns:
      Node ids in order, NO_NODE after the last.

    Raises:
      ValueError: while tracing, if `want` is out of range.
    """
    (num_nodes,) = index.depth.shape
    if not 1 <= want <= num_nodes:
        raise ValueError(f"want={want} is not in [1, {num_nodes}].")
    eligible = score_mask & (index.pins == 0) & (index.depth > FREE)
    node_ids = jnp.arange(num_nodes, dtype=jnp.int32)
    ages = jnp.where(eligible, index.last_use, jnp.iinfo(jnp.int32).max)
    *_, order = lax.sort((ages, -index.depth, keep_ids(node_ids, eligible)), num_keys=3)
    return order[:want]
