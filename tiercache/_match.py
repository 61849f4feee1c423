"""`match`, `pin` and `unpin` on the whole state, and what a plan would move."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt32

from tiercache import prefix
from tiercache.ids import HOLE, NO_LEASE, NO_NODE
from tiercache.prefix import PinInfo, Plan
from tiercache.prefix.arrays import gather
from tiercache.reasons import Reason, first_reason
from tiercache.spec import CacheSpec, bytes_per_page, bytes_per_snapshot
from tiercache.state import CacheState, count


def match(
    state: CacheState,
    tokens: Int32[Array, "tokens"],
    length: Int32[Array, ""],
    namespace: UInt32[Array, "16"],
    *,
    spec: CacheSpec,
) -> Plan:
    """The deepest depth that a prompt can be resumed at, over all tiers. Changes nothing.

    Joint: every page below the depth has a copy and, if the model has recurrent state, a snapshot
    of exactly that depth exists. The last token is never matched.

    Args:
      state: the cache.
      tokens: the prompt, padded to `spec.max_tokens`.
      length: tokens that count.
      namespace: `Namespace(...).lanes()`.
      spec: the geometry.
    """
    return prefix.match(state.index, tokens, length, namespace, needs_snapshot=spec.needs_snapshot)


def pin(state: CacheState, plan: Plan, lease_id: Int32[Array, ""]) -> tuple[CacheState, PinInfo]:
    """Protects every copy that a plan counts on, under a lease; a row's lease has the row's id.

    Refused with `STALE_PLAN` if the index has changed under the plan, with `LEASE_BUSY` if the
    lease holds a path, and with `ROW_BUSY` if it is that of a row that holds pages: a row's lease
    is the path of its own pages.
    """
    free = gather(state.index.leases, lease_id, NO_NODE)[0] == NO_NODE
    busy = _has_pages(state, lease_id) & free
    index, info = prefix.pin(state.index, plan, jnp.where(busy, NO_LEASE, lease_id))
    return _pinned(state, index, busy, info)


def unpin(state: CacheState, lease_id: Int32[Array, ""]) -> tuple[CacheState, PinInfo]:
    """Gives a lease up. Refused with `NOT_HELD` if it holds nothing.

    Refused with `ROW_BUSY` for the lease of a row that holds pages: `release` the row instead,
    since what a row uses stays pinned.
    """
    busy = _has_pages(state, lease_id)
    index, info = prefix.unpin(state.index, jnp.where(busy, NO_LEASE, lease_id))
    return _pinned(state, index, busy, info)


def _has_pages(state: CacheState, lease_id: Int32[Array, ""]) -> Bool[Array, ""]:
    """Whether the lease is that of a row that holds pages."""
    return jnp.any(gather(state.table.entries, lease_id, HOLE) != HOLE)


def _pinned(state: CacheState, index, busy: Bool[Array, ""], info: PinInfo):
    reason = first_reason((busy, Reason.ROW_BUSY))
    reason = jnp.where(busy, reason, info.reason)
    info = PinInfo(reason == Reason.OK, reason)
    return state._replace(index=index, counters=count(state.counters, reason)), info


def plan_bytes(plan: Plan, spec: CacheSpec) -> dict[str, int]:
    """Bytes that a plan would move into device pages and live state, by source; outside `jit`."""
    has_snapshot = int(plan.num_pages) > 0 and spec.needs_snapshot
    from_host = int(plan.snapshot_source) == prefix.SNAPSHOT_HOST
    snapshot = bytes_per_snapshot(spec) if has_snapshot else 0
    return {
        "host_pages": int(plan.num_host) * bytes_per_page(spec, "device"),
        "cold_pages": int(plan.num_cold) * bytes_per_page(spec, "cold"),
        "host_snapshot": snapshot if from_host else 0,
        "device_snapshot": 0 if from_host else snapshot,
    }
