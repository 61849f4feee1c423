"""Every transition of a state, in caches so large that scratch is nothing beside a pool."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

import jax

import tiercache as tc
from tests.compile_gpu.programs import Program, bytes_of
from tests.compile_gpu.target import abstract
from tests.tiercache import builders, test_no_copies
from tiercache.spec import AUTO

# Of pages as models have them, and many; the index stays small, as its own scans may copy it.
SIZES: Final = dict(
    page_size=64, head_dim=128, keep_tokens=64, num_pages=20011, num_cold_slots=4001,
    num_host_pages=5003, index_pages=AUTO, num_nodes=509,
)  # fmt: skip
SNAPSHOTS: Final = dict(
    snapshot_leaves=(
        tc.SnapshotLeaf("conv", (2, 3, 1024), "bfloat16"),
        tc.SnapshotLeaf("delta", (2, 4, 64, 64), "float32"),
    ),
    num_snapshots=1009,
    num_host_snapshots=1013,
)
SPECS: Final = {
    name: dataclasses.replace(spec, **SIZES, **(SNAPSHOTS if spec.snapshot_leaves else {}))
    for name, spec in (*test_no_copies.SPECS.items(), ("plain", test_no_copies.PLAIN))
}

# What moves or writes pages or snapshots, and so has to call a kernel, as "host mirror".
MOVING: Final = (
    "token", "reserve", "rehydrate_share", "rehydrate_hot", "mirror", "make_room", "evict_host",
    "evict_cold", "requantize",
)  # fmt: skip
MOVING_SNAPSHOTS: Final = ("load_snapshot", "save_snapshot", "evict_snapshots")
USES_KERNELS: Final = frozenset(
    f"{policy} {name}"
    for policy, spec in SPECS.items()
    for name in (*MOVING, *(MOVING_SNAPSHOTS if spec.snapshot_leaves else ()))
)


def programs() -> Iterator[Program]:
    """Yields the transitions of every spec, as "host mirror"."""
    names = {f"{policy} {name}" for policy in SPECS for name in abstract_steps(SPECS[policy])}
    if unknown := USES_KERNELS - names:
        raise ValueError(f"USES_KERNELS names no transitions: {sorted(unknown)}.")
    for policy, spec in SPECS.items():
        for name, (step, rest) in abstract_steps(spec).items():
            full = f"{policy} {name}"
            yield of(full, step, spec, rest, wants_kernels=full in USES_KERNELS)


def of(name: str, step, spec: tc.CacheSpec, rest, *, donated=(0,), **flags) -> Program:
    """A step of a state; `rest` are its other arguments."""
    state = abstract(functools.partial(tc.init_state, spec))
    big = {id(leaf) for leaf in builders.big_leaves(state) if bytes_of(leaf)}
    pools = tuple(i for i, leaf in enumerate(jax.tree.leaves(state)) if id(leaf) in big)
    return Program(name, step, (state, *rest), donated, pools, **flags)


@functools.cache
def abstract_steps(spec: tc.CacheSpec) -> dict[str, tuple[Any, Any]]:
    """`test_no_copies.steps` without an array: name -> (step, arguments after the state)."""
    found = {}

    def rests():
        made = test_no_copies.steps(spec)
        found.update({name: step for name, (step, _) in made.items()})
        return {name: rest for name, (_, rest) in made.items()}

    # Options of the compiler are refused where a function is only traced.
    with mock.patch.object(builders, "QUICK", None):
        rest = abstract(rests)
    return {name: (step, rest[name]) for name, step in found.items()}
