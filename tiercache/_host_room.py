"""Which copies go to host memory and which leave it, so that the oldest are the ones without."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from tiercache._remove import node_mask
from tiercache._transfer import num_true
from tiercache.prefix import PrefixIndex, victims


class HostRoom(NamedTuple):
    """An answer over the listed newcomers and all nodes.

    Attributes:
      stored: newcomers that get a host slot.
      outlived: newcomers that are older than all that would have to go for them: they go.
      refused: newcomers for which nothing may go: what the host holds is pinned.
      evicted: nodes whose host copy goes.
    """

    stored: Bool[Array, "n"]
    outlived: Bool[Array, "n"]
    refused: Bool[Array, "n"]
    evicted: Bool[Array, "node"]


def host_room(
    index: PrefixIndex,
    newcomers: Int32[Array, "n"],
    asking: Bool[Array, "n"],
    removable: Bool[Array, "node"],
    num_free: Int32[Array, ""],
    choose=victims,
) -> HostRoom:
    """Chooses who is in host memory, newcomers and residents together, by the one order.

    Args:
      index: the index.
      newcomers: nodes in victim order, oldest first.
      asking: which of them want a host slot.
      removable: nodes whose host copy may go: none that is pinned.
      num_free: free host slots.
      choose: the order, as `prefix.victims`; static.
    """
    places = num_free + num_true(removable)
    taken = asking & (jnp.cumsum(asking) <= places)
    surplus = jnp.maximum(num_true(taken) - num_free, 0)
    # Pinned newcomers (a mirror's) are in use, and so outlive nothing: `victims` leaves them out.
    rivals = removable | node_mask(index, newcomers, taken)
    oldest = choose(index, rivals, want=min(newcomers.shape[0], index.depth.shape[0]))
    leaving = jnp.arange(oldest.shape[0]) < surplus
    gone = node_mask(index, oldest, leaving)
    outlived = taken & gone.at[newcomers].get(mode="fill", fill_value=False)
    return HostRoom(taken & ~outlived, outlived, asking & ~taken, gone & removable)
