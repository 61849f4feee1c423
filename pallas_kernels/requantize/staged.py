"""Packing into host memory by way of a few records on the device.

A kernel that packs also returns which pages were finite, and one kernel cannot return arrays of two
memories.
"""

from collections.abc import Callable
from typing import Final

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, UInt8

from pallas_kernels.page_copy import pallas as page_copy
from pallas_kernels.page_copy.pairs import Pairs

STAGED_PAGES: Final = 64  # records on the device at a time


def pack_to_host(
    pack_some: Callable, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, interpret: bool = False
) -> tuple[UInt8[Array, "slots bytes"], Bool[Array, "n"]]:
    """Packs as many pages at a time as are staged, and copies their records to the bank.

    Args:
      pack_some: (a device bank without a trash slot, pairs) -> (the bank, per pair whether finite).
      bank: in pinned host memory.
      pairs: pages and slots.
      interpret: whether the copies are interpreted.
    """
    most = min(STAGED_PAGES, pairs.sources.shape[0])
    lack = -pairs.sources.shape[0] % most
    sources, targets = (jnp.pad(x, (0, lack)) for x in (pairs.sources, pairs.targets))
    staged_ids = jnp.arange(most, dtype=jnp.int32)

    def turn(i, carry):
        bank, finite = carry
        first, number = i * most, jnp.minimum(pairs.number - i * most, most)
        some = [lax.dynamic_slice_in_dim(x, first, most) for x in (sources, targets)]
        staging = lax.empty((most, bank.shape[1]), jnp.uint8)
        staging, ok = pack_some(staging, Pairs(number, some[0], staged_ids, staged_ids))
        staged = Pairs(number, staged_ids, some[1], staged_ids)
        bank = page_copy.store_records((staging,), bank, staged, axis=0, interpret=interpret)
        return bank, lax.dynamic_update_slice_in_dim(finite, ok, first, 0)

    turns = (pairs.number + most - 1) // most
    bank, finite = lax.fori_loop(0, turns, turn, (bank, jnp.ones(sources.shape, bool)))
    return bank, finite[: pairs.sources.shape[0]]
