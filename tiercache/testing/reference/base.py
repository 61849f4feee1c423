# pyright: reportArgumentType=false
# Infos here hold Python and NumPy numbers in place of arrays.
"""What a reference cache is made of, and the questions that all verbs ask it."""

import dataclasses

from tiercache.ids import HOLE
from tiercache.reasons import Reason
from tiercache.spec import CacheSpec
from tiercache.state import COUNTER_NAMES
from tiercache.testing.reference.index import Index, Node
from tiercache.testing.reference.storage import Codecs, Leaves, LibraryCodecs, Page, zero_leaves


@dataclasses.dataclass
class Row:
    """One running sequence.

    Attributes:
      entries: of the block table, `max_pages` of them.
      live: its recurrent state; None where nobody has said what it is.
    """

    entries: list[int]
    length: int = 0
    committed: int = 0
    live: Leaves | None = None

    @property
    def is_empty(self) -> bool:
        return all(entry == HOLE for entry in self.entries)


@dataclasses.dataclass
class Snapshot:
    """One recurrent state on the device.

    Attributes:
      tokens: its exact depth.
      owner: the row that it waits for, or the node that it hangs at.
      leaves: None where a row's state was not known.
    """

    tokens: int
    owner: "int | Node"
    leaves: Leaves | None


class Base:
    """The tiers as dicts from id to what is there; an id that is not a key is free."""

    def __init__(self, spec: CacheSpec, codecs: Codecs | None = None):
        self.spec = spec
        self.codecs: Codecs = codecs or LibraryCodecs()
        self.pages: dict[int, Page] = {}
        self.slots: dict[int, Page] = {}
        self.host_pages: dict[int, Page] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.host_snapshots: dict[int, Leaves | None] = {}
        self.rows = [
            Row([HOLE] * spec.max_pages, live=zero_leaves(spec)) for _ in range(spec.max_rows)
        ]
        self.index = Index(spec)
        self.counters = dict.fromkeys(COUNTER_NAMES, 0)
        self.status: set[Reason] = set()

    def row_exists(self, row_id: int) -> bool:
        return 0 <= row_id < self.spec.max_rows

    def names(self, entry: int) -> int:
        """References: how many places in rows and nodes name this page or slot."""
        rows = sum(row.entries.count(entry) for row in self.rows)
        return rows + sum(node.entry == entry for node in self.index.nodes())

    def free_ids(self, tier: dict, capacity: int) -> list[int]:
        return [i for i in range(capacity) if i not in tier]

    def free_pages(self) -> list[int]:
        return self.free_ids(self.pages, self.spec.num_pages)

    def sweep(self) -> tuple[int, int]:
        """Frees the pages and slots that nothing names any more; (pages, slots) freed."""
        pages = [page_id for page_id in self.pages if not self.names(page_id)]
        slots = [slot_id for slot_id in self.slots if not self.names(-2 - slot_id)]
        for page_id in pages:
            del self.pages[page_id]
        for slot_id in slots:
            del self.slots[slot_id]
        return len(pages), len(slots)

    def count(self, **events: int):
        for name, number in events.items():
            self.counters[name] += number

    def refuse(self, *reasons: Reason) -> Reason:
        """Remembers refusals, and returns the first."""
        for reason in reasons:
            if reason != Reason.OK:
                self.status.add(reason)
                self.counters["refused"] += 1
        return reasons[0]
