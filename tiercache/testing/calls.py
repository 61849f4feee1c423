"""Calls of verbs as plain numbers, so that a trace is data: kept, replayed, run in one jit.

A call is a name and integers. Prompts are named by one symbol per page, plans by the place that an
earlier `match` put them in, and contents by a key.
"""

import functools
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiercache._append import advance, append
from tiercache._attend import attend
from tiercache._evict import evict
from tiercache._evict_snapshots import evict_snapshots
from tiercache._insert import insert
from tiercache._make_room import make_room
from tiercache._match import match, pin, unpin
from tiercache._mirror import mirror
from tiercache._rehydrate import rehydrate
from tiercache._requantize import requantize
from tiercache._reserve import reserve
from tiercache._retire import retire
from tiercache._rows import fork, release, truncate
from tiercache._snapshot import load_snapshot, save_snapshot
from tiercache.prefix import Namespace
from tiercache.spec import CacheSpec

WIDTH: Final = 24  # tokens per append at most
MAX_RESERVE: Final = 40
MOST: Final = 4  # of what one call evicts, mirrors or packs
NUM_PLANS: Final = 5
NUM_SYMBOLS: Final = 4
NAMESPACES: Final = np.stack([Namespace(tenant="a").lanes(), Namespace(adapter="a").lanes()])

# The static options of a call, by the name it has in a trace.
OPTIONS: Final = {
    "reserve": {"max_tokens": MAX_RESERVE},
    "rehydrate_share": {"cold": "share"},
    "rehydrate_hot": {"cold": "hot"},
    "evict_host": {"most": MOST, "to": "host"},
    "evict_cold": {"most": MOST, "to": "cold"},
    "evict_drop": {"most": MOST, "to": "drop"},
    "evict_slots": {"most": MOST, "to": "drop", "tier": "cold"},
    "evict_snapshots_host": {"most": 3, "to": "host"},
    "evict_snapshots_drop": {"most": 3, "to": "drop"},
    "mirror": {"most": MOST},
    "retire": {"most": 2},
}
VERBS: Final = {
    "reserve": reserve, "append": append, "advance": advance, "fork": fork, "truncate": truncate,
    "release": release, "match": match, "pin": pin, "unpin": unpin, "insert": insert,
    "rehydrate_share": rehydrate, "rehydrate_hot": rehydrate, "load_snapshot": load_snapshot,
    "save_snapshot": save_snapshot, "mirror": mirror, "evict_host": evict, "evict_cold": evict,
    "evict_drop": evict, "evict_slots": evict, "evict_snapshots_host": evict_snapshots,
    "evict_snapshots_drop": evict_snapshots, "make_room": make_room, "requantize": requantize,
    "retire": retire, "attend": attend,
}  # fmt: skip


@functools.cache
def signature(spec: CacheSpec) -> dict[str, tuple[int, ...]]:
    """What each call that `spec` allows takes: per argument 0 for a number, n for a list of n."""
    rows, prompt = spec.max_rows, spec.max_pages
    found = {
        "reserve": (rows,),
        "append": (rows, 0, 0),  # counts, key, -1 or row * 3 + which of `NOT_FINITE`
        "advance": (rows,),
        "fork": (0, 0),
        "truncate": (0, 0),
        "release": (0,),
        "match": (0, prompt, 0, 0),  # where the plan goes, symbols, length, namespace
        "pin": (0, 0),  # plan, lease
        "unpin": (0,),
        "insert": (0, prompt, 0),  # row, symbols, namespace
        "rehydrate_share": (0, 0),  # plan, row
        "rehydrate_hot": (0, 0),
        "load_snapshot": (0, 0),
        "evict_drop": (0,),
    }
    if spec.num_host_pages:
        found |= {"mirror": (0,), "evict_host": (0,), "make_room": (0, 0)}
    if spec.num_cold_slots:
        found |= {"evict_cold": (0,), "evict_slots": (0,), "requantize": (3,)}
    if spec.keep_tokens is not None:
        found |= {"retire": ()}
    if spec.num_snapshots:
        found |= {"save_snapshot": (2, 2, 2), "evict_snapshots_drop": (0,)}
    if spec.num_host_snapshots and spec.num_snapshots:
        found |= {"evict_snapshots_host": (0,)}
    return found | {"attend": (rows, 0)}  # counts, key: one token of each row that has a count


class Call(NamedTuple):
    """One call of a trace: a name of `signature`, and its arguments."""

    name: str
    args: tuple = ()


def encode(call: Call, spec: CacheSpec) -> list[int]:
    """A call as the words that `run_calls` takes; all calls of a spec take equally many."""
    sizes = signature(spec)
    words = [list(sizes).index(call.name)]
    for size, arg in zip(sizes[call.name], call.args, strict=True):
        values = [arg] if size == 0 else list(arg)
        if len(values) != max(size, 1):
            raise ValueError(f"{call}: {len(values)} numbers, not {size}.")
        words += values
    return words + [0] * (num_words(spec) - len(words))


@functools.cache
def num_words(spec: CacheSpec) -> int:
    return 1 + max(sum(max(size, 1) for size in sizes) for sizes in signature(spec).values())


def decode_args(words, sizes: tuple[int, ...]) -> list:
    """The arguments among a call's words after the first."""
    args, at = [], 0
    for size in sizes:
        args.append(words[at] if size == 0 else words[at : at + size])
        at += max(size, 1)
    return args


def prompt_tokens(symbols, spec: CacheSpec):
    """Token ids of a whole prompt: page by page, `page_size` numbers that begin at 100 * symbol."""
    xp = jnp if isinstance(symbols, jax.Array) else np
    tokens = xp.asarray(symbols, dtype=np.int32)[:, None] * 100 + np.arange(spec.page_size)
    return tokens.reshape(-1).astype(np.int32)
