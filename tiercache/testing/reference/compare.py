"""Where a state of the library is not what the reference says."""

from collections.abc import Iterator

import jax
import numpy as np

from tiercache.ids import HOLE, NO_HOST, NO_NODE, NO_SNAP
from tiercache.reasons import Reason
from tiercache.state import COUNTER_NAMES, FREE, CacheState
from tiercache.testing.reference.cache import ReferenceCache
from tiercache.testing.reference.index import Node
from tiercache.testing.reference.storage import leaves_record


def differences(reference: ReferenceCache, state: CacheState) -> list[str]:
    """Everything in which the two differ, one line each; none if the state is right.

    What nobody owns is not looked at: bytes of free pages and slots, tokens that no one wrote.
    """
    state = jax.device_get(state)
    parts = (_table, _pools, _index, _leases, _counters, _pages, _records, _states)
    return [line for part in parts for line in part(reference, state)]


def info_differences(expected, actual) -> list[str]:
    """Fields in which the reference's `Info` and a verb's differ."""
    actual = jax.device_get(actual)
    return [
        line
        for name, want, have in zip(expected._fields, expected, actual, strict=True)
        for line in _same(f"{type(expected).__name__}.{name}", want, have)
    ]


def _same(name: str, want, have) -> Iterator[str]:
    want, have = np.asarray(want), np.asarray(have)
    if want.size == 0 and have.size == 0:
        return
    if want.shape != have.shape:
        yield f"{name}: shape {have.shape}, not {want.shape}"
    elif not np.array_equal(want, have):
        where = np.argwhere(np.atleast_1d(want != have))[0].tolist()
        yield f"{name}: {have.tolist()}, not {want.tolist()} (first at {where})"


def _table(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    rows = reference.rows
    yield from _same("table.entries", [row.entries for row in rows], state.table.entries)
    yield from _same("table.lengths", [row.length for row in rows], state.table.lengths)
    yield from _same("table.committed", [row.committed for row in rows], state.table.committed)


def _pools(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    spec = reference.spec
    pages = [reference.names(page_id) for page_id in range(spec.num_pages)]
    slots = [reference.names(-2 - slot_id) for slot_id in range(spec.num_cold_slots)]
    yield from _same("pages.refs", pages, state.pages.refs)
    yield from _same("cold.refs", slots, state.cold.refs)
    owners, depths = [FREE] * spec.num_snapshots, list(state.snapshots.tokens)
    for snap_id, snapshot in reference.snapshots.items():
        owner = snapshot.owner
        owners[snap_id] = -2 - owner.node_id if isinstance(owner, Node) else owner
        depths[snap_id] = snapshot.tokens
    yield from _same("snapshots.owner", owners, state.snapshots.owner)
    yield from _same("snapshots.tokens", depths, state.snapshots.tokens)
    page_node, snapshot_node = [NO_NODE] * spec.num_host_pages, [NO_NODE] * spec.num_host_snapshots
    for node in reference.index.nodes():
        if node.host_id is not None:
            page_node[node.host_id] = node.node_id
        if node.host_snap_id is not None:
            snapshot_node[node.host_snap_id] = node.node_id
    yield from _same("host.page_node", page_node, state.host.page_node)
    yield from _same("host.snapshot_node", snapshot_node, state.host.snapshot_node)


def _index(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    index, spec = state.index, reference.spec
    nodes = {node.node_id: node for node in reference.index.nodes()}
    free = Node(-1, (), None, -1)
    every = [nodes.get(node_id, free) for node_id in range(spec.num_nodes)]

    def ids(name: str, nothing: int) -> list[int]:
        values = [getattr(node, name) for node in every]
        return [nothing if value is None else value for value in values]

    parents = [NO_NODE if node.parent is None else node.parent.node_id for node in every]
    columns = {
        "parent": parents,
        "depth": [node.depth for node in every],
        "children": [len(node.children) for node in every],
        "pins": [reference.index.pins(node) for node in every],
        "last_use": [node.last_use for node in every],
        "epoch": reference.index.epochs,
        "entry": ids("entry", HOLE),
        "host_id": ids("host_id", NO_HOST),
        "snap_id": ids("snap_id", NO_SNAP),
        "host_snap_id": ids("host_snap_id", NO_SNAP),
        "clock": reference.index.clock,
    }
    for name, want in columns.items():
        yield from _same(f"index.{name}", want, getattr(index, name))
    for node_id, node in nodes.items():
        have = index.tokens[node_id][: len(node.tokens)].view(np.uint32)
        want = np.array(node.tokens, np.int64).astype(np.uint32)
        yield from _same(f"index.tokens[{node_id}]", want, have)


def _leases(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    num_leases, width = state.index.leases.shape
    want = np.full((num_leases, width), NO_NODE)
    for lease_id, path in reference.index.leases.items():
        want[lease_id, : len(path)] = [node.node_id for node in path]
    yield from _same("index.leases", want, state.index.leases)


def _counters(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    for name, have in zip(COUNTER_NAMES, state.counters.values, strict=True):
        yield from _same(f"counters.{name}", int(reference.counters[name]), have)
    status = {reason for reason in Reason if reason and int(state.counters.status) >> reason & 1}
    if status != reference.status:
        yield f"counters.status: {sorted(status)}, not {sorted(reference.status)}"


def _pages(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    """Every written token of every page that somebody names."""
    for page_id, page in reference.pages.items():
        written = sorted(page.written)
        for group, pool in zip(reference.spec.hot_layout.groups, state.pages.payload, strict=True):
            for number, where in enumerate(group.planes):
                if where not in page.planes:
                    continue
                for leaf, want in zip(pool, page.planes[where], strict=True):
                    if leaf is None:
                        continue
                    have = np.asarray(leaf)[page_id, number][:, written]
                    if have.tobytes() != want[:, written].tobytes():
                        layer, kv = where
                        kind = "codes" if leaf is pool.codes else "scales"
                        yield f"page {page_id}, layer {layer} {'KV'[kv]}: other {kind}"


def _records(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    for slot_id, page in reference.slots.items():
        if state.cold.bank[slot_id].tobytes() != page.record():
            yield f"cold slot {slot_id}: other bytes"
    for host_id, page in reference.host_pages.items():
        if state.host.pages[host_id].tobytes() != page.record():
            yield f"host page {host_id}: other bytes"
    for host_snap_id, leaves in reference.host_snapshots.items():
        have = state.host.snapshots[host_snap_id].tobytes()
        if leaves is not None and have != leaves_record(leaves):
            yield f"host snapshot {host_snap_id}: other bytes"


def _states(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    for snap_id, snapshot in reference.snapshots.items():
        if snapshot.leaves is None:
            continue
        have = leaves_record(tuple(np.asarray(x)[snap_id] for x in state.snapshots.leaves))
        if have != leaves_record(snapshot.leaves):
            yield f"snapshot {snap_id}: other bytes"
    for row_id, row in enumerate(reference.rows):
        if row.live is None or row.is_empty:
            continue
        have = leaves_record(tuple(np.asarray(x)[:, row_id] for x in state.live))
        if have != leaves_record(row.live):
            yield f"live state of row {row_id}: other bytes"
