"""Random traces of verbs over a state and its reference, compared after every verb, to the byte."""

import collections

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tiercache as tc
from tests.tiercache.lockstep import NAMESPACES, PAGE, PLAIN, WIDTH, WINDOW, Lockstep, prompt

# How often each step comes.
STEPS = dict(
    serve=20, admit=6, decode=5, prefill=5, reserve=2, write=2, fork=3, truncate=3, release=5,
    save=4, insert=6, hold=7, unpin=4, mirror=4, evict_host=5, evict_drop=1, evict_cold=3,
    evict_slots=1, evict_snapshots_host=3, evict_snapshots_drop=1, requantize=2, retire=3,
    make_room=2, stale=5, spoil=1,
)  # fmt: skip
NUM_STEPS = 60


def trace_of(seed: int):
    """Steps (name, a, b, c, symbols), from a seed: drawn one by one they would be few and small."""
    rng = np.random.default_rng(seed)
    weights = np.array(list(STEPS.values())) / sum(STEPS.values())
    names = rng.choice(list(STEPS), NUM_STEPS, p=weights)
    return [
        (str(name), *rng.integers(840, size=3).tolist(), (rng.random(6) < 0.2).astype(int).tolist())
        for name in names
    ]


class Driver:
    """Turns drawn steps into calls; about one in six is a wrong one."""

    def __init__(self, spec: tc.CacheSpec):
        self.both = Lockstep(spec)
        self.spec = spec
        self.tokens = [prompt([]) for _ in range(spec.max_rows)]
        self.namespaces = [NAMESPACES[0]] * spec.max_rows
        self.old_plans = collections.deque(maxlen=4)
        self.wrong_ids = [-1, 2**30, spec.max_rows, -(2**31), 97]

    def run(self, trace):
        for name, a, b, c, symbols in trace:
            if name.removesuffix("_") in self.verbs_missing():
                continue
            getattr(self, name)(a, b, c, symbols)
        return self.both.seen

    def verbs_missing(self):
        known = vars(self.both.verbs)
        uses = {"save": "save_snapshot", "hold": "pin", "stale": "pin"}
        own = {"serve", "admit", "decode", "prefill", "write", "spoil", *uses}
        return [name for name in STEPS if name not in own and name not in known] + [
            name for name, verb in uses.items() if verb not in known
        ]

    def row(self, a: int) -> int:
        """A row, or now and then an id that is none."""
        return self.wrong_ids[a % 5] if a % 12 == 7 else a % self.spec.max_rows

    def busy(self, a: int) -> int:
        """A row that holds something, if there is one."""
        rows = [i for i, row in enumerate(self.both.reference.rows) if not row.is_empty]
        return rows[a % len(rows)] if rows and a % 7 else self.row(a)

    def idle(self, a: int) -> int:
        rows = [i for i, row in enumerate(self.both.reference.rows) if row.is_empty]
        return rows[a % len(rows)] if rows and a % 7 else self.row(a)

    def admit(self, a, b, c, symbols):
        row_id, length = self.idle(a), 1 + b % self.spec.max_tokens
        cold = "hot" if c % 3 == 0 else "share"
        namespace = NAMESPACES[c % 5 == 0]
        depth = self.both.admit(row_id, prompt(symbols), length, namespace, cold)
        if depth >= 0 and row_id < self.spec.max_rows:
            self.tokens[row_id], self.namespaces[row_id] = prompt(symbols), namespace
            self.both.prefill(row_id, c % (2 * WIDTH))

    def serve(self, a, b, c, symbols):
        """A whole request: what is known of a prompt, the rest computed, saved and published."""
        row_id, pages = self.idle(a), 1 + b % 5
        if not 0 <= row_id < self.spec.max_rows or not self.both.reference.rows[row_id].is_empty:
            row_id = self.busy(a)
            self.both.release(row_id)
            return
        tokens, namespace = prompt(symbols), NAMESPACES[c % 11 == 0]
        length = pages * PAGE + c % PAGE
        depth = self.both.admit(row_id, tokens, length, namespace, "hot" if c % 3 else "share")
        if depth < 0:
            return
        self.tokens[row_id], self.namespaces[row_id] = tokens, namespace
        if c % 4:
            self.both.make_room(pages, 2)
        if self.both.prefill(row_id, length - depth):
            depths = {pages, max(pages - c % 3, 1)} if self.spec.needs_snapshot else ()
            for at in depths:
                self.both.save_snapshot([row_id, tc.NO_ROW], [at * PAGE, 0])
            self.both.insert(row_id, tokens, namespace)
            if c % 5 == 0:
                self.both.mirror(row_id)
        if c % 2:
            self.both.release(row_id)

    def decode(self, a, b, c, symbols):
        self.both.extend([a % 5, b % 5, c % 5])

    def prefill(self, a, b, c, symbols):
        row_id = self.busy(a)
        if 0 <= row_id < self.spec.max_rows:
            self.both.prefill(row_id, b % WIDTH)

    def reserve(self, a, b, c, symbols):
        self.both.reserve([a % 43 - 2, b % 30, c % 20])

    def write(self, a, b, c, symbols):
        """Appends and advances without asking for pages."""
        self.both.append([a % 4, b % WIDTH, c % 3])
        self.both.advance([a % 4 if a % 9 else -1, b % WIDTH, c % 3])

    def fork(self, a, b, c, symbols):
        source, target = self.busy(a), self.idle(b)
        if not self.both.fork(source, target).reason:
            self.tokens[target] = self.tokens[source]
            self.namespaces[target] = self.namespaces[source]

    def truncate(self, a, b, c, symbols):
        row_id = self.busy(a)
        length = 0
        if 0 <= row_id < self.spec.max_rows:
            length = self.both.reference.rows[row_id].length
        self.both.truncate(row_id, length - b % 20 + (c % 9 == 0))

    def release(self, a, b, c, symbols):
        self.both.release(self.busy(a))

    def save(self, a, b, c, symbols):
        """Two snapshots at once, of one row or of two; depths are right more often than not."""
        rows = [self.busy(a), self.busy(b) if c % 3 else tc.NO_ROW]
        depths = [self.depth(rows[0], b), self.depth(rows[1], c)]
        self.both.save_snapshot(rows, depths, [0, PAGE * (c % 4)])

    def depth(self, row_id: int, b: int) -> int:
        if not 0 <= row_id < self.spec.max_rows or b % 11 == 0:
            return b % 40 - 3
        whole = self.both.reference.rows[row_id].length // PAGE
        return PAGE * max(whole - b % 2, 0)

    def insert(self, a, b, c, symbols):
        row_id = self.busy(a)
        tokens, namespace, row = prompt(symbols), NAMESPACES[0], None
        if 0 <= row_id < self.spec.max_rows:
            row = self.both.reference.rows[row_id]
            if b % 5:
                tokens, namespace = self.tokens[row_id], self.namespaces[row_id]
        if c % 3 and self.spec.needs_snapshot and row and row.length >= PAGE:
            self.both.save_snapshot([row_id, tc.NO_ROW], [row.length // PAGE * PAGE, 0])
        self.both.insert(row_id, tokens, namespace)

    def hold(self, a, b, c, symbols):
        """A plan under a lease of its own, or under that of a row."""
        plan = self.both.match(prompt(symbols), b % self.spec.max_tokens, NAMESPACES[c % 7 == 0])
        self.old_plans.append(plan)
        if c % 3:
            self.both.pin(plan, [3, 4, 3, 4, a % 3, -1, 5][a % 7])

    def unpin(self, a, b, c, symbols):
        self.both.unpin([3, 4, 3, 4, b % 3, -1, 5][a % 7])

    def stale(self, a, b, c, symbols):
        """A plan of earlier: pinned, or used without a pin."""
        if not self.old_plans:
            return
        plan = self.old_plans[b % len(self.old_plans)]
        row_id = self.idle(a)
        if c % 3 == 0:
            self.both.rehydrate(plan, row_id)
        elif c % 3 == 1:
            self.both.load_snapshot(plan, row_id)
        else:
            self.both.pin(plan, 3 + a % 2)

    def mirror(self, a, b, c, symbols):
        self.both.mirror([0, 1, 2, 3, 4, 5, -1][a % 7])

    def evict_host(self, a, b, c, symbols):
        self.both.evict_host(a % 5)

    def evict_drop(self, a, b, c, symbols):
        self.both.evict_drop(a % 4)

    def evict_cold(self, a, b, c, symbols):
        self.both.evict_cold(a % 5)

    def evict_slots(self, a, b, c, symbols):
        self.both.evict_slots(a % 3)

    def evict_snapshots_host(self, a, b, c, symbols):
        self.both.evict_snapshots_host(a % 4)

    def evict_snapshots_drop(self, a, b, c, symbols):
        self.both.evict_snapshots_drop(a % 3)

    def requantize(self, a, b, c, symbols):
        pages = dict.fromkeys([a % 11, b % 10, c % 10])
        wanted = [-1 if page == 10 else page for page in pages]
        self.both.requantize(wanted + [tc.NO_PAGE] * (3 - len(wanted)))

    def retire(self, a, b, c, symbols):
        self.both.retire()

    def make_room(self, a, b, c, symbols):
        self.both.make_room(a % 6, b % 3)

    def spoil(self, a, b, c, symbols):
        """A step in which one value of one layer is not finite."""

        def edit(k, v):
            (k, v)[a % 2][0, :, 0, b % 2, c % 64] = [np.inf, -np.inf, np.nan][c % 3]

        granted = self.both.reserve([1, 1, 0]).granted
        counts = [int(ok) for ok in granted[:2]] + [0]
        self.both.append(counts, edit=edit)
        self.both.advance(counts)


@pytest.mark.parametrize("spec", [WINDOW, PLAIN], ids=["window", "plain"])
def test_random_traces_agree_with_the_reference_to_the_byte(spec):
    seen, events = set(), collections.Counter()

    @settings(
        max_examples=8 if spec is PLAIN else 12,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
    )
    @given(seed=st.integers(0, 2**32 - 1))
    def run(seed):
        driver = Driver(spec)
        seen.update(driver.run(trace_of(seed)))
        events.update(driver.both.reference.counters)

    run()
    lacks = ("cold", "snapshot") if spec is PLAIN else ()
    never = [name for name in tc.state.COUNTER_NAMES if not events[name]]
    never = [name for name in never if not any(word in name for word in lacks)]
    never += sorted(set(REACHED.split(", ")) - seen)
    assert not never, f"the traces have become too tame: {never}, of {sorted(seen)}"


# What the traces must reach beside every counter; test_rules has each of the other refusals.
REACHED = (
    "advance NOT_RESERVED, fork ROW_BUSY, insert TOKENS_MISMATCH, load_snapshot NOT_PINNED, "
    "pin LEASE_BUSY, reserve PAGES_FULL, truncate BELOW_COMMITTED, unpin OK"
)
