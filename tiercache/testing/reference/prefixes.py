# pyright: reportArgumentType=false
# Infos here hold Python and NumPy numbers in place of arrays.
"""Verbs that know prefixes: match, pin, unpin, rehydrate, insert, save and load of snapshots."""

from typing import Literal

from tiercache._insert import InsertInfo
from tiercache._rehydrate import RehydrateInfo
from tiercache._snapshot import LoadInfo, SaveInfo
from tiercache.ids import HOLE, NO_NODE, NO_ROW, NO_SNAP
from tiercache.prefix import PinInfo, Plan, codes
from tiercache.reasons import Reason
from tiercache.testing.reference.base import Base, Row, Snapshot
from tiercache.testing.reference.index import Node
from tiercache.testing.reference.storage import Leaves, zero_leaves


class PrefixVerbs(Base):
    def match(self, tokens, length: int, namespace) -> Plan:
        """Pages in some tier as deep as they go, then back up to the deepest snapshot."""
        limit = max(length - 1, 0) // self.spec.page_size
        root = self.index.root(namespace)
        known = self.index.walk(tokens, limit, namespace)
        reach = next((i for i, node in enumerate(known) if not node.has_copy), len(known))
        depth = reach
        while self.spec.needs_snapshot and depth and not known[depth - 1].has_snapshot:
            depth -= 1
        sources = [self.source(node) for node in known[:depth]]
        last = known[depth - 1] if depth else Node(-1, (), None, 0)
        cut = codes.CUT_UNKNOWN if reach == len(known) else codes.CUT_PAGE
        cut = codes.CUT_SNAPSHOT if depth < reach else cut
        cut = codes.CUT_NONE if depth == limit else cut
        cut = codes.CUT_EMPTY if limit == 0 else cut
        ids = [node.node_id for node in known[:reach]]
        return Plan(
            node_ids=self._padded(ids, NO_NODE),
            epochs=self._padded([self.index.epochs[i] for i in ids], 0),
            root_id=NO_NODE if root is None else root.node_id,
            root_epoch=0 if root is None else self.index.epochs[root.node_id],
            num_pages=depth,
            kv_pages=reach,
            known_pages=len(known),
            source=self._padded(sources, codes.SOURCE_NONE),
            snapshot_source=self.snapshot_source(last),
            snap_id=NO_SNAP if last.snap_id is None else last.snap_id,
            host_snap_id=NO_SNAP if last.host_snap_id is None else last.host_snap_id,
            cut=cut,
            num_hot=sources.count(codes.SOURCE_HOT),
            num_cold=sources.count(codes.SOURCE_COLD),
            num_host=sources.count(codes.SOURCE_HOST),
        )

    def _padded(self, values: list[int], fill: int) -> list[int]:
        return values + [fill] * (self.spec.max_pages - len(values))

    def source(self, node: Node) -> int:
        """Where a page is best taken from: an exact copy before a lossy one."""
        if node.entry >= 0:
            return codes.SOURCE_HOT
        if node.host_id is not None:
            return codes.SOURCE_HOST
        return codes.SOURCE_NONE if node.entry == HOLE else codes.SOURCE_COLD

    def snapshot_source(self, node: Node) -> int:
        if node.snap_id is not None:
            return codes.SNAPSHOT_DEVICE
        return codes.SNAPSHOT_NONE if node.host_snap_id is None else codes.SNAPSHOT_HOST

    def path_of(self, plan: Plan) -> list[Node]:
        """The nodes that a plan names below its depth, as they are now."""
        nodes = {node.node_id: node for node in self.index.nodes()}
        ids = list(map(int, plan.node_ids))[: int(plan.num_pages)]
        return [nodes[i] for i in ids if i in nodes]

    def pin(self, plan: Plan, lease_id: int) -> PinInfo:
        if not 0 <= lease_id < self.spec.num_leases:
            return PinInfo(False, self.refuse(Reason.BAD_ID))
        if lease_id in self.index.leases:
            return PinInfo(False, self.refuse(Reason.LEASE_BUSY))
        if self.row_exists(lease_id) and not self.rows[lease_id].is_empty:
            return PinInfo(False, self.refuse(Reason.ROW_BUSY))
        if self._is_stale(plan):
            return PinInfo(False, self.refuse(Reason.STALE_PLAN))
        path = self.path_of(plan)
        roots = [node for node in self.index.nodes() if node.node_id == int(plan.root_id)]
        self.index.touch(roots + path)
        if roots:
            self.index.leases[lease_id] = roots + path
        return PinInfo(True, Reason.OK)

    def _is_stale(self, plan: Plan) -> bool:
        """Whether a node is another one now, or a copy that the plan counts on is gone."""
        root_id = int(plan.root_id)
        if root_id != NO_NODE and self.index.epochs[root_id] != int(plan.root_epoch):
            return True
        depth = int(plan.num_pages)
        ids, epochs = list(map(int, plan.node_ids))[:depth], list(map(int, plan.epochs))[:depth]
        if any(self.index.epochs[i] != epoch for i, epoch in zip(ids, epochs, strict=True)):
            return True
        path = self.path_of(plan)
        if any(not node.has_copy for node in path):
            return True
        if int(plan.snapshot_source) == codes.SNAPSHOT_DEVICE:
            return path[-1].snap_id != int(plan.snap_id)
        if int(plan.snapshot_source) == codes.SNAPSHOT_HOST:
            return path[-1].host_snap_id != int(plan.host_snap_id)
        return False

    def unpin(self, lease_id: int) -> PinInfo:
        if self.row_exists(lease_id) and not self.rows[lease_id].is_empty:
            return PinInfo(False, self.refuse(Reason.ROW_BUSY))
        if not 0 <= lease_id < self.spec.num_leases:
            return PinInfo(False, self.refuse(Reason.BAD_ID))
        if lease_id not in self.index.leases:
            return PinInfo(False, self.refuse(Reason.NOT_HELD))
        del self.index.leases[lease_id]
        return PinInfo(True, Reason.OK)

    def rehydrate(
        self, plan: Plan, row_id: int, *, cold: Literal["hot", "share"] = "share"
    ) -> RehydrateInfo:
        path = self.path_of(plan)
        sources = [self.source(node) for node in path]
        loads = [
            node
            for node, source in zip(path, sources, strict=True)
            if source == codes.SOURCE_HOST or (source == codes.SOURCE_COLD and cold == "hot")
        ]
        free = self.free_pages()
        short = max(len(loads) - len(free), 0)
        lease = self.index.leases.get(row_id, [])[1:]
        reason = Reason.OK
        if not self.row_exists(row_id):
            reason = Reason.BAD_ID
        elif not self.rows[row_id].is_empty:
            reason = Reason.ROW_BUSY
        elif lease != path or len(path) != int(plan.num_pages):
            reason = Reason.NOT_PINNED
        elif short:
            reason = Reason.PAGES_FULL
        if reason != Reason.OK:
            return RehydrateInfo(self.refuse(reason), 0, 0, 0, short)
        row = self.rows[row_id]
        for place, node in enumerate(path):
            row.entries[place] = self._brought_back(node, free) if node in loads else node.entry
        if path:
            row.length = row.committed = len(path) * self.spec.page_size
        self.sweep()
        num_host, num_cold = sources.count(codes.SOURCE_HOST), sources.count(codes.SOURCE_COLD)
        self.count(pages_from_host=num_host, pages_from_cold=num_cold if cold == "hot" else 0)
        return RehydrateInfo(Reason.OK, sources.count(codes.SOURCE_HOT), num_host, num_cold, 0)

    def _brought_back(self, node: Node, free: list[int]) -> int:
        """Puts the bytes of a lower tier into a free page, and names it at the node if it may."""
        page_id = free.pop(0)
        if node.host_id is not None:
            self.pages[page_id] = self.host_pages[node.host_id].copy()
        else:
            packed = self.slots[-2 - node.entry]
            self.pages[page_id] = packed.transcoded(self.codecs, self.spec.hot_formats)
        if self.num_index_pages() < self.spec.index_pages:
            node.entry = page_id
        return page_id

    def num_index_pages(self) -> int:
        return sum(node.entry >= 0 for node in self.index.nodes())

    def load_snapshot(self, plan: Plan, row_id: int) -> LoadInfo:
        depth = int(plan.num_pages)
        path, lease = self.path_of(plan), self.index.leases.get(row_id, [])
        if not self.row_exists(row_id):
            return LoadInfo(self.refuse(Reason.BAD_ID), codes.SNAPSHOT_NONE, 0)
        if depth and (len(path) < depth or len(lease) <= depth or lease[depth] is not path[-1]):
            return LoadInfo(self.refuse(Reason.NOT_PINNED), codes.SNAPSHOT_NONE, 0)
        source = self._found(path)
        if depth and self.spec.needs_snapshot and source == codes.SNAPSHOT_NONE:
            return LoadInfo(self.refuse(Reason.DEPTH_MISMATCH), source, 0)
        leaves: Leaves | None = zero_leaves(self.spec)
        if source == codes.SNAPSHOT_DEVICE:
            leaves = self.snapshots[path[-1].snap_id].leaves
            self.count(snapshots_from_device=1)
        elif source == codes.SNAPSHOT_HOST:
            leaves = self.host_snapshots[path[-1].host_snap_id]
            self.count(snapshots_from_host=1)
        self.rows[row_id].live = leaves
        return LoadInfo(Reason.OK, source, depth * self.spec.page_size)

    def _found(self, path: list[Node]) -> int:
        return self.snapshot_source(path[-1]) if path else codes.SNAPSHOT_NONE

    def save_snapshot(
        self, row_ids, tokens, leaves: list[Leaves] | None = None, replaces=None
    ) -> SaveInfo:
        """New ids lowest first. A waiting snapshot has its place taken once, by the first."""
        free = self.free_ids(self.snapshots, self.spec.num_snapshots)
        waiting = {
            (snapshot.owner, snapshot.tokens): snap_id
            for snap_id, snapshot in self.snapshots.items()
            if isinstance(snapshot.owner, int)
        }
        given: dict[tuple[int, int], int] = {}
        snap_ids, reasons = [], []
        for n, (row_id, depth) in enumerate(zip(map(int, row_ids), map(int, tokens), strict=True)):
            older = (row_id, 0 if replaces is None else int(replaces[n]))
            place = waiting.get((row_id, depth), waiting.get(older))
            reason = self._save_refusal(row_id, depth)
            if reason != Reason.OK or row_id == NO_ROW:
                snap_id = NO_SNAP
            elif (row_id, depth) in given:
                snap_id = given[row_id, depth]
            elif place is not None and place not in given.values():
                snap_id = place
            elif free:
                snap_id = free.pop(0)
            else:
                snap_id, reason = NO_SNAP, Reason.SNAPSHOTS_FULL
            if snap_id != NO_SNAP:
                given[row_id, depth] = snap_id
                new = self.rows[row_id].live if leaves is None else leaves[n]
                self.snapshots[snap_id] = Snapshot(depth, row_id, new)
            snap_ids.append(snap_id)
            reasons.append(reason)
        self.count(snapshots_saved=sum(snap_id != NO_SNAP for snap_id in snap_ids))
        self.refuse(*reasons)
        return SaveInfo(snap_ids, reasons)

    def _save_refusal(self, row_id: int, depth: int) -> Reason:
        if row_id == NO_ROW:
            return Reason.OK
        if not self.row_exists(row_id):
            return Reason.BAD_ID
        is_boundary = depth > 0 and depth % self.spec.page_size == 0
        return Reason.OK if is_boundary else Reason.DEPTH_MISMATCH

    def insert(self, row_id: int, tokens, namespace) -> InsertInfo:
        if not self.row_exists(row_id):
            return InsertInfo(0, 0, 0, 0, self.refuse(Reason.BAD_ID))
        row = self.rows[row_id]
        whole = row.length // self.spec.page_size
        known = self.index.walk(tokens, whole, namespace)
        lease = self.index.leases.get(row_id, [])[1:]
        if whole == 0:
            return InsertInfo(0, 0, 0, 0, self.refuse(Reason.ROW_EMPTY))
        if lease != known[: len(lease)]:
            return InsertInfo(0, 0, 0, whole, self.refuse(Reason.TOKENS_MISMATCH))
        affordable = self._affordable(row, whole, known, namespace)
        keep = self._resumable(row_id, min(whole, affordable), known)
        oversize = affordable < self._resumable(row_id, whole, known)
        reason = self.refuse(Reason.OVERSIZE if oversize else Reason.OK)
        if keep == 0:
            return InsertInfo(0, 0, 0, whole, reason)
        before = len(self.index.pages())
        path = self.index.extend(tokens, keep, namespace)
        num_new = len(self.index.pages()) - before
        self._give_pages(row, path)
        num_snapshots = self._hang_snapshots(row_id, path)
        self._hold(row_id, path)
        return InsertInfo(keep, num_new, num_snapshots, whole - keep, reason)

    def _affordable(self, row: Row, whole: int, known: list[Node], namespace) -> int:
        """How many pages fit into free nodes and into what the index may hold."""
        nodes = self.index.num_free() - (self.index.root(namespace) is None)
        budget = self.spec.index_pages - self.num_index_pages()
        for place in range(whole):
            is_new = place >= len(known)
            nodes -= is_new
            budget -= row.entries[place] >= 0 and (is_new or known[place].entry < 0)
            if nodes < 0 or budget < 0:
                return place
        return whole

    def _resumable(self, row_id: int, limit: int, known: list[Node]) -> int:
        """The deepest page count up to `limit` that a prompt could resume at afterwards."""
        if not self.spec.needs_snapshot:
            return limit
        depths = [
            snapshot.tokens // self.spec.page_size
            for snapshot in self.snapshots.values()
            if snapshot.owner == row_id
        ]
        return max([d for d in depths if d <= limit] + [min(len(known), limit)])

    def _give_pages(self, row: Row, path: list[Node]):
        """A node takes the row's copy if it has none as good; its old copies then give way."""
        for node, entry in zip(path, row.entries, strict=False):
            if entry >= 0 and node.entry < 0:
                node.entry = entry
                if node.host_id is not None:
                    del self.host_pages[node.host_id]
                    node.host_id = None
                    self.count(host_pages_dropped=1)
            elif entry < HOLE and node.entry == HOLE:
                node.entry = entry
        self.sweep()

    def _hang_snapshots(self, row_id: int, path: list[Node]) -> int:
        hung = 0
        for snap_id, snapshot in sorted(self.snapshots.items()):
            depth = snapshot.tokens // self.spec.page_size
            if snapshot.owner != row_id or depth > len(path):
                continue
            node = path[depth - 1]
            if node.snap_id is not None:
                del self.snapshots[snap_id]
                continue
            node.snap_id, snapshot.owner = snap_id, node
            hung += 1
            if node.host_snap_id is not None:
                del self.host_snapshots[node.host_snap_id]
                node.host_snap_id = None
                self.count(host_snapshots_dropped=1)
        return hung

    def _hold(self, row_id: int, path: list[Node]):
        """The row, and every row that shares its published pages, holds the path; one touch."""
        published = self.rows[row_id].entries[: len(path)]
        touched = False
        for other_id, other in enumerate(self.rows):
            depth = 0
            whole = min(len(path), other.length // self.spec.page_size)
            while depth < whole and other.entries[depth] == published[depth]:
                depth += 1
            if depth == 0:
                continue
            other.committed = max(other.committed, depth * self.spec.page_size)
            lease = self.index.leases.get(other_id, [])
            if depth >= len(lease) - 1:
                self.index.leases[other_id] = [path[0].parent, *path[:depth]]
                touched |= other_id == row_id
        if touched:
            self.index.touch(self.index.leases[row_id])
