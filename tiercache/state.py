"""The state of a cache: NamedTuples of arrays. Geometry is read from the spec or from shapes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, Shaped, UInt8, UInt32

from pallas_kernels.banks import default_device, is_host, make_bank
from pallas_kernels.page_layout import Payload, empty_payload
from tiercache.ids import HOLE, NO_NODE
from tiercache.prefix import PrefixIndex, init_index
from tiercache.reasons import reason_bit
from tiercache.spec import CacheSpec, bytes_per_page, bytes_per_snapshot

FREE = -1  # in `owner` arrays: nobody's


class PagePool(NamedTuple):
    """Device pages. A page is free exactly when nothing refers to it, so no free list can disagree.

    Attributes:
      payload: per format in use, codes and scales, [page, plane, head, token, width].
      refs: row entries plus index nodes that name the page.
    """

    payload: Payload
    refs: Int32[Array, "page"]


class ColdPool(NamedTuple):
    """Cold slots, in device or pinned host memory.

    Attributes:
      bank: one record per slot, and the trash slot.
      refs: row entries plus index nodes that name the slot.
    """

    bank: UInt8[Array, "slots bytes"]
    refs: Int32[Array, "slot"]


class SnapshotPool(NamedTuple):
    """Cached recurrent states on the device; written once, never by a running row.

    Attributes:
      leaves: per recurrent leaf, [slot, ...].
      tokens: the exact depth of each snapshot, in tokens.
      owner: `FREE`; a row id while it waits for `insert`; -2 - node id once it hangs at a node.
    """

    leaves: tuple[Shaped[Array, "slot ..."], ...]
    tokens: Int32[Array, "slot"]
    owner: Int32[Array, "slot"]


class HostPool(NamedTuple):
    """Exact copies in pinned host memory; each belongs to one node of the index.

    Attributes:
      pages: one record per host page, and the trash slot.
      page_node: the node of each host page, `NO_NODE` where free.
      snapshots: one record per host snapshot, and the trash slot.
      snapshot_node: the node of each host snapshot, `NO_NODE` where free.
    """

    pages: UInt8[Array, "host_pages bytes"]
    page_node: Int32[Array, "host_page"]
    snapshots: UInt8[Array, "host_snapshots bytes"]
    snapshot_node: Int32[Array, "host_snapshot"]


class BlockTable(NamedTuple):
    """What each row attends to.

    Attributes:
      entries: >= 0 a hot page; -1 a hole, masked; <= -2 the cold slot -2 - entry.
      lengths: tokens of each row; 0 where the row is free.
      committed: tokens at a row's start that `truncate` may not drop: shared, published or cold.
    """

    entries: Int32[Array, "row page"]
    lengths: Int32[Array, "row"]
    committed: Int32[Array, "row"]


class Counters(NamedTuple):
    """Events since the state was made. Bytes follow from them and the spec: see `traffic`.

    Attributes:
      values: one per `COUNTER_NAMES`.
      status: a bit per `Reason` that a verb has refused for; sticky.
    """

    values: Int32[Array, "counter"]
    status: UInt32[Array, ""]


class CacheState(NamedTuple):
    """The whole cache.

    Attributes:
      pages, cold, snapshots, host: the tiers.
      table: the rows.
      live: the recurrent leaves of the running rows, [layer, row, ...].
      index: which prefixes are known, and where their copies are.
      counters: what happened.
    """

    pages: PagePool
    cold: ColdPool
    snapshots: SnapshotPool
    host: HostPool
    table: BlockTable
    live: tuple[Shaped[Array, "layer row ..."], ...]
    index: PrefixIndex
    counters: Counters


COUNTER_NAMES = (
    "pages_to_host",
    "pages_from_host",
    "pages_to_cold",
    "pages_from_cold",
    "pages_dropped",
    "host_pages_dropped",
    "cold_dropped",
    "snapshots_saved",
    "snapshots_to_host",
    "snapshots_from_host",
    "snapshots_from_device",
    "snapshots_dropped",
    "host_snapshots_dropped",
    "tombstones",
    "nodes_dropped",
    "refused",
)


def init_state(spec: CacheSpec) -> CacheState:
    """An empty cache on the default device. Host banks are in pinned memory, uninitialised.

    All leaves are committed to the device, as the leaves of later states are: the first call of a
    jitted verb compiles for all calls.
    """
    return jax.tree.map(_commit, _init_leaves(spec))


def _commit(leaf):
    if is_host(leaf):
        return leaf
    return jax.device_put(leaf, jax.sharding.SingleDeviceSharding(default_device()))


def _init_leaves(spec: CacheSpec) -> CacheState:
    page, cold = bytes_per_page(spec, "device"), bytes_per_page(spec, "cold")
    pinned = spec.host_memory == "pinned_host"
    snapshot = bytes_per_snapshot(spec)

    def stack(count: int):
        return tuple(jnp.zeros((count, *leaf.shape), leaf.dtype) for leaf in spec.snapshot_leaves)

    return CacheState(
        pages=PagePool(
            empty_payload(spec.hot_layout, spec.num_pages), jnp.zeros(spec.num_pages, jnp.int32)
        ),
        cold=ColdPool(
            make_bank(spec.num_cold_slots, cold, host=pinned and spec.policy == "host"),
            jnp.zeros(spec.num_cold_slots, jnp.int32),
        ),
        snapshots=SnapshotPool(
            stack(spec.num_snapshots),
            jnp.zeros(spec.num_snapshots, jnp.int32),
            jnp.full(spec.num_snapshots, FREE, jnp.int32),
        ),
        host=HostPool(
            make_bank(spec.num_host_pages, page, host=pinned),
            jnp.full(spec.num_host_pages, NO_NODE, jnp.int32),
            make_bank(spec.num_host_snapshots, snapshot, host=pinned),
            jnp.full(spec.num_host_snapshots, NO_NODE, jnp.int32),
        ),
        table=BlockTable(
            jnp.full((spec.max_rows, spec.max_pages), HOLE, jnp.int32),
            jnp.zeros(spec.max_rows, jnp.int32),
            jnp.zeros(spec.max_rows, jnp.int32),
        ),
        live=tuple(
            jnp.zeros((leaf.shape[0], spec.max_rows, *leaf.shape[1:]), leaf.dtype)
            for leaf in spec.snapshot_leaves
        ),
        index=init_index(
            num_nodes=spec.num_nodes,
            page_size=spec.page_size,
            max_pages=spec.max_pages,
            num_leases=spec.num_leases,
        ),
        counters=Counters(jnp.zeros(len(COUNTER_NAMES), jnp.int32), jnp.uint32(0)),
    )


def count(counters: Counters, reason: Int32[Array, "..."] | None = None, **events) -> Counters:
    """Adds events by name, and remembers a refusal: its bit, and one more `refused`."""
    unknown = set(events) - set(COUNTER_NAMES)
    if unknown:
        raise ValueError(f"{sorted(unknown)} are not in COUNTER_NAMES.")
    status = counters.status
    if reason is not None:
        events["refused"] = jnp.sum(reason > 0)
        status = status | reason_bit(reason)
    added = [jnp.asarray(events.get(name, 0), jnp.int32) for name in COUNTER_NAMES]
    return Counters(counters.values + jnp.stack(added), status)


def counter_values(state: CacheState) -> dict[str, int]:
    """The counters by name, outside `jit`."""
    return dict(zip(COUNTER_NAMES, map(int, jax.device_get(state.counters.values)), strict=True))


def traffic(state: CacheState, spec: CacheSpec) -> dict[str, int]:
    """Bytes moved so far over each way, outside `jit`: the counters times the record sizes."""
    counts = counter_values(state)
    page, cold = bytes_per_page(spec, "device"), bytes_per_page(spec, "cold")
    snapshot = bytes_per_snapshot(spec)
    return {
        "device_to_host": counts["pages_to_host"] * page + counts["snapshots_to_host"] * snapshot,
        "host_to_device": counts["pages_from_host"] * page
        + counts["snapshots_from_host"] * snapshot,
        "hot_to_cold": counts["pages_to_cold"] * cold,
        "cold_to_hot": counts["pages_from_cold"] * cold,
        "device_to_device": (counts["snapshots_saved"] + counts["snapshots_from_device"])
        * snapshot,
    }
