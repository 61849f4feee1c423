"""Packing into host memory by way of a few records on the device.

A kernel that packs also returns which pages were finite, and one kernel cannot return arrays of two
memories.
"""

from collections.abc import Callable
from typing import Final

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32, UInt8

from pallas_kernels.page_copy import pallas as page_copy
from pallas_kernels.page_copy.pairs import Pairs

STAGED_PAGES: Final = 64  # records on the device at a time


def pack_to_host(
    pack_some: Callable, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, interpret: bool = False
) -> tuple[UInt8[Array, "slots bytes"], Int32[Array, "n"]]:
    """Packs as many pages at a time as are staged, and copies their records to the bank.

    Args:
      pack_some: (a device bank without a trash slot, pairs) -> (the bank, the flags).
      bank: in pinned host memory.
      pairs: pages and slots.
      interpret: whether the copies are interpreted.
    """
    most = min(STAGED_PAGES, pairs.sources.shape[0])
    lack = -pairs.sources.shape[0] % most
    lists = [jnp.pad(x, (0, lack)) for x in (pairs.sources, pairs.targets, pairs.places)]
    staged = jnp.arange(most, dtype=jnp.int32)

    def turn(i, carry):
        bank, flags = carry
        first, number = i * most, jnp.minimum(pairs.number - i * most, most)
        pages, slots, places = (lax.dynamic_slice_in_dim(x, first, most) for x in lists)
        staging = lax.empty((most, bank.shape[1]), jnp.uint8)
        staging, flags = pack_some(staging, Pairs(number, pages, staged, places, flags))
        records = Pairs(number, staged, slots, places, flags)
        bank = page_copy.store_records((staging,), bank, records, axis=0, interpret=interpret)
        return bank, flags

    turns = (pairs.number + most - 1) // most
    return lax.fori_loop(0, turns, turn, (bank, pairs.flags))
