"""What a server does with the verbs, as calls of a `Lockstep`: requests come, go on and end."""

import functools
from collections.abc import Sequence
from typing import Any, Final

from tiercache.ids import NO_ROW
from tiercache.prefix import Plan
from tiercache.spec import CacheSpec
from tiercache.state import CacheState
from tiercache.testing.calls import NUM_PLANS, WIDTH
from tiercache.testing.lockstep import Lockstep
from tiercache.testing.reference import ReferenceCache

OTHER: Final = 99  # the symbol of pages that a prompt does not name


class Session:
    """Verbs as methods, and what takes several of them.

    Each method runs its verb on the cache and on the reference, and returns the info of the
    reference. A prompt is a list with a symbol for each page; pages past the list are those of a
    symbol that nobody uses. A namespace is a number, of `calls.NAMESPACES`. Verbs with numbers
    alone are methods by the names of `calls.signature`: `session.evict_host(2)`.

    Attributes:
      lockstep: the cache and its reference.
      do: makes a call of `calls.signature`: its name and its arguments.
    """

    def __init__(self, lockstep: Lockstep, *, at_once: bool = True, key: int = 0):
        """Begins with the cache as it is.

        Args:
          lockstep: what it talks to.
          at_once: whether each call runs and is compared at once, or with the next `flush`.
          key: of what is written; sessions with others write other numbers.
        """
        self.lockstep = lockstep
        self.do = lockstep.call if at_once else lockstep.push
        self._key = key
        self._made: list[tuple[int, Plan]] = []  # by place, the least recent first

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.lockstep.calls:
            raise AttributeError(name)
        return functools.partial(self.do, name)

    @property
    def spec(self) -> CacheSpec:
        return self.lockstep.spec

    @property
    def state(self) -> CacheState:
        return self.lockstep.state

    @property
    def reference(self) -> ReferenceCache:
        return self.lockstep.reference

    @property
    def plans(self) -> list[Plan]:
        """The last few that `match` made, the least recent first."""
        return [plan for _, plan in self._made]

    def symbols(self, pages: Sequence[int]) -> tuple[int, ...]:
        """A prompt that begins with these pages, as long as one can be."""
        rest = self.spec.max_pages - len(pages)
        return (*pages, *[OTHER] * rest)[: self.spec.max_pages]

    def match(self, pages: Sequence[int], length: int, namespace: int = 0) -> Plan:
        """A plan; it can be used until `NUM_PLANS` more have been made."""
        used = [place for place, _ in self._made]
        place = used[0] if len(used) == NUM_PLANS else min(set(range(NUM_PLANS)) - set(used))
        plan = self.do("match", place, self.symbols(pages), length, namespace)
        self._made = [*[x for x in self._made if x[0] != place], (place, plan)]
        return plan

    def _place(self, plan: Plan) -> int:
        for place, made in self._made:
            if made is plan:
                return place
        raise ValueError(f"{NUM_PLANS} more plans have been made since, or it is not of here.")

    def pin(self, plan: Plan, lease_id: int):
        return self.do("pin", self._place(plan), lease_id)

    def rehydrate(self, plan: Plan, row_id: int, cold: str = "share"):
        return self.do(f"rehydrate_{cold}", self._place(plan), row_id)

    def load_snapshot(self, plan: Plan, row_id: int):
        return self.do("load_snapshot", self._place(plan), row_id)

    def insert(self, row_id: int, pages: Sequence[int], namespace: int = 0):
        return self.do("insert", row_id, self.symbols(pages), namespace)

    def save_snapshot(
        self, row_ids: Sequence[int], depths: Sequence[int], replaces: Sequence[int] = (0, 0)
    ):
        """One snapshot or two."""
        rest = 2 - len(row_ids)
        row_ids, depths = [*row_ids, *[NO_ROW] * rest], [*depths, *[0] * rest]
        return self.do("save_snapshot", row_ids, depths, list(replaces))

    def append(self, counts: Sequence[int], *, bad: int = -1):
        """Writes K and V that nobody has written for a while, and new live states.

        Args:
          counts: tokens for each row.
          bad: row * 3 + which of `contents.NOT_FINITE` its first token holds somewhere; -1 if none.
        """
        self._key = (self._key + 1) % 2**16
        return self.do("append", list(counts), self._key, bad)

    def extend(self, counts: Sequence[int], *, bad: int = -1) -> bool:
        """A step of rows: reserve, append, advance; whether all rows took their tokens."""
        granted = self.do("reserve", list(counts)).granted
        counts = [count if ok else 0 for count, ok in zip(counts, granted, strict=True)]
        self.append(counts, bad=bad)
        if self._key % 4 == 0:
            self.do("attend", counts, self._key)
        self.do("advance", counts)
        return all(granted)

    def fill(self, row_id: int, count: int) -> bool:
        """Extends one row by `count` tokens, in as many steps as that takes."""
        done = True
        while count and done:
            size = min(count, WIDTH)
            done = self.extend([size * (row == row_id) for row in range(self.spec.max_rows)])
            count -= size
        return done

    def admit(
        self,
        row_id: int,
        pages: Sequence[int],
        length: int,
        namespace: int = 0,
        cold: str = "share",
    ) -> int:
        """match, pin, rehydrate, load_snapshot: the depth in tokens, or -1 if one was refused."""
        plan = self.match(pages, length, namespace)
        if not self.pin(plan, row_id).ok:
            return -1
        if self.rehydrate(plan, row_id, cold).reason or self.load_snapshot(plan, row_id).reason:
            self.do("release", row_id)
            return -1
        return int(plan.num_pages) * self.spec.page_size

    def publish(
        self, row_id: int, pages: Sequence[int], depths: Sequence[int] = (), namespace: int = 0
    ):
        """Saves the row's live state as snapshots of some depths in pages, and inserts the row."""
        for depth in depths:
            self.save_snapshot([row_id], [depth * self.spec.page_size])
        return self.insert(row_id, pages, namespace)
