"""The prefix index: which prefixes are known, and where their copies are.

A trie of pages in flat arrays, so that it is a pytree like all else. Every function is pure and
works under `jit`, `vmap`, `scan` and `eval_shape`; a refusal is a value and leaves the index as it
was.
"""

from tiercache.prefix._check import PrefixCheck, check
from tiercache.prefix._drop_dead import drop_dead, stranded_snapshots
from tiercache.prefix._extend import ExtendInfo, can_extend, extend
from tiercache.prefix._match import Plan, match
from tiercache.prefix._pin import PinInfo, pin, repin, unpin
from tiercache.prefix._touch import touch
from tiercache.prefix._victims import victims
from tiercache.prefix.codes import (
    CUT_EMPTY,
    CUT_NONE,
    CUT_PAGE,
    CUT_SNAPSHOT,
    CUT_TEXTS,
    CUT_UNKNOWN,
    SNAPSHOT_DEVICE,
    SNAPSHOT_HOST,
    SNAPSHOT_NONE,
    SOURCE_COLD,
    SOURCE_HOST,
    SOURCE_HOT,
    SOURCE_NONE,
)
from tiercache.prefix.copies import (
    AttachInfo,
    attach_host_snapshot,
    attach_snapshot,
    has_copy,
    live_children,
    relocate,
    set_entries,
    set_host_ids,
    set_host_snapshots,
    set_snapshots,
)
from tiercache.prefix.index import PrefixIndex, init_index, max_pages, num_free_nodes
from tiercache.prefix.keys import prefix_keys
from tiercache.prefix.namespace import Namespace

__all__ = [
    "CUT_EMPTY",
    "CUT_NONE",
    "CUT_PAGE",
    "CUT_SNAPSHOT",
    "CUT_TEXTS",
    "CUT_UNKNOWN",
    "SNAPSHOT_DEVICE",
    "SNAPSHOT_HOST",
    "SNAPSHOT_NONE",
    "SOURCE_COLD",
    "SOURCE_HOST",
    "SOURCE_HOT",
    "SOURCE_NONE",
    "AttachInfo",
    "ExtendInfo",
    "Namespace",
    "PinInfo",
    "Plan",
    "PrefixCheck",
    "PrefixIndex",
    "attach_host_snapshot",
    "attach_snapshot",
    "can_extend",
    "check",
    "drop_dead",
    "extend",
    "has_copy",
    "init_index",
    "live_children",
    "match",
    "max_pages",
    "num_free_nodes",
    "pin",
    "prefix_keys",
    "relocate",
    "repin",
    "set_entries",
    "set_host_ids",
    "set_host_snapshots",
    "set_snapshots",
    "stranded_snapshots",
    "touch",
    "unpin",
    "victims",
]
