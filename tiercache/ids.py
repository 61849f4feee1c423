"""Ids that do not exist, and the values of a block-table entry.

Every id space counts from zero. An id that does not exist is `2**30`, past the end of every array:
a scatter with `mode="drop"` leaves it out and a gather with `mode="fill"` fills it. It is never
negative, since JAX takes a negative index from the end.

An *entry* is a value, never an index: `>= 0` is a hot page id, `HOLE` is no device copy, and
`<= -2` is cold slot `-2 - entry`. Decode an entry before anything is indexed with it.
"""

from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Int32

NO_PAGE: Final = 2**30
NO_SLOT: Final = 2**30
NO_HOST: Final = 2**30
NO_SNAP: Final = 2**30
NO_NODE: Final = 2**30
NO_ROW: Final = 2**30
NO_LEASE: Final = 2**30

HOLE: Final = -1


def slot_to_entry(slot_ids: Int32[Array, "*shape"]) -> Int32[Array, "*shape"]:
    """The entries of cold slots: `-2 - slot`, and `HOLE` for ids that do not exist."""
    exists = (slot_ids >= 0) & (slot_ids < NO_SLOT)
    return jnp.where(exists, -2 - slot_ids, HOLE)


def entry_to_slot(entries: Int32[Array, "*shape"]) -> Int32[Array, "*shape"]:
    """The cold slot ids of entries: `NO_SLOT` where an entry is not cold."""
    return jnp.where(entries < HOLE, -2 - entries, NO_SLOT)


def entry_to_page(entries: Int32[Array, "*shape"]) -> Int32[Array, "*shape"]:
    """The hot page ids of entries: `NO_PAGE` where an entry is not hot."""
    return jnp.where(entries >= 0, entries, NO_PAGE)
