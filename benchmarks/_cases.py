"""The cases of every op, found by their files, and arrays to call them with.

Bytes of a pool or bank that an op re-encodes are those of random finite values, by the codecs
themselves; all others are random bytes. What an op updates is poisoned with 0xFF beforehand, so
that what it leaves out shows.
"""

import functools
import importlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pallas_kernels
from pallas_kernels.banks import default_device, is_host, make_bank, num_slots, write_record
from pallas_kernels.cases import Case
from pallas_kernels.page_layout import (
    PageLayout,
    Payload,
    empty_payload,
    page_to_record,
    write_page,
)

FOLDER: Final = Path(pallas_kernels.__file__).parent
TINY_IDS: Final = 4
TRASH: Final = 1  # rows of a bank that hold no record


def discover() -> Iterator[Case]:
    """Yields the cases of every op that names some."""
    for path in sorted(FOLDER.glob("*/arg_specs.py")):
        module = importlib.import_module(f"pallas_kernels.{path.parent.name}.arg_specs")
        yield from getattr(module, "CASES", ())


def shrunk(case: Case) -> Case:
    """The case with fewer ids, and pools and banks smaller in proportion.

    One that draws its own ids is left as it is.
    """
    if case.make is not None:
        return case
    number = max((case.args[position].shape[0] for position, _ in case.ids), default=TINY_IDS)
    keep = min(number, TINY_IDS)
    sizes = {n: min(n, max(2 * keep, n * keep // number)) for _, n in case.ids}
    if number == 1:
        sizes = {n: min(n, 4) for n in sizes}

    def smaller(x):
        for axis, size in enumerate(x.shape):
            rows = TRASH if is_bank(x) and axis == 0 else 0
            if size - rows in sizes:
                shape = (*x.shape[:axis], sizes[size - rows] + rows, *x.shape[axis + 1 :])
                return jax.ShapeDtypeStruct(shape, x.dtype)
        return x

    lists = dict(case.ids)
    args = tuple(
        jax.ShapeDtypeStruct((keep,), arg.dtype) if i in lists else jax.tree.map(smaller, arg)
        for i, arg in enumerate(case.args)
    )
    return case._replace(
        args=args,
        ids=tuple((position, sizes[n]) for position, n in case.ids),
        moved_bytes=case.moved_bytes * keep // number,
    )


def is_bank(x: Any) -> bool:
    """Whether an argument is a bank of records rather than a pool."""
    return hasattr(x, "shape") and len(x.shape) == 2 and x.dtype == jnp.uint8


@functools.cache
def _mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh([default_device()], ("x",))


def memory(*, host: bool) -> jax.sharding.NamedSharding:
    """The memory of the device, or pinned host memory.

    Only a `NamedSharding` makes the memory a part of the type of an abstract array.
    """
    kind = "pinned_host" if host else "device"
    return jax.sharding.NamedSharding(_mesh(), jax.sharding.PartitionSpec(), memory_kind=kind)


def abstract_args(case: Case) -> list[Any]:
    """The arguments, abstract, each in the memory that it lives in."""

    def placed(x, host):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=memory(host=host))

    return [
        jax.tree.map(functools.partial(placed, host=i in case.host), arg)
        for i, arg in enumerate(case.args)
    ]


def list_positions(case: Case) -> tuple[int, ...]:
    """Positions of the lists of ids and offsets among the arguments."""
    return tuple(i for i, arg in enumerate(case.args) if getattr(arg, "dtype", None) == jnp.int32)


def id_lists(case: Case, rng: np.random.Generator, *, sentinels: bool) -> dict[int, jax.Array]:
    """Random ids by position, some of which do not exist if `sentinels`."""
    positions = list_positions(case)
    if case.make is not None:
        lists = [np.array(ids, np.int32) for ids in case.make(rng)]
    else:
        lists = _distinct(case, rng)
    if sentinels:
        for turn, ids in enumerate(lists):
            if ids.size >= TINY_IDS:
                # Another place in each list, and another way not to exist.
                ids.reshape(-1)[turn :: max(ids.size // 2, 3)] = (2**30, -1)[turn % 2]
    device = memory(host=False)
    return {i: jax.device_put(ids, device) for i, ids in zip(positions, lists, strict=True)}


def _distinct(case: Case, rng: np.random.Generator) -> list[np.ndarray]:
    """No id twice; lists of one and the same pool name different items too."""
    is_one_pool = len(case.args) - len(case.ids) == 1
    lists, taken = [], np.empty(0, np.int64)
    for position, n in case.ids:
        (number,) = case.args[position].shape
        free = np.setdiff1d(np.arange(n), taken) if is_one_pool else np.arange(n)
        lists.append(rng.permutation(free)[:number].astype(np.int32))
        taken = np.append(taken, lists[-1])
    return lists


def fixed_args(case: Case, rng: np.random.Generator) -> dict[int, Any]:
    """What the case reads and does not update, by position, without the lists of ids."""
    lists = list_positions(case)
    made = {}
    for position, spec in enumerate(case.args):
        if position not in lists and position not in case.donated:
            host = position in case.host
            made[position] = _random(spec, layout_of(case, spec), rng, host=host)
    return made


def updated_args(case: Case) -> tuple[Any, ...]:
    """What the case updates, in order, poisoned."""
    return tuple(poisoned(case.args[i], host=i in case.host) for i in case.donated)


def layout_of(case: Case, spec: Any) -> PageLayout | None:
    """The layout of a pool or of a bank's records, where the op has to know one."""
    keywords = getattr(case.call, "keywords", {})
    return keywords.get("target" if is_bank(spec) else "source")


def poisoned(spec: Any, *, host: bool) -> Any:
    """A pytree of arrays full of 0xFF."""
    if is_bank(spec) and host:
        return _filled_bank(spec, None, "poison", host=True, seed=0)
    make = _jitted(_poison)
    return jax.tree.map(lambda x: make(x.shape, jnp.dtype(x.dtype)), spec)


def _random(spec: Any, layout: PageLayout | None, rng: np.random.Generator, *, host: bool) -> Any:
    seed = int(rng.integers(2**31))
    if is_bank(spec) and (host or layout is not None):
        return _filled_bank(spec, layout, "random", host=host, seed=seed)
    if layout is not None:
        return _jitted(_random_pool)(layout, jax.tree.leaves(spec)[0].shape[0], seed)
    leaves, tree = jax.tree.flatten(spec)
    make = _jitted(_random_leaf)
    made = [make(x.shape, jnp.dtype(x.dtype), seed + i) for i, x in enumerate(leaves)]
    return jax.tree.unflatten(tree, made)


def random_array(spec: Any) -> jax.Array:
    """One array on the device."""
    return _jitted(_random_leaf)(spec.shape, jnp.dtype(spec.dtype), 0)


@functools.cache
def _jitted(make: Callable[..., Any]) -> Callable[..., Any]:
    """Of a function whose first two arguments are static; its results are on the device."""
    return jax.jit(make, static_argnums=(0, 1), out_shardings=memory(host=False))


def _bits(dtype: jnp.dtype) -> jnp.dtype:
    return jnp.dtype(f"uint{8 * dtype.itemsize}")


def _poison(shape, dtype):
    bits = _bits(dtype)
    return lax.bitcast_convert_type(jnp.full(shape, jnp.iinfo(bits).max, bits), dtype)


def _random_leaf(shape, dtype, seed):
    key = jax.random.key(seed)
    if not jnp.issubdtype(dtype, jnp.floating):
        return lax.bitcast_convert_type(jax.random.bits(key, shape, _bits(dtype)), dtype)
    return _values(key, shape).astype(dtype)


def _values(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Values of many magnitudes, all finite; those of a row share one."""
    draw, size = jax.random.split(key)
    magnitude = jax.random.randint(size, (*shape[:-1], 1), -6, 7).astype(jnp.float32)
    return jax.random.normal(draw, shape) * jnp.exp2(magnitude)


def _random_page(layout: PageLayout, key: jax.Array) -> Payload:
    keys = jax.random.split(key, len(layout.groups))
    page = []
    for group, one in zip(layout.groups, keys, strict=True):
        rows = (len(group.planes), layout.num_kv_heads, layout.page_size, layout.head_dim)
        page.append(group.codec.encode(_values(one, rows)))
    return tuple(page)


def _random_pool(layout: PageLayout, num_pages: int, seed):
    def body(i, pool):
        page = _random_page(layout, jax.random.fold_in(jax.random.key(seed), i))
        return write_page(pool, i, page)

    return lax.fori_loop(0, num_pages, body, empty_payload(layout, num_pages))


def _filled_bank(spec: Any, layout: PageLayout | None, what: str, *, host: bool, seed: int):
    """A bank filled slot by slot, wherever it lives."""
    bank = make_bank(spec.shape[0] - TRASH, spec.shape[1], host=host)
    return _filler(layout, what, host)(bank, seed)


@functools.cache
def _filler(layout: PageLayout | None, what: str, host: bool) -> Callable[..., Any]:
    def record(key, size):
        if what == "poison":
            return jnp.full(size, 0xFF, jnp.uint8)
        if layout is None:
            return jax.random.bits(key, (size,), jnp.uint8)
        return page_to_record(_random_page(layout, key))

    def fill(bank, seed):
        key = jax.random.key(seed)

        def body(i, bank):
            return write_record(bank, i, record(jax.random.fold_in(key, i), bank.shape[1]))

        return lax.fori_loop(0, bank.shape[0], body, bank)

    return jax.jit(fill, donate_argnums=0, out_shardings=memory(host=host))


def num_differing(a: Any, b: Any) -> int:
    """Elements of two pytrees whose bits differ, trash slots aside; banks go slot by slot."""
    total = 0
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        total += int((_bank_differs if is_bank(x) else _leaf_differs)(x, y))
    return total


@jax.jit
def _leaf_differs(a, b):
    a, b = (
        x if x.dtype == jnp.bool_ else lax.bitcast_convert_type(x, _bits(x.dtype)) for x in (a, b)
    )
    return jnp.sum(a != b)


@jax.jit
def _bank_differs(a, b):
    def slot(bank, i):
        row = lax.dynamic_slice(bank, (i, jnp.int32(0)), (1, bank.shape[1]))
        return jax.device_put(row, jax.memory.Space.Device) if is_host(bank) else row

    return lax.fori_loop(
        0, num_slots(a), lambda i, n: n + jnp.sum(slot(a, i) != slot(b, i)), jnp.int32(0)
    )


def bus(case: Case) -> tuple[str, int] | None:
    """("to host" or "from host", bytes over the bus) of a case with a bank in host memory.

    Records cross the bus whole, and at most half of what is read and written is there.
    """
    if not case.host:
        return None
    (position,) = case.host
    number = math.prod(case.args[list_positions(case)[0]].shape)
    way = "to host" if position in case.donated else "from host"
    return way, min(number * case.args[position].shape[1], case.moved_bytes // 2)
