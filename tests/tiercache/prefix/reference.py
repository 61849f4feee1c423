"""The prefix index as a trie of dicts: what every verb must do, obviously and slowly."""

import dataclasses

import numpy as np

from tiercache.ids import HOLE, NO_HOST, NO_NODE, NO_SNAP
from tiercache.prefix import (
    CUT_EMPTY,
    CUT_NONE,
    CUT_PAGE,
    CUT_SNAPSHOT,
    CUT_UNKNOWN,
    SNAPSHOT_DEVICE,
    SNAPSHOT_HOST,
    SNAPSHOT_NONE,
    SOURCE_COLD,
    SOURCE_HOST,
    SOURCE_HOT,
)
from tiercache.reasons import Reason


@dataclasses.dataclass
class Node:
    """One page, or a namespace when `parent` is None."""

    tokens: tuple[int, ...]
    parent: int | None
    depth: int
    last_use: int
    entry: int = HOLE
    host_id: int = NO_HOST
    snap_id: int = NO_SNAP
    host_snap_id: int = NO_SNAP

    @property
    def has_copy(self):
        return self.entry != HOLE or self.host_id != NO_HOST

    @property
    def has_snapshot(self):
        return self.snap_id != NO_SNAP or self.host_snap_id != NO_SNAP

    @property
    def source(self):
        if self.entry > HOLE:
            return SOURCE_HOT
        return SOURCE_HOST if self.host_id != NO_HOST else SOURCE_COLD


class Trie:
    """The whole index. Methods return what the verbs report, as plain numbers."""

    def __init__(self, num_nodes, page_size, max_pages, num_leases):
        self.page_size = page_size
        self.max_pages = max_pages
        self.num_leases = num_leases
        self.num_nodes = num_nodes
        self.nodes = {}
        self.epochs = dict.fromkeys(range(num_nodes), 0)
        self.leases = {}
        self.clock = 0

    def child(self, parent, tokens):
        """The id of the node with these tokens under this parent, or None."""
        for node_id, node in self.nodes.items():
            if node.parent == parent and node.tokens == tokens:
                return node_id
        return None

    def pins(self, node_id):
        return sum(node_id in path for path in self.leases.values())

    def children(self, node_id):
        return sum(node.parent == node_id for node in self.nodes.values())

    def pages(self, tokens, count):
        size = self.page_size
        rows = (tokens[place * size : (place + 1) * size] for place in range(count))
        return [tuple(map(int, row)) for row in rows]

    def walk(self, tokens, count, namespace):
        """The root id or None, and the ids of the known pages among the first `count`."""
        root = self.child(None, tuple(namespace))
        path, here = [], root
        for page in self.pages(tokens, count):
            here = self.child(here, page) if here is not None else None
            if here is None:
                break
            path.append(here)
        return root, path

    def match(self, tokens, length, namespace, needs_snapshot):
        limit = max(length - 1, 0) // self.page_size
        root, path = self.walk(tokens, limit, namespace)
        nodes = [self.nodes[node_id] for node_id in path]
        kv_pages = 0
        while kv_pages < len(path) and nodes[kv_pages].has_copy:
            kv_pages += 1
        num_pages = kv_pages
        while needs_snapshot and num_pages and not nodes[num_pages - 1].has_snapshot:
            num_pages -= 1
        if limit == 0:
            cut = CUT_EMPTY
        elif num_pages == limit:
            cut = CUT_NONE
        elif num_pages < kv_pages:
            cut = CUT_SNAPSHOT
        else:
            cut = CUT_PAGE if kv_pages < len(path) else CUT_UNKNOWN
        sources = [node.source for node in nodes[:num_pages]]
        leaf = nodes[num_pages - 1] if num_pages else Node((), None, 0, 0)
        host = SNAPSHOT_HOST if leaf.host_snap_id != NO_SNAP else SNAPSHOT_NONE
        return {
            "node_ids": self.padded(path[:kv_pages], NO_NODE),
            "epochs": self.padded([self.epochs[i] for i in path[:kv_pages]], 0),
            "root_id": NO_NODE if root is None else root,
            "root_epoch": 0 if root is None else self.epochs[root],
            "num_pages": num_pages,
            "kv_pages": kv_pages,
            "known_pages": len(path),
            "source": self.padded(sources, 0),
            "snapshot_source": SNAPSHOT_DEVICE if leaf.snap_id != NO_SNAP else host,
            "snap_id": leaf.snap_id,
            "host_snap_id": leaf.host_snap_id,
            "cut": cut,
            "num_hot": sources.count(SOURCE_HOT),
            "num_cold": sources.count(SOURCE_COLD),
            "num_host": sources.count(SOURCE_HOST),
        }

    def padded(self, values, fill):
        return [*values, *[fill] * (self.max_pages - len(values))]

    def touch(self, node_ids):
        self.clock += 1
        for node_id in node_ids:
            while node_id in self.nodes:
                self.nodes[node_id].last_use = self.clock
                node_id = self.nodes[node_id].parent

    def extend(self, tokens, count, namespace):
        """(path, which are new, known before, shortfall, reason)."""
        if not 0 <= count <= self.max_pages:
            known = self.walk(tokens, max(min(count, self.max_pages), 0), namespace)[1]
            return known, [], len(known), None, Reason.OVERSIZE
        root, known = self.walk(tokens, count, namespace)
        missing = count - len(known) + (root is None and count > 0)
        free = [node_id for node_id in range(self.num_nodes) if node_id not in self.nodes]
        if missing > len(free):
            return known, [], len(known), missing - len(free), Reason.NODES_FULL
        if root is None and count:
            root = free.pop(0)
            self.nodes[root] = Node(tuple(namespace), None, 0, 0)
        path = list(known)
        for page in self.pages(tokens, count)[len(known) :]:
            node_id = free.pop(0)
            self.nodes[node_id] = Node(page, path[-1] if path else root, len(path) + 1, 0)
            path.append(node_id)
        self.touch(path)
        return path, path[len(known) :], len(known), 0, Reason.OK

    def can_extend(self, tokens, count, namespace):
        root, known = self.walk(tokens, count, namespace)
        free = self.num_nodes - len(self.nodes) - (root is None)
        return len(known), max(min(count, len(known) + free), 0)

    def pin(self, plan, lease_id):
        if not 0 <= lease_id < self.num_leases:
            return Reason.BAD_ID
        if lease_id in self.leases:
            return Reason.LEASE_BUSY
        count = int(plan.num_pages)
        path = [int(node_id) for node_id in plan.node_ids[:count]]
        root = int(plan.root_id)
        epochs = [int(epoch) for epoch in plan.epochs[:count]]
        if root != NO_NODE and self.epochs[root] != int(plan.root_epoch):
            return Reason.STALE_PLAN
        for node_id, epoch in zip(path, epochs, strict=True):
            if self.epochs[node_id] != epoch or not self.nodes[node_id].has_copy:
                return Reason.STALE_PLAN
        if path and plan.snapshot_source == SNAPSHOT_DEVICE:
            if self.nodes[path[-1]].snap_id != int(plan.snap_id):
                return Reason.STALE_PLAN
        if path and plan.snapshot_source == SNAPSHOT_HOST:
            if self.nodes[path[-1]].host_snap_id != int(plan.host_snap_id):
                return Reason.STALE_PLAN
        self.hold(lease_id, [root, *path] if root != NO_NODE else [])
        return Reason.OK

    def hold(self, lease_id, path):
        self.leases.pop(lease_id, None)
        if path:
            self.leases[lease_id] = path
        self.touch(path)

    def unpin(self, lease_id):
        if not 0 <= lease_id < self.num_leases:
            return Reason.BAD_ID
        return Reason.OK if self.leases.pop(lease_id, None) else Reason.NOT_HELD

    def repin(self, lease_id, node_ids, count):
        path = [int(node_id) for node_id in node_ids[:count]]
        nodes = [self.nodes.get(node_id) for node_id in path]
        above = nodes[0].parent if nodes and nodes[0] else None
        is_path = 0 <= count <= self.max_pages
        expected = above
        for place, (node_id, node) in enumerate(zip(path, nodes, strict=True)):
            is_path &= node is not None and node.depth == place + 1 and node.parent == expected
            expected = node_id
        if not is_path or not 0 <= lease_id < self.num_leases:
            return Reason.BAD_ID
        self.hold(lease_id, [above, *path] if path else [])
        return Reason.OK

    def victims(self, node_ids, want):
        free = [i for i in node_ids if i in self.nodes and not self.pins(i)]
        order = sorted(free, key=lambda i: (self.nodes[i].last_use, -self.nodes[i].depth, i))
        return [*order, *[NO_NODE] * want][:want]

    def drop_dead(self):
        """Takes dead leaves away until none is left; how many."""
        dropped = 0
        while True:
            dead = [
                node_id
                for node_id, node in self.nodes.items()
                if not (node.has_copy or node.has_snapshot)
                and not self.pins(node_id)
                and not self.children(node_id)
            ]
            if not dead:
                return dropped
            for node_id in dead:
                del self.nodes[node_id]
                self.epochs[node_id] += 1
            dropped += len(dead)

    def assert_equal(self, index):
        """The whole of an index, field by field, is this trie."""
        empty = Node((), None, -1, 0)
        nodes = [self.nodes.get(node_id, empty) for node_id in range(self.num_nodes)]
        for name in ("depth", "last_use", "entry", "host_id", "snap_id", "host_snap_id"):
            expected = [getattr(node, name) for node in nodes]
            np.testing.assert_array_equal(getattr(index, name), expected, name)
        parents = [NO_NODE if node.parent is None else node.parent for node in nodes]
        np.testing.assert_array_equal(index.parent, parents, "parent")
        every = range(self.num_nodes)
        np.testing.assert_array_equal(index.pins, list(map(self.pins, every)), "pins")
        np.testing.assert_array_equal(index.children, list(map(self.children, every)), "children")
        np.testing.assert_array_equal(index.epoch, [self.epochs[i] for i in every], "epoch")
        for node_id, node in self.nodes.items():
            row = index.tokens[node_id][: len(node.tokens)]
            if node.parent is None:
                row = row.view(np.uint32)
            assert tuple(row.tolist()) == node.tokens, "tokens"
        for lease_id in range(self.num_leases):
            path = self.leases.get(lease_id, [])
            expected = [*path, *[NO_NODE] * (self.max_pages + 1 - len(path))]
            np.testing.assert_array_equal(index.leases[lease_id], expected, "leases")
        assert index.clock == self.clock
