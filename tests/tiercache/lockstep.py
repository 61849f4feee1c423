"""One cache twice: the library's state and the reference, driven by the same calls.

Each method of `Lockstep` calls a verb on both and compares its `Info`. After every call the whole
state is compared, the rules of `check` hold, and what nobody owns is overwritten, so that a later
read of it shows.
"""

import functools
import reprlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

import tiercache as tc
from tests.pallas_kernels.codecs import oracle
from tiercache.testing import poison_free
from tiercache.testing.reference import ReferenceCache, differences, info_differences

WIDTH = 24  # tokens per step at most
MOST = 4
PAGE = 16
LEAVES = (
    tc.SnapshotLeaf("conv", (2, 2, 6), "bfloat16"),
    tc.SnapshotLeaf("delta", (2, 2, 4), "float32"),
)
WINDOW = tc.CacheSpec(
    num_layers=2, num_kv_heads=2, head_dim=64, page_size=PAGE,
    num_pages=10, max_rows=3, max_pages=6, num_cold_slots=5, num_host_pages=5,
    num_snapshots=3, num_host_snapshots=3, num_nodes=16, num_leases=5,
    policy="window", keep_tokens=16, snapshot_leaves=LEAVES,
    hot_formats="all:bf16; 1.v:int8_g64", cold_formats="all:nvfp4_g16; 1.v:e2m1_g64",
)  # fmt: skip
PLAIN = tc.CacheSpec(
    num_layers=2, num_kv_heads=2, head_dim=64, page_size=PAGE,
    num_pages=10, max_rows=3, max_pages=6, num_host_pages=4, index_pages=5, num_leases=5,
    hot_formats="all:fp8_e4m3; 0.v:bf16",
)  # fmt: skip
NAMESPACES = (tc.Namespace(tenant="a").lanes(), tc.Namespace(adapter="a").lanes())


@functools.cache
def verbs(spec: tc.CacheSpec) -> SimpleNamespace:
    """Every verb, jitted once for the spec, under the name of its method of the reference."""

    def jit(verb, **static):
        return jax.jit(functools.partial(verb, **static))

    def step(state, row_ids, counts, k, v, live):
        view = tc.view(state, row_ids, counts, num_tokens=WIDTH, spec=spec)
        for layer in range(spec.num_layers):
            state, info = tc.append(state, view, layer, k[layer], v[layer], spec=spec)
        moved = counts > 0
        rows = jnp.where(moved, row_ids, tc.NO_ROW)
        put = [
            old.at[:, rows].set(new, mode="drop") for old, new in zip(state.live, live, strict=True)
        ]
        return state._replace(live=tuple(put)), info

    found = SimpleNamespace(
        reserve=jit(tc.reserve, max_tokens=40, spec=spec),
        step=jit(step),
        advance=jit(tc.advance, spec=spec),
        fork=jit(tc.fork, spec=spec),
        truncate=jit(tc.truncate, spec=spec),
        release=jit(tc.release, spec=spec),
        insert=jit(tc.insert, spec=spec),
        match=jit(tc.match, spec=spec),
        pin=jit(tc.pin),
        unpin=jit(tc.unpin),
        rehydrate_share=jit(tc.rehydrate, cold="share", spec=spec),
        rehydrate_hot=jit(tc.rehydrate, cold="hot", spec=spec),
        load_snapshot=jit(tc.load_snapshot, spec=spec),
        evict_drop=jit(tc.evict, most=MOST, to="drop", spec=spec),
        check=jit(tc.check, spec=spec),
    )
    if spec.num_host_pages:
        found.mirror = jit(tc.mirror, most=MOST, spec=spec)
        found.evict_host = jit(tc.evict, most=MOST, to="host", spec=spec)
        found.make_room = jit(tc.make_room, spec=spec)
    if spec.num_cold_slots:
        found.evict_cold = jit(tc.evict, most=MOST, to="cold", spec=spec)
        found.evict_slots = jit(tc.evict, most=MOST, to="drop", tier="cold", spec=spec)
        found.requantize = jit(tc.requantize, spec=spec)
    if spec.keep_tokens:
        found.retire = jit(tc.retire, most=2, spec=spec)
    if spec.num_snapshots:
        found.save_snapshot = jit(tc.save_snapshot, spec=spec)
        found.evict_snapshots_host = jit(tc.evict_snapshots, most=3, to="host", spec=spec)
        found.evict_snapshots_drop = jit(tc.evict_snapshots, most=3, to="drop", spec=spec)
    return found


def prompt(symbols) -> np.ndarray:
    """Token ids of a whole row: one symbol per page, the rest filled with one that is not used."""
    rows = [*symbols, *[9] * (6 - len(symbols))]
    return (np.array(rows)[:, None] * 100 + np.arange(PAGE)).reshape(-1).astype(np.int32)


def contents(spec: tc.CacheSpec, key: int, num_rows: int):
    """(K, V, live state) of a step: no number comes twice, in no row, position, layer, K or V."""
    rng = np.random.default_rng(key)
    shape = (2, spec.num_layers, num_rows, WIDTH, spec.num_kv_heads, spec.head_dim)
    k, v = rng.standard_normal(shape, np.float32) * 2
    live = [rng.standard_normal((num_rows, *leaf.shape)) for leaf in spec.snapshot_leaves]
    types = [np.dtype(leaf.dtype) for leaf in spec.snapshot_leaves]
    return k, v, [x.astype(dtype) for x, dtype in zip(live, types, strict=True)]


class Lockstep:
    """A state and its reference. `state` and `reference` may be looked at, not changed."""

    def __init__(self, spec: tc.CacheSpec, *, poison: bool = True):
        self.spec, self.verbs, self.poison = spec, verbs(spec), poison
        self.state = tc.init_state(spec)
        self.reference = ReferenceCache(spec, oracle)
        self.key = 0
        self.seen: set[str] = set()

    def __getattr__(self, name: str):
        """The verb `name`; a method below, if its arguments need care."""
        if name not in vars(self.verbs):
            raise AttributeError(name)
        return functools.partial(self.call, name)

    def call(self, name: str, *args: int | list[int]):
        """Calls a verb with numbers or lists of numbers on both; returns the reference's info."""
        device = [jnp.asarray(np.array(arg, np.int32)) for arg in args]
        self.state, info = getattr(self.verbs, name)(self.state, *device)
        return self.compare(name, info, *args)

    def compare(self, name: str, info, *args, **kwargs):
        """Runs the reference, and compares everything."""
        method, options = METHODS.get(name, (name, {}))
        want = getattr(self.reference, method)(*args, **options, **kwargs)
        problems = info_differences(want, info) + self.problems()
        assert not problems, "\n".join([f"after {name}{reprlib.repr(args)}:", *problems])
        for value in np.atleast_1d(getattr(want, "reason", [])):
            self.seen.add(f"{method} {tc.Reason(int(value)).name}")
        if self.poison:
            self.state = poison_free(self.state, self.spec)
            self.reference.forget_unowned()
        return want

    def problems(self) -> list[str]:
        broken = [k for k, ok in jax.device_get(self.verbs.check(self.state)).items() if not ok]
        return [f"check: {name}" for name in broken] + differences(self.reference, self.state)

    def append(self, counts: list[int], *, edit=None):
        """Writes `counts` tokens to all rows in all layers, and sets their live states."""
        self.key += 1
        row_ids = list(range(self.spec.max_rows))
        k, v, live = contents(self.spec, self.key, len(row_ids))
        if edit is not None:
            edit(k, v)
        device_live = [jnp.asarray(np.moveaxis(x, 0, 1)) for x in live]
        args = np.array(row_ids, np.int32), np.array(counts, np.int32), k, v, device_live
        self.state, info = self.verbs.step(self.state, *args)
        for row_id, number in enumerate(counts):
            if number > 0:
                self.reference.set_live(row_id, [x[row_id] for x in live])
        for layer in range(self.spec.num_layers - 1):
            self.reference.append(row_ids, counts, layer, k[layer], v[layer])
        layer = self.spec.num_layers - 1
        return self.compare("append", info, row_ids, counts, layer, k[layer], v[layer])

    def extend(self, counts: list[int]) -> bool:
        """A step of rows: reserve, append, advance; whether all rows took their tokens."""
        granted = self.reserve(counts).granted
        counts = [count if ok else 0 for count, ok in zip(counts, granted, strict=True)]
        self.append(counts)
        self.advance(counts)
        return all(granted)

    def match(self, tokens, length: int, namespace):
        before = self.state
        plan = self.verbs.match(self.state, tokens, jnp.int32(length), namespace)
        assert self.state is before
        return self.compare("match", plan, tokens, length, namespace)

    def _plan(self, plan):
        return jax.tree.map(
            lambda x: jnp.asarray(np.array(x, np.int32)), plan, is_leaf=lambda x: type(x) is list
        )

    def pin(self, plan, lease_id: int):
        self.state, info = self.verbs.pin(self.state, self._plan(plan), jnp.int32(lease_id))
        return self.compare("pin", info, plan, lease_id)

    def rehydrate(self, plan, row_id: int, cold: str = "share"):
        name = f"rehydrate_{cold}"
        verb = getattr(self.verbs, name)
        self.state, info = verb(self.state, self._plan(plan), jnp.int32(row_id))
        return self.compare(name, info, plan, row_id)

    def load_snapshot(self, plan, row_id: int):
        self.state, info = self.verbs.load_snapshot(self.state, self._plan(plan), jnp.int32(row_id))
        return self.compare("load_snapshot", info, plan, row_id)

    def insert(self, row_id: int, tokens, namespace):
        self.state, info = self.verbs.insert(self.state, jnp.int32(row_id), tokens, namespace)
        return self.compare("insert", info, row_id, tokens, namespace)

    def save_snapshot(
        self, row_ids: list[int], tokens: list[int], replaces: list[int] | None = None
    ):
        replaces = [0] * len(row_ids) if replaces is None else replaces
        args = [jnp.asarray(np.array(x, np.int32)) for x in (row_ids, tokens, replaces)]
        self.state, info = self.verbs.save_snapshot(self.state, args[0], args[1], replaces=args[2])
        return self.compare("save_snapshot", info, row_ids, tokens, replaces=replaces)

    def admit(self, row_id: int, tokens, length: int, namespace, cold: str = "share") -> int:
        """match, pin, rehydrate, load_snapshot; the depth in tokens, or -1 if refused."""
        plan = self.match(tokens, length, namespace)
        if not self.pin(plan, row_id).ok:
            return -1
        if self.rehydrate(plan, row_id, cold).reason or self.load_snapshot(plan, row_id).reason:
            self.release(row_id)
            return -1
        return plan.num_pages * self.spec.page_size

    def publish(self, row_id: int, tokens, namespace, depths=()):
        """Saves the live state as snapshots of some depths in pages, and inserts the row."""
        for depth in depths:
            self.save_snapshot([row_id], [depth * self.spec.page_size])
        return self.insert(row_id, tokens, namespace)

    def prefill(self, row_id: int, count: int) -> bool:
        """Extends one row by `count` tokens, in as many steps as that takes."""
        done = True
        while count and done:
            size = min(count, WIDTH)
            done = self.extend([size * (row == row_id) for row in range(self.spec.max_rows)])
            count -= size
        return done


METHODS = {
    "reserve": ("reserve", {"max_tokens": 40}),
    "rehydrate_share": ("rehydrate", {"cold": "share"}),
    "rehydrate_hot": ("rehydrate", {"cold": "hot"}),
    "evict_drop": ("evict", {"most": MOST, "to": "drop"}),
    "evict_host": ("evict", {"most": MOST, "to": "host"}),
    "evict_cold": ("evict", {"most": MOST, "to": "cold"}),
    "evict_slots": ("evict", {"most": MOST, "to": "drop", "tier": "cold"}),
    "evict_snapshots_host": ("evict_snapshots", {"most": 3, "to": "host"}),
    "evict_snapshots_drop": ("evict_snapshots", {"most": 3, "to": "drop"}),
    "mirror": ("mirror", {"most": MOST}),
    "retire": ("retire", {"most": 2}),
}
