"""Many calls in one compiled loop, with all that can be seen after each of them."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int32

from tiercache._append import append
from tiercache._attend import attend
from tiercache._check import check
from tiercache._match import match, pin, unpin
from tiercache._view import view
from tiercache.ids import NO_ROW
from tiercache.prefix import Plan
from tiercache.spec import CacheSpec
from tiercache.state import CacheState
from tiercache.testing.calls import (
    NAMESPACES,
    OPTIONS,
    VERBS,
    WIDTH,
    decode_args,
    prompt_tokens,
    signature,
)
from tiercache.testing.contents import NUM_QUERIES, NUM_VECTORS, contents_of
from tiercache.testing.poison import poison_free
from tiercache.testing.reference import columns


class Held(NamedTuple):
    """What a trace changes: the cache, and the plans that were made."""

    state: CacheState
    plans: Plan


class Seen(NamedTuple):
    """What is observed after each call: its info, the state's numbers, and the broken rules."""

    info: Int32[Array, "call word"]
    numbers: Int32[Array, "call number"]
    ok: Bool[Array, "call rule"]


def init_held(state: CacheState, plans: list[Plan]) -> Held:
    """The cache and the plans, as numbers, that a trace begins with."""
    stacked = Plan(*(jnp.asarray(np.array(x, np.int32)) for x in zip(*plans, strict=True)))
    return Held(state, jax.device_put(stacked, state.counters.values.sharding))


def run_call(state: CacheState, plans: Plan, words: Int32[Array, "word"], *, name, spec):
    """One call by a program of its verb alone: (state, (plans, the words of its info))."""
    held, info = _branches(spec)[name](Held(state, plans), words)
    return held.state, (held.plans, _words(jax.tree.leaves(info)))


def observe(state: CacheState, *, spec: CacheSpec):
    """(numbers of a state, which rules hold)."""
    ok = jnp.stack(list(check(state, spec=spec).values()))
    return _words(list(columns.of_state(state).values())), ok


def run_calls(
    held: Held, words: Int32[Array, "call word"], count, *, poison: bool, spec: CacheSpec
):
    """Runs the first `count` calls, poisons what is free after each, and returns what was seen."""
    branches = list(_branches(spec).values())
    info_words = max(
        sum(x.size for x in jax.tree.leaves(jax.eval_shape(branch, held, words[0])[1]))
        for branch in branches
    )

    def flat(branch):
        def run(held, call):
            held, info = branch(held, call)
            values = _words(jax.tree.leaves(info))
            return held, jnp.pad(values, (0, info_words - values.size))

        return run

    def one(held, call):
        held, info = lax.switch(call[0], [flat(branch) for branch in branches], held, call)
        if poison:
            held = held._replace(state=poison_free(held.state, spec))
        return held, Seen(info, *observe(held.state, spec=spec))

    shapes = jax.eval_shape(one, held, words[0])[1]
    seen = jax.tree.map(lambda x: jnp.zeros((words.shape[0], *x.shape), x.dtype), shapes)

    def body(i, carry):
        held, seen = carry
        held, new = one(held, words[i])
        return held, jax.tree.map(lambda x, y: x.at[i].set(y), seen, new)

    return lax.fori_loop(0, count, body, (held, seen))


def _words(leaves) -> Int32[Array, "word"]:
    parts = [jnp.ravel(x) for x in leaves]
    as_bits = (jnp.uint32, jnp.float32)
    return jnp.concatenate(
        [
            lax.bitcast_convert_type(x, jnp.int32) if x.dtype in as_bits else x.astype(jnp.int32)
            for x in parts
        ]
    )


def _branches(spec: CacheSpec) -> dict[str, Callable]:
    """Per name of a call, (held, words) -> (held, info)."""

    def bind(name: str, sizes: tuple[int, ...]):
        special = {"append": _append, "match": _match, "attend": _attend}
        run = special.get(name, functools.partial(_verb, name))

        def branch(held: Held, words):
            args = decode_args(words[1:], sizes)
            return run(held, *args, spec=spec)

        return branch

    return {name: bind(name, sizes) for name, sizes in signature(spec).items()}


def _verb(name: str, held: Held, *args, spec: CacheSpec):
    verb, options = VERBS[name], dict(OPTIONS.get(name, {}))
    if verb not in (pin, unpin):
        options["spec"] = spec
    if name in ("pin", "rehydrate_share", "rehydrate_hot", "load_snapshot"):
        args = (jax.tree.map(lambda x: x[args[0]], held.plans), *args[1:])
    elif name == "insert":
        row_id, symbols, namespace = args
        args = (row_id, prompt_tokens(symbols, spec), jnp.asarray(NAMESPACES)[namespace])
    elif name == "save_snapshot":
        options["replaces"] = args[2]
        args = args[:2]
    state, info = verb(held.state, *args, **options)
    return held._replace(state=state), info


def _match(held: Held, place, symbols, length, namespace, *, spec: CacheSpec):
    tokens, lanes = jnp.asarray(prompt_tokens(symbols, spec)), jnp.asarray(NAMESPACES)[namespace]
    plan = match(held.state, tokens, length, lanes, spec=spec)
    plans = jax.tree.map(lambda x, new: x.at[place].set(new), held.plans, plan)
    return held._replace(plans=plans), plan


def _append(held: Held, counts, key, bad, *, spec: CacheSpec):
    """A step of all rows: K and V of all layers, and the live states of the rows that move."""
    table, rows = contents_of(spec), jnp.arange(spec.max_rows, dtype=jnp.int32)
    numbers = (key * spec.max_rows * WIDTH + jnp.arange(spec.max_rows * WIDTH)) % NUM_VECTORS
    numbers = numbers.reshape(spec.max_rows, WIDTH)
    first = jnp.where(rows == bad // 3, NUM_VECTORS + bad % 3, numbers[:, 0])
    numbers = numbers.at[:, 0].set(jnp.where(bad >= 0, first, numbers[:, 0]))
    state, step = held.state, view(held.state, rows, counts, num_tokens=WIDTH, spec=spec)
    k, v = jnp.asarray(table.k)[numbers], jnp.asarray(table.v)[numbers]
    for layer in range(spec.num_layers):
        state, info = append(state, step, layer, k[:, :, layer], v[:, :, layer], spec=spec)
    moved = jnp.where(counts > 0, rows, NO_ROW)
    new = [jnp.moveaxis(jnp.asarray(x)[numbers[:, 1]], 0, 1) for x in table.live]
    live = [old.at[:, moved].set(x, mode="drop") for old, x in zip(state.live, new, strict=True)]
    return held._replace(state=state._replace(live=tuple(live))), info


def _attend(held: Held, counts, key, *, spec: CacheSpec):
    """What the first token of a step of all rows attends to, in every layer."""
    rows = jnp.arange(spec.max_rows, dtype=jnp.int32)
    step = view(held.state, rows, jnp.clip(counts, 0, 1), num_tokens=1, spec=spec)
    q = jnp.asarray(contents_of(spec).q)[(key * spec.max_rows + rows) % NUM_QUERIES]
    outs = [
        attend(held.state, step, layer, q[:, None, layer], block_pages=2, spec=spec)
        for layer in range(spec.num_layers)
    ]
    return held, jnp.stack(outs)
