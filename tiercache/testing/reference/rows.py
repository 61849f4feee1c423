# pyright: reportArgumentType=false
# Infos here hold Python and NumPy numbers in place of arrays.
"""Verbs that change rows: reserve, append, advance, fork, truncate, release."""

import numpy as np

from pallas_kernels.page_layout import K, V
from tiercache._append import AdvanceInfo, AppendInfo
from tiercache._reserve import ReserveInfo
from tiercache._rows import RowInfo
from tiercache.ids import HOLE
from tiercache.reasons import Reason
from tiercache.testing.reference.base import Base, Row
from tiercache.testing.reference.storage import Page, Plane


class RowVerbs(Base):
    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.spec.page_size)

    def reserve(self, counts, *, max_tokens: int) -> ReserveInfo:
        """First every row's wish, all judged by the state before the call; then the gifts."""
        free = self.free_pages()
        available, wanted_so_far = len(free), 0
        reasons, wishes = [], []
        for row, count in zip(self.rows, counts, strict=True):
            reason, copies, places = self._wish(row, min(max(int(count), 0), max_tokens))
            wanted_so_far += len(copies) + len(places)
            if reason == Reason.OK and copies + places and wanted_so_far > available:
                reason = Reason.PAGES_FULL
            reasons.append(reason)
            wishes.append((copies, places) if reason == Reason.OK else ([], []))
        for row, (copies, places) in zip(self.rows, wishes, strict=True):
            for place in copies:
                page_id = free.pop(0)
                self.pages[page_id] = self.pages[row.entries[place]].copy()
                row.entries[place] = page_id
            for place in places:
                row.entries[place] = free.pop(0)
                self.pages[row.entries[place]] = Page.empty(self.spec.hot_formats)
        self.sweep()
        self.refuse(*reasons)
        return ReserveInfo(
            [reason == Reason.OK for reason in reasons],
            reasons,
            max(wanted_so_far - available, 0),
            sum(len(copies) for copies, _ in wishes),
        )

    def _wish(self, row: Row, count: int) -> tuple[Reason, list[int], list[int]]:
        """(refusal, shared places to copy, empty places to fill) for `count` more tokens."""
        if count == 0:
            return Reason.OK, [], []
        until = self.pages_for(row.length + count)
        if until > self.spec.max_pages:
            return Reason.ROW_FULL, [], []
        copies = []
        if row.length % self.spec.page_size:
            last = row.length // self.spec.page_size
            if row.entries[last] < 0:
                return Reason.NOT_RESERVED, [], []
            if self.names(row.entries[last]) > 1:
                copies = [last]
        places = range(self.pages_for(row.length), until)
        return Reason.OK, copies, [place for place in places if row.entries[place] == HOLE]

    def append(self, row_ids, counts, layer: int, k, v) -> AppendInfo:
        """Writes k, v [row, token, head, dim] after each row's last token, where it may."""
        planes = {kv: self._encoded(layer, kv, x) for kv, x in ((K, k), (V, v))}
        return self.append_encoded(row_ids, counts, layer, planes)

    def append_encoded(self, row_ids, counts, layer: int, planes: dict[int, Plane]) -> AppendInfo:
        """`append` of tokens that are in the layer's formats already: [row, head, token, width]."""
        dropped = []
        for n, (row_id, count) in enumerate(zip(row_ids, counts, strict=True)):
            pages = self._writable(int(row_id), int(count))
            dropped.append(pages.count(None))
            for t, page in enumerate(pages):
                if page is None:
                    continue
                offset = (self.rows[row_id].length + t) % self.spec.page_size
                for kv, plane in planes.items():
                    token = Plane(*(None if x is None else x[n, :, t] for x in plane))
                    page.write(layer, kv, offset, token, self.spec.page_size)
        return AppendInfo(dropped)

    def _encoded(self, layer: int, kv: int, x) -> Plane:
        """x[row, token, head, dim] in the layer's format, [row, head, token, width]."""
        tokens_last = np.asarray(x).swapaxes(1, 2)
        return Plane(*self.codecs.encode(self.spec.hot_formats[layer][kv], tokens_last))

    def _writable(self, row_id: int, count: int) -> list[Page | None]:
        """The page of each coming token, where the row alone holds it."""
        if not self.row_exists(row_id):
            return [None] * count
        row, pages = self.rows[row_id], {}
        places = [(row.length + t) // self.spec.page_size for t in range(count)]
        for place in set(places):
            entry = row.entries[place] if place < self.spec.max_pages else HOLE
            pages[place] = self.pages[entry] if entry >= 0 and self.names(entry) == 1 else None
        return [pages[place] for place in places]

    def advance(self, counts) -> AdvanceInfo:
        reasons = []
        for row_id, count in enumerate(map(int, counts)):
            ok = count >= 0 and None not in self._writable(row_id, count)
            if ok:
                self.rows[row_id].length += count
            reasons.append(Reason.OK if ok else Reason.NOT_RESERVED)
        self.refuse(*reasons)
        return AdvanceInfo(reasons)

    def fork(self, source_id: int, target_id: int) -> RowInfo:
        exist = self.row_exists(source_id) and self.row_exists(target_id)
        if not exist or source_id == target_id:
            return RowInfo(self.refuse(Reason.BAD_ID), 0, 0)
        source, target = self.rows[source_id], self.rows[target_id]
        if source.length == 0:
            return RowInfo(self.refuse(Reason.ROW_EMPTY), 0, 0)
        if not target.is_empty:
            return RowInfo(self.refuse(Reason.ROW_BUSY), 0, 0)
        if target_id in self.index.leases:
            return RowInfo(self.refuse(Reason.LEASE_BUSY), 0, 0)
        held = self.pages_for(source.length)
        target.entries = source.entries[:held] + [HOLE] * (self.spec.max_pages - held)
        target.length, target.committed = source.length, source.committed
        target.live = source.live
        if source_id in self.index.leases:
            self.index.leases[target_id] = list(self.index.leases[source_id])
        return RowInfo(Reason.OK, 0, 0)

    def truncate(self, row_id: int, length: int) -> RowInfo:
        if not self.row_exists(row_id) or not 0 <= length <= self.rows[row_id].length:
            return RowInfo(self.refuse(Reason.BAD_ID), 0, 0)
        row = self.rows[row_id]
        if length < row.committed:
            return RowInfo(self.refuse(Reason.BELOW_COMMITTED), 0, 0)
        return RowInfo(Reason.OK, *self._shorten(row_id, length))

    def release(self, row_id: int) -> RowInfo:
        if not self.row_exists(row_id):
            return RowInfo(self.refuse(Reason.BAD_ID), 0, 0)
        freed = self._shorten(row_id, 0)
        self.rows[row_id].committed = 0
        self.rows[row_id].live = None
        self.index.leases.pop(row_id, None)
        return RowInfo(Reason.OK, *freed)

    def _shorten(self, row_id: int, length: int) -> tuple[int, int]:
        """Gives back pages past `length` tokens, and waiting snapshots deeper than that."""
        row = self.rows[row_id]
        for place in range(self.pages_for(length), self.spec.max_pages):
            row.entries[place] = HOLE
        row.length = length
        for snap_id, snapshot in list(self.snapshots.items()):
            if snapshot.owner == row_id and snapshot.tokens > length:
                del self.snapshots[snap_id]
        return self.sweep()
