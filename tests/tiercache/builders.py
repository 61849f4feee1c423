"""Tiny caches for tests: specs, the verbs jitted once per spec, and rows with content."""

import functools
import math
import re
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tiercache as tc

LEAVES = (
    tc.SnapshotLeaf("conv", (2, 3, 5), "bfloat16"),
    tc.SnapshotLeaf("delta", (2, 2, 3, 4), "float32"),
)
NAMESPACE = tc.Namespace(tenant="test").lanes()
# Optimised code takes half as long again to compile, and runs for microseconds.
QUICK = {"xla_backend_optimization_level": 0}


def spec_of(**changes) -> tc.CacheSpec:
    """Two layers, two heads, all tiers on; every capacity is another number."""
    values = dict(
        num_layers=2,
        num_kv_heads=2,
        head_dim=64,
        page_size=16,
        num_pages=13,
        max_rows=3,
        max_pages=5,
        snapshot_leaves=LEAVES,
        hot_formats="all:int8_g64",
        cold_formats="all:e2m1_g64",
        num_cold_slots=7,
        num_host_pages=6,
        num_snapshots=4,
        num_host_snapshots=3,
        policy="host",
        keep_tokens=16,
    )
    return tc.CacheSpec(**{**values, **changes})


SPEC = spec_of()


def write(state: tc.CacheState, row_ids, counts, k, v, *, spec: tc.CacheSpec):
    """Reserves, appends [layer, n, token, head, dim] to all layers, and advances."""
    rows = jnp.zeros(spec.max_rows, jnp.int32).at[row_ids].set(counts, mode="drop")
    width = k.shape[2]
    state, reserved = tc.reserve(state, rows, max_tokens=width, spec=spec)
    view = tc.view(state, row_ids, counts, num_tokens=width, spec=spec)
    for layer in range(spec.num_layers):
        state, _ = tc.append(state, view, layer, k[layer], v[layer], spec=spec)
    state, advanced = tc.advance(state, rows, spec=spec)
    return state, (reserved, advanced)


@functools.cache
def verbs(spec: tc.CacheSpec) -> types.SimpleNamespace:
    """Every verb with the spec bound, jitted without donation, so that old states stay."""

    def jit(function, *static, **options):
        bound = functools.partial(function, **options)
        return jax.jit(bound, static_argnames=static, compiler_options=QUICK)

    return types.SimpleNamespace(
        write=jit(write, spec=spec),
        reserve=jit(tc.reserve, "max_tokens", spec=spec),
        match=jit(tc.match, spec=spec),
        pin=jit(tc.pin),
        unpin=jit(tc.unpin),
        rehydrate=jit(tc.rehydrate, "cold", spec=spec),
        load_snapshot=jit(tc.load_snapshot, spec=spec),
        save_snapshot=jit(tc.save_snapshot, spec=spec),
        insert=jit(tc.insert, spec=spec),
        mirror=jit(tc.mirror, "most", spec=spec),
        evict=jit(tc.evict, "most", "to", "tier", spec=spec),
        evict_snapshots=jit(tc.evict_snapshots, "most", "to", spec=spec),
        make_room=jit(tc.make_room, "to", "snapshots_to", spec=spec),
        requantize=jit(tc.requantize, spec=spec),
        retire=jit(tc.retire, "most", spec=spec),
        fork=jit(tc.fork, spec=spec),
        truncate=jit(tc.truncate, spec=spec),
        release=jit(tc.release, spec=spec),
        advance=jit(tc.advance, spec=spec),
        check=jit(tc.check, spec=spec),
    )


def int32(*values):
    """A scalar from one number, else a vector."""
    return jnp.int32(values[0]) if len(values) == 1 else jnp.array(values, jnp.int32)


def ids(*values):
    """A vector, of one number too."""
    return jnp.array(values, jnp.int32)


def prompt(spec: tc.CacheSpec, length: int, seed: int = 0, *, like=None, shared: int = 0):
    """`length` random token ids, padded; the first `shared` are those of `like`."""
    tokens = np.zeros(spec.max_tokens, np.int32)
    tokens[:length] = np.random.default_rng(seed).integers(1, 1000, length)
    if like is not None:
        tokens[:shared] = like[:shared]
    return tokens


def normal(rng, *shape):
    """Float32 draws whose scale differs by leading index, so that no two planes look alike."""
    gain = 1 + np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return (gain * rng.normal(size=shape)).astype(np.float32)


def grow(state, spec: tc.CacheSpec, row_id: int, count: int, seed: int = 0):
    """A row with `count` further tokens of random K and V."""
    rng = np.random.default_rng([seed, row_id])
    shape = (spec.num_layers, 1, spec.max_tokens, spec.num_kv_heads, spec.head_dim)
    k, v = normal(rng, *shape), normal(rng, *shape)
    state, (reserved, advanced) = verbs(spec).write(state, ids(row_id), ids(count), k, v)
    assert int(reserved.reason[row_id]) == int(advanced.reason[row_id]) == tc.Reason.OK
    return state


def recurrent(spec: tc.CacheSpec, seed: int, number: int):
    """Leaves of `number` snapshots, all different."""
    rng = np.random.default_rng(seed)
    return tuple(
        jnp.asarray(rng.normal(size=(number, *leaf.shape)), leaf.dtype)
        for leaf in spec.snapshot_leaves
    )


def start(state, spec: tc.CacheSpec, row_id: int, tokens, length: int):
    """A row that holds what is known of a prompt: (state, plan, the infos)."""
    run = verbs(spec)
    plan = run.match(state, tokens, int32(length), NAMESPACE)
    state, pinned = run.pin(state, plan, int32(row_id))
    state, back = run.rehydrate(state, plan, int32(row_id), cold="share")
    state, loaded = run.load_snapshot(state, plan, int32(row_id))
    return state, plan, (pinned, back, loaded)


def serve(state, spec: tc.CacheSpec, row_id: int, tokens, length: int, *, save=(), seed: int = 0):
    """A prompt computed in a row, with snapshots saved at `save` tokens, and inserted."""
    run = verbs(spec)
    state, plan, infos = start(state, spec, row_id, tokens, length)
    assert all(int(info.reason) == tc.Reason.OK for info in infos), infos
    state = grow(state, spec, row_id, length - int(plan.num_pages) * spec.page_size, seed)
    if save:
        depths = ids(*save)
        rows = jnp.full(depths.shape, row_id, jnp.int32)
        state, saved = run.save_snapshot(state, rows, depths, recurrent(spec, seed, len(save)))
        assert not np.any(saved.reason), saved
    state, info = run.insert(state, int32(row_id), tokens, NAMESPACE)
    assert int(info.reason) == tc.Reason.OK, info
    return state


def same(before, after, *, but=()):
    """Asserts that two states agree byte for byte in every leaf, `but` the paths that are named."""
    for (path, x), (_, y) in zip(
        jax.tree_util.tree_flatten_with_path(before)[0],
        jax.tree_util.tree_flatten_with_path(after)[0],
        strict=True,
    ):
        name = jax.tree_util.keystr(path)
        if not any(part in name for part in but):
            x, y = np.asarray(x), np.asarray(y)
            assert x.dtype == y.dtype and x.shape == y.shape, name
            assert x.tobytes() == y.tobytes(), name


def stack(states):
    """States as one batch; banks stay in host memory."""

    def one(*leaves):
        batch = jnp.stack([jnp.asarray(np.asarray(leaf)) for leaf in leaves])
        if jax.typeof(leaves[0]).memory_space == jax.memory.Space.Host:
            return jax.device_put(batch, leaves[0].sharding)
        return batch

    return jax.tree.map(one, *states)


def part(batch, i: int):
    """One element of a batch, as NumPy arrays."""
    return jax.tree.map(lambda x: np.asarray(x)[i], batch)


def sound(state, spec: tc.CacheSpec):
    """Asserts every invariant."""
    bad = [name for name, ok in jax.device_get(verbs(spec).check(state)).items() if not ok]
    assert not bad, bad


HLO_TYPES = {
    "int8": "s8", "uint8": "u8", "float16": "f16", "bfloat16": "bf16", "float32": "f32",
    "uint16": "u16",
}  # fmt: skip


class Program(NamedTuple):
    """What the compiler made of a step.

    Attributes:
      copies: instructions that copy a whole pool or bank.
      aliased: bytes of outputs that are inputs.
      temporary: bytes of scratch.
    """

    copies: list[str]
    aliased: int
    temporary: int


def big_leaves(state: tc.CacheState):
    """Pools and banks: the arrays whose copy would be felt."""
    return jax.tree.leaves(
        (state.pages.payload, state.cold.bank, state.snapshots.leaves, state.host.pages,
         state.host.snapshots)
    )  # fmt: skip


def compile_step(step, state, *rest, donate=(0,), position=0) -> Program:
    """Compiles `step`, whose argument `position` holds the state."""
    held = (state, *rest)[position]
    compiled = jax.jit(step, donate_argnums=donate).lower(state, *rest).compile()
    big = [x for x in big_leaves(held) if x.size]
    shapes = {f"{HLO_TYPES[str(x.dtype)]}[{','.join(map(str, x.shape))}]" for x in big}
    kind = r"(?:copy|copy-start|transpose|concatenate)\("
    wanted = [rf"= \(?{re.escape(shape)}\S* {kind}" for shape in shapes]
    lines = compiled.as_text().splitlines()
    found = [line.strip() for line in lines if any(re.search(w, line) for w in wanted)]
    memory = compiled.memory_analysis()
    return Program(found, memory.alias_size_in_bytes, memory.temp_size_in_bytes)


def num_bytes(leaves) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)


def copies_nothing(program: Program, state: tc.CacheState, spec: tc.CacheSpec):
    """Asserts: no copy of a pool or bank, all of them aliased, scratch of a few records only."""
    assert not program.copies, program.copies
    assert program.aliased >= num_bytes(big_leaves(state))
    index = num_bytes(jax.tree.leaves((state.index, state.table)))
    records = 12 * (tc.bytes_per_page(spec, "device") + tc.bytes_per_snapshot(spec))
    decoded = 4 * 2 * spec.num_layers * spec.num_kv_heads * spec.page_size * spec.head_dim * 4
    assert program.temporary < records + decoded + 4 * index
    assert program.temporary < num_bytes(jax.tree.leaves(state.pages.payload))
