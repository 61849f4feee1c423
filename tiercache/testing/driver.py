"""Chooses the calls of a trace by looking at the reference: mostly sensible, some of them wrong.

A step is a name of `STEPS` and three numbers and symbols that say which of the possible calls it
makes; equal numbers give equal calls. `random_step` draws one; Hypothesis may draw them as well.
"""

import functools
from typing import Final, NamedTuple

import numpy as np

from tiercache.ids import NO_PAGE, NO_ROW
from tiercache.spec import CacheSpec
from tiercache.testing.calls import NUM_SYMBOLS, WIDTH, signature
from tiercache.testing.lockstep import Lockstep
from tiercache.testing.session import Session

# How often each step comes.
STEPS: Final = dict(
    serve=20, admit=6, decode=5, prefill=5, reserve=2, write=2, fork=3, truncate=3, release=5,
    save=4, insert=6, hold=7, unpin=4, mirror=4, evict_host=5, evict_drop=1, evict_cold=3,
    evict_slots=1, evict_snapshots_host=3, evict_snapshots_drop=1, requantize=2, retire=3,
    make_room=2, stale=5, spoil=1,
)  # fmt: skip
# What a step needs beside the calls that every spec allows.
NEEDS: Final = {"save": "save_snapshot"}
ROW_STEPS: Final = {"serve", "admit", "decode", "prefill", "write", "spoil", "hold", "stale"}
LIMIT: Final = 840  # of the numbers of a step: every small number divides it


class Step(NamedTuple):
    """What one step is made from.

    Attributes:
      name: of `STEPS`.
      a, b, c: in [0, `LIMIT`).
      symbols: one for each page of a prompt, in [0, `NUM_SYMBOLS`).
    """

    name: str
    a: int
    b: int
    c: int
    symbols: tuple[int, ...]


@functools.cache
def allowed_steps(spec: CacheSpec) -> tuple[str, ...]:
    """Steps whose calls the spec allows, each as often as it comes."""
    calls = signature(spec)
    names = [name for name in STEPS if name in ROW_STEPS or NEEDS.get(name, name) in calls]
    return tuple(name for name in names for _ in range(STEPS[name]))


def random_step(rng: np.random.Generator, spec: CacheSpec) -> Step:
    """Draws a step; prompts begin alike, so that they share pages and branch."""
    names = allowed_steps(spec)
    a, b, c, place, *drawn = rng.integers(2**32, size=4 + spec.max_pages).tolist()
    # Four of five pages are what most prompts have at that place.
    symbols = tuple(max(x % (5 * (NUM_SYMBOLS - 1)) - 4 * (NUM_SYMBOLS - 1) + 1, 0) for x in drawn)
    return Step(names[place % len(names)], a % LIMIT, b % LIMIT, c % LIMIT, symbols)


class Driver:
    """Turns steps into calls of a `Lockstep`.

    Attributes:
      lockstep: what is driven.
      num_steps: taken so far.
    """

    def __init__(self, lockstep: Lockstep, *, at_once: bool = False):
        """Drives a cache on; `at_once` is that of `Session`."""
        spec = lockstep.spec
        self.lockstep, self.spec = lockstep, spec
        self.symbols = [(0,) * spec.max_pages] * spec.max_rows
        self.namespaces = [0] * spec.max_rows
        self.num_steps = 0
        self._session = Session(lockstep, at_once=at_once)
        self._wrong_ids = [-1, 2**30, spec.max_rows, -(2**31), 97]

    def run(self, step: Step):
        """Pushes the calls of a step; which, depends on the state that the reference is in."""
        self.num_steps += 1
        method = getattr(self, f"_{step.name}", None)
        if method is None:
            self._number(step)
        else:
            method(*step[1:])

    def run_random(self, seed: int, num_steps: int):
        """Pushes random steps."""
        rng = np.random.default_rng(seed)
        for _ in range(num_steps):
            self.run(random_step(rng, self.spec))

    def _push(self, name: str, *args):
        return self._session.do(name, *args)

    def _row(self, a: int) -> int:
        """A row, or now and then an id that is none."""
        return self._wrong_ids[a % 5] if a % 12 == 7 else a % self.spec.max_rows

    def _busy(self, a: int) -> int:
        """A row that holds something, if there is one."""
        rows = [i for i, row in enumerate(self.lockstep.reference.rows) if not row.is_empty]
        return rows[a % len(rows)] if rows and a % 7 else self._row(a)

    def _idle(self, a: int) -> int:
        rows = [i for i, row in enumerate(self.lockstep.reference.rows) if row.is_empty]
        return rows[a % len(rows)] if rows and a % 7 else self._row(a)

    def _exists(self, row_id: int) -> bool:
        return 0 <= row_id < self.spec.max_rows

    def _length(self, row_id: int) -> int:
        return self.lockstep.reference.rows[row_id].length if self._exists(row_id) else 0

    def _counts(self, *counts: int) -> list[int]:
        """A number per row: the given ones over and over."""
        return [counts[i % len(counts)] for i in range(self.spec.max_rows)]

    def _start(self, row_id: int, symbols, length: int, namespace: int, cold: str) -> int:
        depth = self._session.admit(row_id, symbols, length, namespace, cold)
        if depth >= 0 and self._exists(row_id):
            self.symbols[row_id], self.namespaces[row_id] = symbols, namespace
        return depth

    def _admit(self, a, b, c, symbols):
        row_id, length = self._idle(a), 1 + b % self.spec.max_tokens
        cold = "hot" if c % 3 == 0 else "share"
        if self._start(row_id, symbols, length, int(c % 5 == 0), cold) >= 0:
            self._session.fill(row_id, c % (2 * WIDTH))

    def _serve(self, a, b, c, symbols):
        """A whole request: what is known of a prompt, the rest computed, saved and published."""
        row_id, pages = self._idle(a), 1 + b % (self.spec.max_pages - 1)
        if not self._exists(row_id) or not self.lockstep.reference.rows[row_id].is_empty:
            self._push("release", self._busy(a))
            return
        length = pages * self.spec.page_size + c % self.spec.page_size
        namespace = int(c % 11 == 0)
        depth = self._start(row_id, symbols, length, namespace, "hot" if c % 3 else "share")
        if depth < 0:
            return
        if c % 4 and "make_room" in self.lockstep.calls:
            self._push("make_room", pages, 2)
        if self._session.fill(row_id, length - depth):
            for at in {pages, max(pages - c % 3, 1)} if self.spec.num_snapshots else ():
                self._session.save_snapshot([row_id], [at * self.spec.page_size])
            self._session.insert(row_id, symbols, namespace)
            if c % 5 == 0 and "mirror" in self.lockstep.calls:
                self._push("mirror", row_id)
        if c % 2:
            self._push("release", row_id)

    def _decode(self, a, b, c, symbols):
        self._session.extend(self._counts(a % 5, b % 5, c % 5))

    def _prefill(self, a, b, c, symbols):
        row_id = self._busy(a)
        if self._exists(row_id):
            self._session.fill(row_id, b % WIDTH)

    def _reserve(self, a, b, c, symbols):
        self._push("reserve", self._counts(a % 43 - 2, b % 30, c % 20))

    def _write(self, a, b, c, symbols):
        """Appends and advances without asking for pages."""
        self._session.append(self._counts(a % 4, b % WIDTH, c % 3))
        self._push("advance", self._counts(a % 4 if a % 9 else -1, b % WIDTH, c % 3))

    def _spoil(self, a, b, c, symbols):
        """A step in which one value of one layer of one row is not finite."""
        self._session.extend(self._counts(1, 1, 0), bad=a % 2 * 3 + b % 3)

    def _fork(self, a, b, c, symbols):
        source, target = self._busy(a), self._idle(b)
        if not self._push("fork", source, target).reason:
            self.symbols[target] = self.symbols[source]
            self.namespaces[target] = self.namespaces[source]

    def _truncate(self, a, b, c, symbols):
        row_id = self._busy(a)
        self._push("truncate", row_id, self._length(row_id) - b % 20 + (c % 9 == 0))

    def _release(self, a, b, c, symbols):
        self._push("release", self._busy(a))

    def _save(self, a, b, c, symbols):
        """Two snapshots at once, of one row or of two; depths are right more often than not."""
        rows = [self._busy(a), self._busy(b) if c % 3 else NO_ROW]
        depths = [self._depth(rows[0], b), self._depth(rows[1], c)]
        self._session.save_snapshot(rows, depths, [0, self.spec.page_size * (c % 4)])

    def _depth(self, row_id: int, b: int) -> int:
        if not self._exists(row_id) or b % 11 == 0:
            return b % 40 - 3
        whole = self._length(row_id) // self.spec.page_size
        return self.spec.page_size * max(whole - b % 2, 0)

    def _insert(self, a, b, c, symbols):
        row_id, namespace = self._busy(a), 0
        if self._exists(row_id) and b % 5:
            symbols, namespace = self.symbols[row_id], self.namespaces[row_id]
        whole = self._length(row_id) // self.spec.page_size
        if c % 3 and self.spec.num_snapshots and whole:
            self._session.save_snapshot([row_id], [whole * self.spec.page_size])
        self._session.insert(row_id, symbols, namespace)

    def _lease(self, a: int, b: int) -> int:
        """One of nobody's leases most of the time; else a row's, or none."""
        first, past = self.spec.max_rows, self.spec.num_leases
        return [first, past - 1, first, past - 1, b % first, -1, past][a % 7]

    def _hold(self, a, b, c, symbols):
        """A plan under a lease of its own, or under that of a row."""
        plan = self._session.match(symbols, b % self.spec.max_tokens, int(c % 7 == 0))
        if c % 3:
            self._session.pin(plan, self._lease(a, a))

    def _unpin(self, a, b, c, symbols):
        self._push("unpin", self._lease(a, b))

    def _stale(self, a, b, c, symbols):
        """A plan of earlier: pinned, or used without a pin."""
        plans, row_id = self._session.plans, self._idle(a)
        if not plans:
            return
        plan = plans[b % len(plans)]
        if c % 3 == 2:
            self._session.pin(plan, self._lease(a % 2, 0))
        elif c % 3:
            self._session.load_snapshot(plan, row_id)
        else:
            self._session.rehydrate(plan, row_id)

    def _mirror(self, a, b, c, symbols):
        self._push("mirror", a % (self.spec.num_leases + 2) - 1)

    def _requantize(self, a, b, c, symbols):
        size = self.spec.num_pages + 1
        pages = list(dict.fromkeys([a % size, b % (size - 1), c % (size - 1)]))
        wanted = [-1 if page == size - 1 else page for page in pages]
        self._push("requantize", wanted + [NO_PAGE] * (3 - len(wanted)))

    def _retire(self, a, b, c, symbols):
        self._push("retire")

    def _make_room(self, a, b, c, symbols):
        self._push("make_room", a % 6, b % 3)

    def _number(self, step: Step):
        """An eviction of a few."""
        most = {"evict_host": 5, "evict_cold": 5, "evict_drop": 4, "evict_snapshots_host": 4}
        self._push(step.name, step.a % most.get(step.name, 3))
