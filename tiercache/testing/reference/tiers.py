# pyright: reportArgumentType=false
# Infos here hold Python and NumPy numbers in place of arrays.
"""Verbs that move copies between tiers: evict, mirror, requantize, retire, make_room."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from tiercache._evict import EvictInfo
from tiercache._evict_snapshots import EvictSnapshotsInfo
from tiercache._make_room import RoomInfo
from tiercache._mirror import MirrorInfo
from tiercache._requantize import RequantizeInfo
from tiercache._retire import RetireInfo
from tiercache.ids import HOLE, NO_NODE, NO_PAGE, NO_SLOT
from tiercache.reasons import Reason
from tiercache.testing.reference.base import Base
from tiercache.testing.reference.index import Node


class Removed(NamedTuple):
    """What left with some copies: hot pages freed, and pages that no tier holds any more."""

    pages: int
    slots: int
    dropped: int


class Room(NamedTuple):
    """Who is in host memory afterwards.

    Attributes:
      stored: newcomers that get a place.
      refused: newcomers for which nothing may go.
      evicted: residents that go.
    """

    stored: list[Node]
    refused: list[Node]
    evicted: list[Node]


def page_order(node: Node):
    """Oldest first; of a path, the leaf first."""
    return node.last_use, -node.depth, node.node_id


def snapshot_order(node: Node):
    """Oldest first; of a path, the deepest last: it saves most."""
    return node.last_use, node.depth, node.node_id


class TierVerbs(Base):
    def evict(
        self,
        number: int,
        *,
        most: int,
        to: Literal["host", "cold", "drop"] = "host",
        tier: Literal["hot", "cold"] = "hot",
    ) -> EvictInfo:
        victims = [
            node
            for node in self.index.pages()
            if (node.entry >= 0 if tier == "hot" else node.entry < HOLE)
            and self.names(node.entry) == 1
            and not self.index.pins(node)
        ]
        victims = sorted(victims, key=page_order)[: min(number, most)]
        short = Reason.ALL_PINNED if number > len(victims) else Reason.OK
        if to == "host":
            return self._evict_to_host(victims, number, most, short)
        if to == "cold":
            return self._evict_to_cold(victims, number, most, short)
        removed = self.remove_copies(device=victims)
        return EvictInfo(
            self._ids(victims, most),
            removed.pages + removed.slots,
            0,
            0,
            removed.dropped,
            number - len(victims),
            self.refuse(short),
        )

    def _evict_to_host(self, victims: list[Node], number: int, most: int, short: Reason):
        room = self._host_page_room([node for node in victims if node.host_id is None])
        leaving = [node for node in victims if node not in room.refused]
        copies = [(node, self.pages[node.entry].copy()) for node in room.stored]
        gone = [node for node in leaving if node not in room.stored]
        first = self.remove_copies(device=gone, host=room.evicted)
        self._store_pages(copies)
        then = self.remove_copies(device=room.stored)
        return EvictInfo(
            self._ids(victims, most, keep=leaving),
            first.pages + then.pages,
            len(room.stored),
            0,
            first.dropped,
            number - len(leaving),
            self.refuse(Reason.HOST_PAGES_FULL if room.refused else short),
        )

    def _evict_to_cold(self, victims: list[Node], number: int, most: int, short: Reason):
        moved = self.requantize([node.entry for node in victims])
        left = [
            node
            for node, slot_id in zip(victims, moved.slot_ids, strict=True)
            if slot_id != NO_SLOT
        ]
        worst = max([*moved.reason, Reason.OK])
        self.refuse(short)
        return EvictInfo(
            self._ids(victims, most, keep=left),
            len(left),
            0,
            len(left),
            0,
            number - len(left),
            worst if worst else short,
        )

    def _ids(self, nodes: list[Node], most: int, keep: list[Node] | None = None) -> list[int]:
        """Node ids, `most` of them; `NO_NODE` for those that are not kept."""
        ids = [n.node_id if keep is None or n in keep else NO_NODE for n in nodes]
        return ids + [NO_NODE] * (most - len(ids))

    def _room(
        self, newcomers: list[Node], residents: list[Node], free: int, order: Callable
    ) -> Room:
        """Newcomers, oldest first, and residents that may go compete by age for the places.

        A newcomer in use, as a mirror's is, always wins.
        """
        places = free + len(residents)
        admitted, refused = newcomers[:places], newcomers[places:]
        rivals = residents + [node for node in admitted if not self._in_use(node, order)]
        leaving = sorted(rivals, key=order)[: max(len(admitted) - free, 0)]
        return Room(
            [node for node in admitted if node not in leaving],
            refused,
            [node for node in residents if node in leaving],
        )

    def _in_use(self, node: Node, order: Callable) -> bool:
        pinned = self.index.pins(node) > 0
        if order is page_order:
            return pinned
        return pinned and (self._mirroring or self.index.is_lease_end(node))

    _mirroring = False  # while a mirror runs: whatever lies on a pinned path is in use

    def _host_page_room(self, newcomers: list[Node]) -> Room:
        residents = [
            node
            for node in self.index.pages()
            if node.host_id is not None and not self.index.pins(node)
        ]
        free = self.free_ids(self.host_pages, self.spec.num_host_pages)
        return self._room(newcomers, residents, len(free), page_order)

    def _store_pages(self, copies):
        for node, page in copies:
            node.host_id = self.free_ids(self.host_pages, self.spec.num_host_pages)[0]
            self.host_pages[node.host_id] = page
        self.count(pages_to_host=len(copies))

    def remove_copies(self, device: list[Node] = [], host: list[Node] = []) -> Removed:  # noqa: B006
        """Takes copies away; a page without any is dead, and so is all below it."""
        had_copy = [node for node in self.index.pages() if node.has_copy]
        on_device = [node for node in had_copy if node.entry != HOLE]
        slots = sum(node.entry < HOLE for node in had_copy)
        for node in device:
            node.entry = HOLE
        hosts = self._drop_host_pages(host)
        dead = {id(d): d for node in had_copy if not node.has_copy for d in node.family()}
        dropped = sum(id(node) in dead for node in had_copy)
        for node in dead.values():
            node.entry = HOLE
        hosts += self._drop_host_pages(list(dead.values()))
        self.remove_snapshots(list(dead.values()), list(dead.values()))
        slots -= sum(node.entry < HOLE for node in self.index.pages())
        tombs = sum(node.entry == HOLE and id(node) not in dead for node in on_device)
        pages, _ = self.sweep()
        self.count(
            pages_dropped=dropped,
            cold_dropped=slots,
            host_pages_dropped=hosts,
            tombstones=tombs,
            nodes_dropped=self.index.forget(),
        )
        return Removed(pages, slots, dropped)

    def _drop_host_pages(self, nodes: list[Node]) -> int:
        held = [node for node in nodes if node.host_id is not None]
        for node in held:
            del self.host_pages[node.host_id]
            node.host_id = None
        return len(held)

    def remove_snapshots(self, device: list[Node], host: list[Node]):
        for node in host:
            if node.host_snap_id is not None:
                del self.host_snapshots[node.host_snap_id]
                node.host_snap_id = None
                self.count(host_snapshots_dropped=1)
        for node in device:
            if node.snap_id is not None:
                del self.snapshots[node.snap_id]
                node.snap_id = None
                self.count(snapshots_dropped=node.host_snap_id is None)

    def evict_snapshots(
        self, number: int, *, most: int, to: Literal["host", "drop"] = "host"
    ) -> EvictSnapshotsInfo:
        victims = [
            node
            for node in self.index.pages()
            if node.snap_id is not None and not self.index.is_lease_end(node)
        ]
        victims = sorted(victims, key=snapshot_order)[: min(number, most)]
        reason = Reason.ALL_PINNED if number > len(victims) else Reason.OK
        leaving, stored = victims, 0
        if to == "host":
            room = self._store_snapshots(victims)
            leaving = [node for node in victims if node not in room.refused]
            stored = len(room.stored)
            reason = Reason.HOST_SNAPSHOTS_FULL if room.refused else reason
        self.remove_snapshots(leaving, [])
        return EvictSnapshotsInfo(
            self._ids(victims, most, keep=leaving),
            len(leaving),
            stored,
            number - len(leaving),
            self.refuse(reason),
        )

    def _store_snapshots(self, nodes: list[Node]) -> Room:
        """Copies device snapshots to host memory, room permitting."""
        residents = [
            node
            for node in self.index.pages()
            if node.host_snap_id is not None
            and not self.index.is_lease_end(node)
            and not (self._mirroring and self.index.pins(node))
        ]
        newcomers = [node for node in nodes if node.host_snap_id is None]
        free = self.free_ids(self.host_snapshots, self.spec.num_host_snapshots)
        room = self._room(newcomers, residents, len(free), snapshot_order)
        self.remove_snapshots([], room.evicted)
        for node in room.stored:
            node.host_snap_id = self.free_ids(self.host_snapshots, self.spec.num_host_snapshots)[0]
            self.host_snapshots[node.host_snap_id] = self.snapshots[node.snap_id].leaves
        self.count(snapshots_to_host=len(room.stored))
        return room

    def mirror(self, lease_id: int, *, most: int) -> MirrorInfo:
        """Pages from the root down, then snapshots from the deepest up."""
        path = self.index.leases.get(lease_id, [])
        pages = [node for node in path if node.entry >= 0 and node.host_id is None]
        room = self._host_page_room(pages[:most])
        self.remove_copies(host=room.evicted)
        self._store_pages([(node, self.pages[node.entry].copy()) for node in room.stored])
        snapshots, snap_room = [], Room([], [], [])
        if self.spec.num_host_snapshots and self.spec.num_snapshots:
            snapshots = [n for n in path[::-1] if n.snap_id is not None and n.host_snap_id is None]
            self._mirroring = True
            snap_room = self._store_snapshots(snapshots[:most])
            self._mirroring = False
        reason = Reason.OK
        if not path:
            reason = Reason.NOT_HELD
        elif room.refused:
            reason = Reason.HOST_PAGES_FULL
        elif snap_room.refused:
            reason = Reason.HOST_SNAPSHOTS_FULL
        stored = len(room.stored), len(snap_room.stored)
        left = len(pages) + len(snapshots) - sum(stored)
        return MirrorInfo(*stored, left, self.refuse(reason))

    def requantize(self, page_ids) -> RequantizeInfo:
        """Each page that exists is given a free slot in order, and keeps it if it can be packed."""
        free = self.free_ids(self.slots, self.spec.num_cold_slots)
        slot_ids, reasons = [], []
        for page_id in map(int, page_ids):
            slot_id, reason = NO_SLOT, Reason.OK
            if page_id == NO_PAGE:
                pass
            elif page_id not in self.pages:
                reason = Reason.BAD_ID
            elif self._is_open(page_id):
                reason = Reason.OPEN_PAGE
            elif not free:
                reason = Reason.SLOTS_FULL
            else:
                offered = free.pop(0)
                if self.pages[page_id].is_finite(self.codecs):
                    slot_id = offered
                    self._pack(page_id, slot_id)
                else:
                    reason = Reason.NOT_FINITE
            slot_ids.append(slot_id)
            reasons.append(reason)
        self.count(pages_to_cold=sum(slot_id != NO_SLOT for slot_id in slot_ids))
        self.refuse(*reasons, Reason.OK)
        return RequantizeInfo(slot_ids, reasons)

    def _is_open(self, page_id: int) -> bool:
        """Whether some row has not filled the page yet."""
        return any(page_id in row.entries[row.length // self.spec.page_size :] for row in self.rows)

    def _pack(self, page_id: int, slot_id: int):
        self.slots[slot_id] = self.pages[page_id].transcoded(self.codecs, self.spec.cold_formats)
        for row in self.rows:
            if page_id in row.entries:
                place = row.entries.index(page_id)
                row.entries[place] = -2 - slot_id
                row.committed = max(row.committed, (place + 1) * self.spec.page_size)
        for node in self.index.pages():
            if node.entry == page_id:
                node.entry = -2 - slot_id
        self.sweep()

    def retire(self, *, most: int) -> RetireInfo:
        """Pages past the keep window of every row that holds them, beginning at a turning id."""
        assert self.spec.keep_tokens is not None
        old, young = set(), set()
        for row in self.rows:
            for place, entry in enumerate(row.entries):
                end = (place + 1) * self.spec.page_size
                is_old = end <= row.length - self.spec.keep_tokens
                if entry >= 0:
                    (old if is_old else young).add(entry)
        start = sum(row.length for row in self.rows) % self.spec.num_pages
        turned = sorted(old - young, key=lambda page_id: (page_id - start) % self.spec.num_pages)
        size = min(most, self.spec.num_pages)
        page_ids = turned[:size] + [NO_PAGE] * (size - len(turned))
        info = self.requantize(page_ids)
        moved = [slot_id != NO_SLOT for slot_id in info.slot_ids]
        retired = [p if ok else NO_PAGE for p, ok in zip(page_ids, moved, strict=True)]
        return RetireInfo(retired, info.slot_ids, info.reason, len(turned) - sum(moved))

    def make_room(
        self,
        pages: int,
        snapshots: int,
        *,
        to: Literal["host", "cold", "drop"] = "host",
        snapshots_to: Literal["host", "drop"] = "host",
    ) -> RoomInfo:
        spec = self.spec
        lacking = max(pages - len(self.free_pages()), 0)
        freed = self.evict(lacking, most=spec.num_pages, to=to).freed if lacking else 0
        if not spec.num_snapshots:
            return RoomInfo(freed, 0, max(lacking - freed, 0), 0)
        free = len(self.free_ids(self.snapshots, spec.num_snapshots))
        lacking_snapshots = max(snapshots - free, 0)
        gone = 0
        if lacking_snapshots:
            gone = self.evict_snapshots(
                lacking_snapshots, most=spec.num_snapshots, to=snapshots_to
            ).freed
        return RoomInfo(freed, gone, max(lacking - freed, 0), max(lacking_snapshots - gone, 0))
