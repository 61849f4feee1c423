"""Why a verb refused: values that travel through `jit`, and their texts.

A verb that cannot do what it was asked returns the state as it was, a `Reason` in its `Info`, and
sets the reason's bit in the sticky `status` word of the state. `explain` and `status_texts` decode
both outside `jit`.
"""

import enum

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, UInt32


class Reason(enum.IntEnum):
    """Reason codes; `OK` is zero. Codes are below 32: each has a bit in the status word."""

    OK = 0
    PAGES_FULL = 1
    SLOTS_FULL = 2
    HOST_PAGES_FULL = 3
    SNAPSHOTS_FULL = 4
    HOST_SNAPSHOTS_FULL = 5
    NODES_FULL = 6
    BUCKET_FULL = 7
    ROW_FULL = 8
    ROW_BUSY = 9
    ROW_EMPTY = 10
    NOT_RESERVED = 11
    NOT_PINNED = 12
    STALE_PLAN = 13
    LEASE_BUSY = 14
    NOT_HELD = 15
    ALL_PINNED = 16
    NOT_FINITE = 17
    BELOW_COMMITTED = 18
    DEPTH_MISMATCH = 19
    OVERSIZE = 20
    BAD_ID = 21
    TOKENS_MISMATCH = 22
    OPEN_PAGE = 23


TEXTS = {
    Reason.OK: "done",
    Reason.PAGES_FULL: "the device pool has too few free pages: evict, retire or release some",
    Reason.SLOTS_FULL: "there are too few free cold slots: raise num_cold_slots or drop cold pages",
    Reason.HOST_PAGES_FULL: "the host page bank is full and what it holds is pinned",
    Reason.SNAPSHOTS_FULL: "no free device snapshot: evict_snapshots first, or raise num_snapshots",
    Reason.HOST_SNAPSHOTS_FULL: "the host snapshot bank is full and what it holds is pinned",
    Reason.NODES_FULL: "the prefix index has too few free nodes: raise num_nodes, or evict",
    Reason.BUCKET_FULL: "a hash bucket of the prefix index is full: raise num_nodes",
    Reason.ROW_FULL: "the row would grow past max_pages",
    Reason.ROW_BUSY: "the row already holds tokens: release it first",
    Reason.ROW_EMPTY: "the row holds no tokens",
    Reason.NOT_RESERVED: "the row has no exclusive pages for these tokens: reserve first",
    Reason.NOT_PINNED: "the plan is not pinned under this row: pin it first",
    Reason.STALE_PLAN: "the plan names nodes that have changed since: match again",
    Reason.LEASE_BUSY: "the lease already holds a path: unpin it first",
    Reason.NOT_HELD: "the lease holds nothing",
    Reason.ALL_PINNED: "everything that could leave is pinned by a row or a plan",
    Reason.NOT_FINITE: "a page holds infinities or NaNs: it stays where it was",
    Reason.BELOW_COMMITTED: "tokens below the committed length cannot be dropped",
    Reason.DEPTH_MISMATCH: "a snapshot's depth is not the depth it would be used at",
    Reason.OVERSIZE: "the prefix was shortened to the longest affordable part with a snapshot",
    Reason.BAD_ID: "an id is out of range",
    Reason.TOKENS_MISMATCH: "the tokens are not those of the path that the row shares",
    Reason.OPEN_PAGE: "a running row has not filled the page yet",
}


def explain(code: int | Array) -> str:
    """The text of one reason code read outside `jit`."""
    return TEXTS[Reason(int(code))]


def first_reason(*pairs: tuple[Array, Reason]) -> Int32[Array, "..."]:
    """The first reason whose condition holds, else `OK`. Conditions broadcast."""
    code = jnp.int32(Reason.OK)
    for condition, reason in reversed(pairs):
        code = jnp.where(condition, jnp.int32(reason), code)
    return code


def reason_bit(code: Int32[Array, "..."]) -> UInt32[Array, ""]:
    """The status bits of one or many reason codes; zero for `OK`."""
    bits = jnp.where(code > 0, jnp.uint32(1) << code.astype(jnp.uint32), jnp.uint32(0))
    return jnp.bitwise_or.reduce(bits.reshape(-1))


def status_texts(status: int | Array) -> list[str]:
    """The texts of every refusal that the sticky status word remembers, outside `jit`."""
    word = int(np.asarray(status))
    return [text for reason, text in TEXTS.items() if reason and word >> reason & 1]
