"""Which nodes give up a copy first."""

from collections.abc import Callable
from typing import Final

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from tiercache.ids import NO_NODE
from tiercache.prefix.arrays import gather, keep_ids
from tiercache.prefix.index import FREE, PrefixIndex, max_pages

_SORT_UP_TO: Final = (
    4096  # nodes; a larger index is searched first (CPU: 20 ms against 1 at 65,536)
)
_NEVER: Final = 2**31 - 1


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
    node_ids = keep_ids(jnp.arange(num_nodes, dtype=jnp.int32), eligible)
    if num_nodes > _SORT_UP_TO:
        node_ids = _unordered(index, eligible, want)
    ages = gather(index.last_use, node_ids, _NEVER)
    depths = gather(index.depth, node_ids, FREE)
    return lax.sort((ages, -depths, node_ids), num_keys=3)[2][:want]


def _unordered(
    index: PrefixIndex, eligible: Bool[Array, "node"], want: int
) -> Int32[Array, "want"]:
    """The victims by ascending node id: all before a threshold, and of those at it the first.

    The threshold is found by halving, first of the age, then of the depth among equal ages; what
    is then equal in both goes by node id.
    """

    def num(flags: Bool[Array, "node"]) -> Int32[Array, ""]:
        return jnp.sum(flags, dtype=jnp.int32)

    age = _least(lambda age: num(eligible & (index.last_use <= age)) >= want, 31)
    surely = eligible & (index.last_use < age)
    equal = eligible & (index.last_use == age)
    left = want - num(surely)

    # `shallow` counts up from the greatest depth.
    bits = max_pages(index).bit_length()
    shallow = max_pages(index) - index.depth
    level = _least(lambda level: num(equal & (shallow <= level)) >= left, bits)
    surely |= equal & (shallow < level)
    equal &= shallow == level
    left = want - num(surely)

    chosen = surely | (equal & (jnp.cumsum(equal, dtype=jnp.int32) <= left))
    place = jnp.arange(1, want + 1, dtype=jnp.int32)
    found = jnp.searchsorted(jnp.cumsum(chosen, dtype=jnp.int32), place).astype(jnp.int32)
    return jnp.where(found < chosen.shape[0], found, NO_NODE)


def _least(reaches: Callable[[Array], Array], bits: int) -> Int32[Array, ""]:
    """The least number of so many bits that `reaches`; all ones if none does."""

    def halve(step, low):
        middle = low + ((1 << (bits - 1)) >> step) - 1
        return jnp.where(reaches(middle), low, middle + 1)

    return lax.fori_loop(0, bits, halve, jnp.int32(0))
