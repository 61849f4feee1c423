"""The numbers of a state by name, and what the reference says that they are.

Bytes are not among them, nor numbers that nobody owns: the depth of a free snapshot is zero here.
"""

from collections import Counter

import jax.numpy as jnp
import numpy as np

from tiercache.ids import NO_HOST, NO_NODE, NO_SNAP
from tiercache.state import COUNTER_NAMES, FREE, CacheState
from tiercache.testing.reference.cache import ReferenceCache
from tiercache.testing.reference.index import Node

INDEX = (
    "parent", "depth", "children", "pins", "last_use", "epoch", "entry", "host_id", "snap_id",
    "host_snap_id", "leases", "clock",
)  # fmt: skip
FREE_NODE = Node(-1, (), None, FREE)


def of_state(state: CacheState) -> dict:
    """Arrays by name; usable under `jit`."""
    found = {f"table.{name}": x for name, x in state.table._asdict().items()}
    found |= {
        "pages.refs": state.pages.refs,
        "cold.refs": state.cold.refs,
        "snapshots.owner": state.snapshots.owner,
        "snapshots.tokens": state.snapshots.tokens * (state.snapshots.owner != FREE),
        "host.page_node": state.host.page_node,
        "host.snapshot_node": state.host.snapshot_node,
    }
    found |= {f"index.{name}": getattr(state.index, name) for name in INDEX}
    values = state.counters.values
    found |= {f"counters.{name}": values[i] for i, name in enumerate(COUNTER_NAMES)}
    # Bit by bit it is readable; as one word it fits an int32, since no reason has bit 31.
    return found | {"counters.status": state.counters.status.astype(jnp.int32)}


def of_reference(reference: ReferenceCache) -> dict:
    """The same names, in the same order."""
    found = _table(reference) | _pools(reference) | _index(reference)
    found |= {f"counters.{name}": int(reference.counters[name]) for name in COUNTER_NAMES}
    return found | {"counters.status": sum(1 << reason for reason in reference.status)}


def _table(reference: ReferenceCache) -> dict:
    rows = reference.rows
    return {
        "table.entries": [row.entries for row in rows],
        "table.lengths": [row.length for row in rows],
        "table.committed": [row.committed for row in rows],
    }


def _pools(reference: ReferenceCache) -> dict:
    spec, nodes = reference.spec, reference.index.nodes()
    names = Counter(entry for row in reference.rows for entry in row.entries)
    names.update(node.entry for node in nodes)
    owners, depths = [FREE] * spec.num_snapshots, [0] * spec.num_snapshots
    for snap_id, snapshot in reference.snapshots.items():
        owner = snapshot.owner
        owners[snap_id] = -2 - owner.node_id if isinstance(owner, Node) else owner
        depths[snap_id] = snapshot.tokens
    page_node, snapshot_node = [NO_NODE] * spec.num_host_pages, [NO_NODE] * spec.num_host_snapshots
    for node in nodes:
        if node.host_id is not None:
            page_node[node.host_id] = node.node_id
        if node.host_snap_id is not None:
            snapshot_node[node.host_snap_id] = node.node_id
    return {
        "pages.refs": [names[page_id] for page_id in range(spec.num_pages)],
        "cold.refs": [names[-2 - slot_id] for slot_id in range(spec.num_cold_slots)],
        "snapshots.owner": owners,
        "snapshots.tokens": depths,
        "host.page_node": page_node,
        "host.snapshot_node": snapshot_node,
    }


def _index(reference: ReferenceCache) -> dict:
    index, spec = reference.index, reference.spec
    nodes = {node.node_id: node for node in index.nodes()}
    every = [nodes.get(node_id, FREE_NODE) for node_id in range(spec.num_nodes)]
    pins = Counter(node.node_id for path in index.leases.values() for node in path)
    leases = np.full((spec.num_leases, spec.max_pages + 1), NO_NODE)
    for lease_id, path in index.leases.items():
        leases[lease_id, : len(path)] = [node.node_id for node in path]

    columns = {
        "parent": [NO_NODE if node.parent is None else node.parent.node_id for node in every],
        "depth": [node.depth for node in every],
        "children": [len(node.children) for node in every],
        "pins": [pins[node_id] for node_id in range(spec.num_nodes)],
        "last_use": [node.last_use for node in every],
        "epoch": list(index.epochs),
        "entry": [node.entry for node in every],
        "host_id": _ids(every, "host_id", NO_HOST),
        "snap_id": _ids(every, "snap_id", NO_SNAP),
        "host_snap_id": _ids(every, "host_snap_id", NO_SNAP),
        "leases": leases,
        "clock": index.clock,
    }
    return {f"index.{name}": values for name, values in columns.items()}


def _ids(nodes: list[Node], name: str, nothing: int) -> list[int]:
    values = [getattr(node, name) for node in nodes]
    return [nothing if value is None else value for value in values]
