"""Which items go where: two lists of ids, of which only some pairs exist."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int32

_NOWHERE = 2**30


class Pairs(NamedTuple):
    """Pairs of ids that exist, first ones first.

    Attributes:
      number: how many there are.
      sources, targets: their ids; past `number`, anything.
      places: where in the lists each stood; past `number`, past the lists' end.
    """

    number: Int32[Array, ""]
    sources: Int32[Array, "n"]
    targets: Int32[Array, "n"]
    places: Int32[Array, "n"]


def existing(
    source_ids: Int32[Array, "n"], num_sources: int, target_ids: Int32[Array, "n"], num_targets: int
) -> Pairs:
    """The pairs of which both ids exist, in order: sentinels are skipped, never clamped.

    Raises:
      ValueError: while tracing, if the lists have different lengths.
    """
    if source_ids.shape != target_ids.shape:
        raise ValueError(f"{source_ids.shape} sources for {target_ids.shape} targets.")
    exist = (source_ids >= 0) & (source_ids < num_sources)
    exist &= (target_ids >= 0) & (target_ids < num_targets)
    rank = jnp.where(exist, jnp.cumsum(exist, dtype=jnp.int32) - 1, _NOWHERE)
    places = jnp.full(source_ids.shape, _NOWHERE, jnp.int32)
    places = places.at[rank].set(jnp.arange(rank.shape[0], dtype=jnp.int32), mode="drop")
    return Pairs(
        jnp.sum(exist, dtype=jnp.int32),
        source_ids.at[places].get(mode="fill", fill_value=0),
        target_ids.at[places].get(mode="fill", fill_value=0),
        places,
    )
