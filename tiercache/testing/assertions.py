"""Assertions for tests of code that uses a cache: what they raise says what broke."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiercache._check import check
from tiercache.ids import HOLE, NO_NODE
from tiercache.spec import CacheSpec
from tiercache.state import FREE, CacheState

_HLO_TYPES = {
    "int8": "s8", "uint8": "u8", "float16": "f16", "bfloat16": "bf16", "float32": "f32",
    "uint16": "u16", "int32": "s32", "float8_e4m3fn": "f8e4m3fn",
}  # fmt: skip


@functools.cache
def _jitted_check(spec: CacheSpec):
    return jax.jit(functools.partial(check, spec=spec))


def assert_invariants(state: CacheState, spec: CacheSpec) -> None:
    """Every rule of `tiercache.check` holds. Compiles once per spec."""
    found = jax.device_get(_jitted_check(spec)(state))
    broken = [name for name, ok in found.items() if not ok]
    assert not broken, f"the state breaks {', '.join(broken)}."


def held_ids(state: CacheState) -> dict[str, frozenset[int]]:
    """Ids in use, by id space: pages, slots and snapshots of each tier, nodes, leases and rows."""
    masks = {
        "pages": state.pages.refs > 0,
        "cold slots": state.cold.refs > 0,
        "snapshots": state.snapshots.owner != FREE,
        "host pages": state.host.page_node != NO_NODE,
        "host snapshots": state.host.snapshot_node != NO_NODE,
        "nodes": state.index.depth >= 0,
        "leases": jnp.any(state.index.leases != NO_NODE, axis=1),
        "rows": jnp.any(state.table.entries != HOLE, axis=1),
    }
    masks = jax.device_get(masks)
    return {name: frozenset(np.flatnonzero(mask).tolist()) for name, mask in masks.items()}


def assert_conserved(before: CacheState, after: CacheState) -> None:
    """Nothing was lost or kept between two states: as many ids are in use in every id space.

    For what must give back all that it takes: a request that was aborted, a row that was released
    without being inserted, a plan that was pinned and unpinned. Which ids are used may differ.
    """
    was, now = held_ids(before), held_ids(after)
    wrong = [
        f"{len(was[name])} {name} were in use, now {len(now[name])}: "
        f"new {sorted(now[name] - was[name])}, gone {sorted(was[name] - now[name])}"
        for name in was
        if len(was[name]) != len(now[name])
    ]
    assert not wrong, "\n".join(wrong)


def pool_copies(jitted: Callable, *args, **kwargs) -> list[str]:
    """The compiled instructions that copy a whole pool or bank of the states among the arguments.

    A pool is told by its type and shape: give it a size that nothing else in the program has.
    """
    states = [x for x in jax.tree.leaves((args, kwargs), is_leaf=_is_state) if _is_state(x)]
    if not states:
        raise ValueError("no CacheState is among the arguments.")
    big = [x for state in states for x in _pools(state) if x.size]
    shapes = {f"{_HLO_TYPES[str(x.dtype)]}[{','.join(map(str, x.shape))}]" for x in big}
    program = jitted.lower(*args, **kwargs).compile()
    kind = r"(?:copy|copy-start|transpose|concatenate)\("
    wanted = re.compile("|".join(rf"= \(?{re.escape(shape)}\S* {kind}" for shape in shapes))
    return [line.strip() for line in program.as_text().splitlines() if wanted.search(line)]


def assert_no_pool_copy(jitted: Callable, *args, **kwargs) -> None:
    """A jitted step that is given a state to keep updates pools and banks where they are.

    Reads the compiled program, and runs nothing. The state must be donated: without donation a step
    has to copy, and this says so.

    Args:
      jitted: what `jax.jit` returned, with `donate_argnums` or `donate_argnames` for the state.
      *args, **kwargs: of a call; at least one is or holds a `CacheState`.
    """
    copies = pool_copies(jitted, *args, **kwargs)
    assert not copies, "the step copies whole pools:\n" + "\n".join(copies)


def _is_state(x: Any) -> bool:
    return isinstance(x, CacheState)


def _pools(state: CacheState) -> list[jax.Array]:
    return jax.tree.leaves(
        (state.pages.payload, state.cold.bank, state.snapshots.leaves, state.host.pages,
         state.host.snapshots)
    )  # fmt: skip


@contextlib.contextmanager
def assert_compiles_once(*jitted: Callable) -> Iterator[None]:
    """Each of some jitted functions compiles no more than once while the block runs.

    A second compile is a second signature: another shape, a Python number where an array was, or a
    state that is not committed to its device, as that of `init_state` is.
    """
    before = [f._cache_size() for f in jitted]
    yield
    for f, size in zip(jitted, before, strict=True):
        number = f._cache_size() - size
        name = getattr(f, "__name__", repr(f))
        assert number <= 1, f"{name} compiled {number} times."


def assert_outputs_equal_cold(
    engine: Callable[[], Callable[[Any], Any]], prompts: Sequence[Any]
) -> None:
    """What a cache serves is what a run without a past gives, for each of some prompts.

    Args:
      engine: makes a server with an empty cache. A server takes one prompt and returns its
        output, tokens or any tree of arrays, and keeps what it knows for the next prompt.
      prompts: served in order by one server, twice over, so that the second time all can be
        resumed; and each by a new one.
    """
    warm = engine()
    found = [warm(prompt) for prompt in [*prompts, *prompts]]
    for number, prompt in enumerate(prompts):
        cold = engine()(prompt)
        for turn, output in enumerate((found[number], found[number + len(prompts)])):
            _assert_same(
                output,
                cold,
                f"prompt {number}, served the {('first', 'second')[turn]}"
                " time by the server with a past",
            )


def _assert_same(have, want, what: str):
    have, want = jax.device_get((have, want))
    assert jax.tree.structure(have) == jax.tree.structure(want), f"{what}: another structure"
    for (path, x), y in zip(
        jax.tree_util.tree_flatten_with_path(have)[0], jax.tree.leaves(want), strict=True
    ):
        where = f"{what}{jax.tree_util.keystr(path)}"
        np.testing.assert_array_equal(x, y, err_msg=f"{where} differs from a cold run")
