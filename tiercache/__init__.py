"""A functional, tiered cache of attention KV pages and recurrent-state snapshots in JAX.

The whole cache is an immutable pytree, `CacheState`. Every verb is a pure function
`verb(state, ..., spec=spec) -> (state, info)` that works under `jit`, `vmap`, `scan` and
`eval_shape`; queries return a value. The library neither jits nor donates: the caller's outermost
`jit` does. `Cache(spec)` has the same verbs with the spec bound.
"""

from tiercache import prefix
from tiercache._append import AdvanceInfo, AppendInfo, advance, append, is_writable
from tiercache._attend import attend
from tiercache._check import check, failures, num_unreachable_pages
from tiercache._evict import EvictInfo, evict
from tiercache._evict_snapshots import EvictSnapshotsInfo, evict_snapshots
from tiercache._insert import InsertInfo, insert
from tiercache._make_room import RoomInfo, make_room
from tiercache._match import match, pin, plan_bytes, unpin
from tiercache._mirror import MirrorInfo, mirror
from tiercache._placement import place_index, with_index
from tiercache._rehydrate import RehydrateInfo, rehydrate
from tiercache._requantize import RequantizeInfo, requantize
from tiercache._reserve import ReserveInfo, reserve
from tiercache._retire import RetireInfo, retire
from tiercache._rows import RowInfo, fork, release, truncate
from tiercache._snapshot import LoadInfo, SaveInfo, load_snapshot, save_snapshot
from tiercache._view import View, view
from tiercache.cache import Cache
from tiercache.ids import HOLE, NO_HOST, NO_LEASE, NO_NODE, NO_PAGE, NO_ROW, NO_SLOT, NO_SNAP
from tiercache.policies import SnapshotPlacement, decode_boundaries, snapshot_boundaries
from tiercache.prefix import Namespace, Plan
from tiercache.reasons import Reason, explain, status_texts
from tiercache.spec import (
    CacheSpec,
    SnapshotLeaf,
    bytes_per_page,
    bytes_per_snapshot,
    tier_bytes,
    with_budgets,
)
from tiercache.state import (
    BlockTable,
    CacheState,
    ColdPool,
    Counters,
    HostPool,
    PagePool,
    SnapshotPool,
    counter_values,
    init_state,
    traffic,
)

__all__ = [
    "AdvanceInfo",
    "AppendInfo",
    "BlockTable",
    "Cache",
    "CacheSpec",
    "CacheState",
    "ColdPool",
    "Counters",
    "EvictInfo",
    "EvictSnapshotsInfo",
    "HOLE",
    "HostPool",
    "InsertInfo",
    "LoadInfo",
    "MirrorInfo",
    "NO_HOST",
    "NO_LEASE",
    "NO_NODE",
    "NO_PAGE",
    "NO_ROW",
    "NO_SLOT",
    "NO_SNAP",
    "Namespace",
    "PagePool",
    "Plan",
    "Reason",
    "RehydrateInfo",
    "RequantizeInfo",
    "ReserveInfo",
    "RoomInfo",
    "RetireInfo",
    "RowInfo",
    "SaveInfo",
    "SnapshotLeaf",
    "SnapshotPlacement",
    "SnapshotPool",
    "View",
    "advance",
    "append",
    "attend",
    "bytes_per_page",
    "bytes_per_snapshot",
    "check",
    "counter_values",
    "decode_boundaries",
    "evict",
    "evict_snapshots",
    "explain",
    "failures",
    "fork",
    "init_state",
    "insert",
    "is_writable",
    "load_snapshot",
    "make_room",
    "match",
    "mirror",
    "num_unreachable_pages",
    "pin",
    "place_index",
    "plan_bytes",
    "prefix",
    "rehydrate",
    "release",
    "requantize",
    "reserve",
    "retire",
    "save_snapshot",
    "snapshot_boundaries",
    "status_texts",
    "tier_bytes",
    "traffic",
    "truncate",
    "unpin",
    "view",
    "with_budgets",
    "with_index",
]
