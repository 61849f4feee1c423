"""Allocation by reference count, and the loops that move whole pages between tiers.

Loops run as many times as there are pages to move, so an update touches only those: no id that does
not exist is ever written, and the memory in flight is one page.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, UInt8

from pallas_kernels.banks import read_record, write_record
from pallas_kernels.page_layout import (
    PageLayout,
    Payload,
    page_to_record,
    read_page,
    record_to_page,
    write_page,
)

NOTHING = 2**30  # past every pool


def num_true(mask: Bool[Array, "..."]) -> Int32[Array, ""]:
    """How many are true, as int32."""
    return jnp.sum(mask, dtype=jnp.int32)


def take_free(free: Bool[Array, "slot"], wanted: Bool[Array, "n"]) -> Int32[Array, "n"]:
    """Gives each wanted place a free id of its own, lowest first; `NOTHING` where none is left."""
    size = min(free.shape[0], wanted.shape[0])
    if size == 0:
        return jnp.full(wanted.shape, NOTHING, jnp.int32)
    (ids,) = jnp.nonzero(free, size=size, fill_value=NOTHING)
    rank = jnp.cumsum(wanted, dtype=jnp.int32) - 1
    rank = jnp.where(wanted, rank, NOTHING)
    return ids.astype(jnp.int32).at[rank].get(mode="fill", fill_value=NOTHING)


def compact(mask: Bool[Array, "n"], *columns: Int32[Array, "n"]):
    """(number of true, the columns with the true places first, in order)."""
    (order,) = jnp.nonzero(mask, size=mask.shape[0], fill_value=NOTHING)
    taken = [c.at[order].get(mode="fill", fill_value=NOTHING) for c in columns]
    return num_true(mask), *taken


def store_pages(
    payload: Payload,
    bank: UInt8[Array, "slots bytes"],
    page_ids: Int32[Array, "n"],
    slot_ids: Int32[Array, "n"],
    mask: Bool[Array, "n"],
) -> UInt8[Array, "slots bytes"]:
    """Copies pages, as records, to slots of a bank where `mask` holds; both ids exist there."""
    if not page_ids.size:
        return bank
    number, page_ids, slot_ids = compact(mask, page_ids, slot_ids)

    def body(i, bank):
        return write_record(bank, slot_ids[i], page_to_record(read_page(payload, page_ids[i])))

    return lax.fori_loop(0, number, body, bank)


def load_pages(
    payload: Payload,
    bank: UInt8[Array, "slots bytes"],
    page_ids: Int32[Array, "n"],
    slot_ids: Int32[Array, "n"],
    mask: Bool[Array, "n"],
    layout: PageLayout,
) -> Payload:
    """Copies records of a bank into pages where `mask` holds; both ids must exist there."""
    if not page_ids.size:
        return payload
    number, page_ids, slot_ids = compact(mask, page_ids, slot_ids)

    def body(i, payload):
        page = record_to_page(layout, read_record(bank, slot_ids[i]))
        return write_page(payload, page_ids[i], page)

    return lax.fori_loop(0, number, body, payload)


def copy_pages(
    payload: Payload,
    source_ids: Int32[Array, "n"],
    target_ids: Int32[Array, "n"],
    mask: Bool[Array, "n"],
) -> Payload:
    """Copies pages within the pool where `mask` holds; both ids must exist there."""
    number, source_ids, target_ids = compact(mask, source_ids, target_ids)

    def body(i, payload):
        return write_page(payload, target_ids[i], read_page(payload, source_ids[i]))

    return lax.fori_loop(0, number, body, payload)
