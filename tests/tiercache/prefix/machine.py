"""Random traces over an index and its reference, compared after every step."""

import collections
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from tests.tiercache.prefix.reference import Trie
from tiercache import prefix
from tiercache.ids import HOLE, NO_HOST, NO_NODE, NO_SLOT, NO_SNAP
from tiercache.reasons import Reason

NUM_NODES, PAGE_SIZE, MAX_PAGES, NUM_LEASES, WANT = 12, 16, 4, 3, 5
NUM_TOKENS = PAGE_SIZE * MAX_PAGES
NAMESPACES = [
    prefix.Namespace(tenant="a").lanes(),
    prefix.Namespace(adapter="a").lanes(),
]

VERBS = (
    "match touch pin unpin repin extend can_extend victims drop_dead relocate set_entries"
    " set_host_ids set_snapshots set_host_snapshots attach_snapshot attach_host_snapshot check"
    " has_copy live_children stranded_snapshots num_free_nodes"
).split()
STATIC = {"match": "needs_snapshot", "victims": "want"}


HASHING = ("match", "extend", "can_extend")


def jitted(names=VERBS):
    """Verbs, jitted anew, so that a test may replace what they are made of."""

    def fresh(name):
        verb = getattr(prefix, name)
        wrapped = functools.wraps(verb)(lambda *args, **kwargs: verb(*args, **kwargs))
        return jax.jit(wrapped, static_argnames=STATIC.get(name))

    return {name: fresh(name) for name in names}


def prompt(symbols, filler=0):
    """Tokens of a few pages, each one symbol, and filler up to the longest prompt."""
    rows = [*symbols, *[90 + filler] * (MAX_PAGES - len(symbols))]
    grid = np.arange(PAGE_SIZE)[None] + 1000 * np.array(rows)[:, None]
    return grid.reshape(-1).astype(np.int32)


def empty_index():
    return prefix.init_index(
        num_nodes=NUM_NODES, page_size=PAGE_SIZE, max_pages=MAX_PAGES, num_leases=NUM_LEASES
    )


# How often each step comes, and the longest trace.
STEPS = dict(
    store=5, resume=7, pin_old=3, unpin=4, repin=1, touch=1, demote=2, evict=4, snapshot=4, strip=1
)
STEPS["drop"] = 1
NUM_STEPS = 40


@st.composite
def traces(draw):
    """Steps (name, pages, a, b), from a seed: drawn one by one they would be few and small."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = np.array(list(STEPS.values()))
    names = rng.choice(list(STEPS), NUM_STEPS, p=weights / weights.sum())
    return [
        (
            str(name),
            rng.choice([0, 0, 0, 1, 2], rng.integers(MAX_PAGES + 1)).tolist(),
            *rng.integers(8, size=2).tolist(),
        )
        for name in names
    ]


class Machine:
    """Runs steps on both, and compares."""

    def __init__(self, verbs, *, crowded=False):
        """`crowded`: keys collide so often that a bucket may run out of ways."""
        self.crowded = crowded
        self.verbs = SimpleNamespace(**verbs)
        self.index = empty_index()
        self.trie = Trie(NUM_NODES, PAGE_SIZE, MAX_PAGES, NUM_LEASES)
        self.old_plan = None
        self.path = jnp.full((MAX_PAGES,), NO_NODE, jnp.int32)
        self.stored = []
        self.next_id = 0
        self.seen = collections.Counter()

    def run(self, trace):
        """Runs the steps; counts what happened, so that a test can ask whether all of it does."""
        for name, pages, a, b in trace:
            getattr(self, name)(pages, a, b)
            self.trie.assert_equal(jax.device_get(self.index))
            broken = [name for name, ok in self.verbs.check(self.index)._asdict().items() if not ok]
            assert not broken, broken
        return self.seen

    def fresh_ids(self, count):
        self.next_id += count
        return np.arange(self.next_id - count, self.next_id, dtype=np.int32)

    def store(self, pages, a, b):
        """Extends; new pages get a hot page, a host page or both, so that paths stay whole."""
        tokens, namespace = prompt(pages, a), NAMESPACES[b in (5, 7)]
        count = len(pages) if a else MAX_PAGES + b % 2
        self.stored = pages
        affordable = self.verbs.can_extend(self.index, tokens, jnp.int32(len(pages)), namespace)
        num_known, num_affordable = self.trie.can_extend(tokens, len(pages), namespace)
        assert affordable[0] == num_known
        assert affordable[1] == num_affordable or (
            self.crowded and num_known <= affordable[1] < num_affordable
        )
        free = self.trie.num_nodes - len(self.trie.nodes)
        assert self.verbs.num_free_nodes(self.index) == free
        self.index, info = self.verbs.extend(self.index, tokens, jnp.int32(count), namespace)
        if self.crowded and info.reason == Reason.BUCKET_FULL:
            self.seen["extend", "BUCKET_FULL"] += 1
            return
        path, new, known, shortfall, reason = self.trie.extend(tokens, count, namespace)
        assert info.node_ids.tolist() == self.trie.padded(path, NO_NODE)
        assert info.node_ids[info.is_new].tolist() == new
        assert (int(info.num_known), int(info.reason)) == (known, reason)
        assert shortfall is None or int(info.shortfall) == shortfall
        self.seen["extend", Reason(reason).name] += 1
        self.path = info.node_ids
        for node_id in path:
            node = self.trie.nodes[node_id]
            if not node.has_copy:
                node.entry, node.host_id = self.fresh_ids(2).tolist()
                if b % 4 == 2:
                    node.host_id = NO_HOST
                if b % 4 == 3:
                    node.entry = HOLE
        self.publish()

    def publish(self):
        """Writes the reference's copies into the index."""
        ids = jnp.arange(NUM_NODES, dtype=jnp.int32)
        nodes = [self.trie.nodes.get(i) for i in range(NUM_NODES)]

        def column(name, fill):
            values = [getattr(node, name) if node else fill for node in nodes]
            return jnp.array(values, jnp.int32)

        index = self.verbs.set_entries(self.index, ids, column("entry", HOLE))
        index = self.verbs.set_host_ids(index, ids, column("host_id", NO_HOST))
        index = self.verbs.set_snapshots(index, ids, column("snap_id", NO_SNAP))
        self.index = self.verbs.set_host_snapshots(index, ids, column("host_snap_id", NO_SNAP))

    def resume(self, pages, a, b):
        """Matches, which must change nothing, and pins the plan."""
        pages = self.stored if b % 2 else pages
        tokens, namespace = prompt(pages, a), NAMESPACES[b in (5, 7)]
        length = min(len(pages) * PAGE_SIZE + (a - 3), NUM_TOKENS)
        plan = self.verbs.match(
            self.index, tokens, jnp.int32(length), namespace, needs_snapshot=a % 2 == 0
        )
        expected = self.trie.match(tokens, length, namespace, a % 2 == 0)
        got = {name: np.asarray(value).tolist() for name, value in plan._asdict().items()}
        assert got == expected
        self.seen["cut", int(plan.cut)] += 1
        self.seen.update(("source", source) for source in expected["source"])
        self.seen["snapshot", int(plan.snapshot_source)] += 1
        if a < 4 and plan.num_pages > 0:
            self.old_plan = plan
        else:
            self.pin(plan, b // 2)

    def pin(self, plan, lease_id):
        self.index, info = self.verbs.pin(self.index, plan, jnp.int32(lease_id))
        reason = self.trie.pin(jax.device_get(plan), lease_id)
        assert (bool(info.ok), int(info.reason)) == (reason == 0, reason)
        self.seen["pin", Reason(reason).name] += 1

    def pin_old(self, pages, a, b):
        """Pins a plan of some time ago, or a new one after its path lost some of its pages."""
        if a % 2:
            self.resume(pages, 3, 1)
            self.evict(pages, 7, b)
        if a % 4 == 3:
            self.strip(pages, a, b)
            self.drop(pages, a, b)
        if self.old_plan is not None:
            self.pin(self.old_plan, b // 2 - 1)

    def unpin(self, pages, a, b):
        lease_id = (b - 1) // 2
        self.index, info = self.verbs.unpin(self.index, jnp.int32(lease_id))
        reason = self.trie.unpin(lease_id)
        assert (bool(info.ok), int(info.reason)) == (reason == 0, reason)
        self.seen["unpin", Reason(reason).name] += 1

    def repin(self, pages, a, b):
        count = a - 1
        node_ids = self.path if b != 7 else self.path[::-1]
        self.index, info = self.verbs.repin(
            self.index, jnp.int32(b % 4), node_ids, jnp.int32(count)
        )
        reason = self.trie.repin(b % 4, np.asarray(node_ids), count)
        assert (bool(info.ok), int(info.reason)) == (reason == 0, reason)
        self.seen["repin", Reason(reason).name] += 1

    def touch(self, pages, a, b):
        ids = self.path if b % 2 else jnp.array([a, b, -1, NO_NODE], jnp.int32)
        self.index = self.verbs.touch(self.index, ids)
        self.trie.touch(np.asarray(ids).tolist())

    def demote(self, pages, a, b):
        """Hot pages become cold slots."""
        hot = [i for i, node in sorted(self.trie.nodes.items()) if node.entry >= 0][: a % 4]
        page_ids = np.full(4, NO_NODE, np.int32)
        page_ids[1 : len(hot) + 1] = [self.trie.nodes[i].entry for i in hot][::-1]
        slots = np.where(page_ids < NO_NODE, self.fresh_ids(4), NO_SLOT).astype(np.int32)
        self.index = self.verbs.relocate(self.index, page_ids, slots)
        for page_id, slot in zip(page_ids, slots, strict=True):
            for node in self.trie.nodes.values():
                if node.entry == page_id:
                    node.entry = int(-2 - slot)

    def evict(self, pages, a, b):
        """The first victims without a live child lose all copies of their page."""
        has_copy = np.asarray(self.verbs.has_copy(self.index))
        live = np.asarray(self.verbs.live_children(self.index))
        nodes = self.trie.nodes
        for i in range(NUM_NODES):
            below = [node for node in nodes.values() if node.parent == i and node.has_copy]
            assert live[i] == len(below)
            assert has_copy[i] == (i in nodes and nodes[i].has_copy)
        order = self.verbs.victims(self.index, has_copy, want=NUM_NODES)
        assert order.tolist() == self.trie.victims(np.flatnonzero(has_copy).tolist(), NUM_NODES)
        mask = has_copy & (live == 0)
        if a >= 4:  # those of the newest path
            mask &= np.isin(np.arange(NUM_NODES), self.path)
        chosen = self.verbs.victims(self.index, mask, want=WANT)
        assert chosen.tolist() == self.trie.victims(np.flatnonzero(mask).tolist(), WANT)
        for node_id in chosen[: a % 4].tolist():
            if node_id != NO_NODE:
                nodes[node_id].entry, nodes[node_id].host_id = HOLE, NO_HOST
        self.publish()

    def snapshot(self, pages, a, b):
        """Attaches a snapshot to a node, of its depth or of another."""
        depth = self.trie.nodes[a].depth if a in self.trie.nodes else 1
        num_tokens = depth * PAGE_SIZE - (b % 4 == 0)
        attach = self.verbs.attach_snapshot if b % 2 else self.verbs.attach_host_snapshot
        name = "snap_id" if b % 2 else "host_snap_id"
        (snap_id,) = self.fresh_ids(1).tolist()
        self.index, info = attach(
            self.index, jnp.int32(a), jnp.int32(snap_id), jnp.int32(num_tokens)
        )
        ok = a in self.trie.nodes and depth > 0 and b % 4 != 0
        assert bool(info.ok) == ok
        replaced = getattr(self.trie.nodes[a], name) if ok else NO_SNAP
        assert info.replaced_id == replaced
        if ok:
            setattr(self.trie.nodes[a], name, snap_id)

    def strip(self, pages, a, b):
        """Snapshots at unpinned nodes without a page go."""
        stranded = np.asarray(self.verbs.stranded_snapshots(self.index))
        for node_id, node in self.trie.nodes.items():
            expected = node.has_snapshot and not node.has_copy and not self.trie.pins(node_id)
            assert stranded[node_id] == expected
            if expected:
                node.snap_id = node.host_snap_id = NO_SNAP
        self.publish()

    def drop(self, pages, a, b):
        self.index, num_dropped = self.verbs.drop_dead(self.index)
        assert num_dropped == self.trie.drop_dead()
        self.seen["dropped", bool(num_dropped)] += 1
