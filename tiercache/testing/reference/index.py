"""The prefix index as a tree of objects."""

import dataclasses

from tiercache.ids import HOLE
from tiercache.spec import CacheSpec


@dataclasses.dataclass(eq=False)
class Node:
    """One page of a known prefix, or a namespace where `parent` is None.

    Attributes:
      node_id: its id in the library.
      tokens: of the page; the lanes of a namespace.
      depth: pages from the namespace to here.
      entry: device copy: hot page id, `HOLE`, or -2 - slot id.
      host_id, snap_id, host_snap_id: the other copies; None where there is none.
    """

    node_id: int
    tokens: tuple[int, ...]
    parent: "Node | None"
    depth: int
    last_use: int = 0
    entry: int = HOLE
    host_id: int | None = None
    snap_id: int | None = None
    host_snap_id: int | None = None
    children: "dict[tuple[int, ...], Node]" = dataclasses.field(default_factory=dict)

    @property
    def has_copy(self) -> bool:
        return self.entry != HOLE or self.host_id is not None

    @property
    def has_snapshot(self) -> bool:
        return self.snap_id is not None or self.host_snap_id is not None

    def family(self) -> "list[Node]":
        """This node and all below it."""
        return [self] + [node for child in self.children.values() for node in child.family()]


class Index:
    """Known prefixes, leases and the clock."""

    def __init__(self, spec: CacheSpec):
        self.page_size = spec.page_size
        self.num_nodes = spec.num_nodes
        self.roots: dict[tuple[int, ...], Node] = {}
        self._by_id: dict[int, Node] = {}
        self.epochs = [0] * spec.num_nodes
        self.leases: dict[int, list[Node]] = {}
        self.clock = 0

    def nodes(self) -> list[Node]:
        """All nodes, namespaces included, in order of their ids."""
        return [node for _, node in sorted(self._by_id.items())]

    def pages(self) -> list[Node]:
        """All nodes but the namespaces, in order of their ids."""
        return [node for node in self.nodes() if node.depth]

    def num_free(self) -> int:
        return self.num_nodes - len(self.nodes())

    def pins(self, node: Node) -> int:
        return sum(node in path for path in self.leases.values())

    def is_lease_end(self, node: Node) -> bool:
        return any(path[-1] is node for path in self.leases.values())

    def split(self, tokens, count: int) -> list[tuple[int, ...]]:
        """The first `count` whole pages of some tokens."""
        size = self.page_size
        return [tuple(map(int, tokens[i * size : (i + 1) * size])) for i in range(count)]

    def walk(self, tokens, count: int, namespace) -> list[Node]:
        """Nodes of the known ones among the first `count` pages, in a row from the first."""
        here, path = self.root(namespace), []
        for page in self.split(tokens, count):
            here = None if here is None else here.children.get(page)
            if here is None:
                break
            path.append(here)
        return path

    def root(self, namespace) -> Node | None:
        return self.roots.get(tuple(map(int, namespace)))

    def extend(self, tokens, count: int, namespace) -> list[Node]:
        """Makes the first `count` pages known, lowest free node ids first; returns their path."""
        free = [node_id for node_id in range(self.num_nodes) if node_id not in self._by_id]
        lanes = tuple(map(int, namespace))
        if lanes not in self.roots:
            self.roots[lanes] = self._new(Node(free.pop(0), lanes, None, 0))
        here, path = self.roots[lanes], []
        for page in self.split(tokens, count):
            if page not in here.children:
                here.children[page] = self._new(Node(free.pop(0), page, here, here.depth + 1))
            here = here.children[page]
            path.append(here)
        self.touch([self.roots[lanes], *path])
        return path

    def _new(self, node: Node) -> Node:
        self._by_id[node.node_id] = node
        return node

    def touch(self, path: list[Node]):
        """One tick of the clock; the path was used now."""
        self.clock += 1
        for node in path:
            node.last_use = self.clock

    def forget(self) -> int:
        """Drops nodes that nothing needs, leaves first, until none is left; how many."""
        dropped = 0
        while True:
            dead = [
                node
                for node in self.nodes()
                if not (node.has_copy or node.has_snapshot or node.children or self.pins(node))
            ]
            for node in dead:
                family = self.roots if node.parent is None else node.parent.children
                del family[node.tokens], self._by_id[node.node_id]
                self.epochs[node.node_id] += 1
            dropped += len(dead)
            if not dead:
                return dropped
