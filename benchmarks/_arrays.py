"""Arrays to call an op with, made where they live, and compared there.

An argument is a bank, an array of records, or a pytree of other arrays. What makes or compares one
is compiled once per shape, and may be compiled before it is needed.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.banks import default_device, is_host, num_slots, write_record
from pallas_kernels.page_layout import (
    PageLayout,
    Payload,
    empty_payload,
    page_to_record,
    write_page,
)

TRASH: Final = 1  # rows of a bank that hold no record
SEED: Final = jax.ShapeDtypeStruct((), jnp.int32)


def is_bank(arg: Any) -> bool:
    """Whether an argument is a bank of records rather than a pool."""
    return hasattr(arg, "shape") and len(arg.shape) == 2 and arg.dtype == jnp.uint8


@functools.cache
def _mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh([default_device()], ("x",))


def memory(*, host: bool) -> jax.sharding.NamedSharding:
    """The memory of the device, or pinned host memory.

    Only a `NamedSharding` makes the memory a part of the type of an abstract array.
    """
    kind = "pinned_host" if host else "device"
    return jax.sharding.NamedSharding(_mesh(), jax.sharding.PartitionSpec(), memory_kind=kind)


def placed(arg: Any, *, host: bool) -> Any:
    """An abstract argument in one of the two memories."""
    where = memory(host=host)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), arg)


def random(arg: Any, *, host: bool = False, layout: PageLayout | None = None, seed: int = 0) -> Any:
    """Random bytes, or finite values: in the formats of a layout, or of arrays of floats."""
    return _made(arg, "random", layout, host)(seed)


def poisoned(arg: Any, *, host: bool = False) -> Any:
    """Nothing but 0xFF."""
    return _made(arg, "poison", None, host)(0)


def prepare(arg: Any, *, host: bool, layout: PageLayout | None, is_updated: bool) -> None:
    """Compiles what makes an argument, and what compares two if it is updated."""
    if is_updated:
        _made(arg, "poison", None, host)
        _differing(arg, host)
    else:
        _made(arg, "random", layout, host)


@functools.cache
def _made(arg: Any, what: str, layout: PageLayout | None, host: bool) -> Callable[[int], Any]:
    """What makes an argument from a seed, compiled."""
    where = memory(host=host)
    if is_bank(arg) and (host or layout is not None):
        # A bank in host memory is never built on the device first, and costs no memory there.
        space = jax.memory.Space.Host if host else jax.memory.Space.Device
        empty = jax.jit(
            lambda: jax.device_put(lax.empty(arg.shape, jnp.uint8), space), out_shardings=where
        )
        fill = jax.jit(
            functools.partial(_fill, what, layout), donate_argnums=0, out_shardings=where
        )
        made, filled = empty.lower().compile(), fill.lower(placed(arg, host=host), SEED).compile()
        return lambda seed: filled(made(), np.int32(seed))
    if what == "poison":
        make = functools.partial(_poison, arg)
    elif layout is not None:
        make = functools.partial(_random_pool, layout, jax.tree.leaves(arg)[0].shape[0])
    else:
        make = functools.partial(_random_leaves, arg)
    compiled = jax.jit(make, out_shardings=where).lower(SEED).compile()
    return lambda seed: compiled(np.int32(seed))


def _bits(dtype: Any) -> Any:
    return jnp.dtype(f"uint{8 * jnp.dtype(dtype).itemsize}")


def _poison(arg: Any, seed: jax.Array) -> Any:
    def full(x):
        bits = _bits(x.dtype)
        return lax.bitcast_convert_type(jnp.full(x.shape, jnp.iinfo(bits).max, bits), x.dtype)

    return jax.tree.map(full, arg)


def _random_leaves(arg: Any, seed: jax.Array) -> Any:
    leaves, tree = jax.tree.flatten(arg)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(tree, [_random_leaf(x, keys[i]) for i, x in enumerate(leaves)])


def _random_leaf(x: Any, key: jax.Array) -> jax.Array:
    """Row by row, so that what goes before a large array is small."""

    def body(i, array):
        one = jax.random.fold_in(key, i)
        if jnp.issubdtype(x.dtype, jnp.floating):
            row = _values(one, x.shape[1:]).astype(x.dtype)
        else:
            bits = jax.random.bits(one, x.shape[1:], _bits(x.dtype))
            row = lax.bitcast_convert_type(bits, x.dtype)
        return lax.dynamic_update_index_in_dim(array, row, i, 0)

    return lax.fori_loop(0, x.shape[0], body, jnp.zeros(x.shape, x.dtype))


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


def _random_pool(layout: PageLayout, num_pages: int, seed: jax.Array) -> Payload:
    def body(i, pool):
        page = _random_page(layout, jax.random.fold_in(jax.random.key(seed), i))
        return write_page(pool, i, page)

    return lax.fori_loop(0, num_pages, body, empty_payload(layout, num_pages))


def _fill(what: str, layout: PageLayout | None, bank: jax.Array, seed: jax.Array) -> jax.Array:
    """Fills a bank slot by slot, wherever it lives; its trash slot too."""

    def record(i):
        if what == "poison":
            return jnp.full(bank.shape[1], 0xFF, jnp.uint8)
        key = jax.random.fold_in(jax.random.key(seed), i)
        if layout is None:
            return jax.random.bits(key, bank.shape[1:], jnp.uint8)
        return page_to_record(_random_page(layout, key))

    return lax.fori_loop(0, bank.shape[0], lambda i, b: write_record(b, i, record(i)), bank)


def num_differing(some: Sequence[Any], others: Sequence[Any]) -> int:
    """Elements of two lists of arguments whose bits differ, trash slots aside."""
    total = 0
    for a, b in zip(some, others, strict=True):
        spec = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), a)
        host = any(x.sharding.memory_kind == "pinned_host" for x in jax.tree.leaves(a))
        total += int(_differing(spec, host)(a, b))
    return total


@functools.cache
def _differing(arg: Any, host: bool) -> Callable[[Any, Any], jax.Array]:
    """What counts differing elements of two such arguments, compiled."""
    compare = _banks_differ if is_bank(arg) else _leaves_differ
    abstract = placed(arg, host=host)
    return jax.jit(compare, out_shardings=memory(host=False)).lower(abstract, abstract).compile()


def _leaves_differ(some: Any, others: Any) -> jax.Array:
    def differ(a, b):
        if a.dtype != jnp.bool_:
            a, b = (lax.bitcast_convert_type(x, _bits(x.dtype)) for x in (a, b))
        return jnp.sum(a != b, dtype=jnp.int32)

    return jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(differ, some, others))))


def _banks_differ(some: jax.Array, others: jax.Array) -> jax.Array:
    """Slot by slot: a bank in host memory is not brought to the device as a whole."""

    def slot(bank, i):
        row = lax.dynamic_slice(bank, (i, jnp.int32(0)), (1, bank.shape[1]))
        return jax.device_put(row, jax.memory.Space.Device) if is_host(bank) else row

    def body(i, number):
        return number + jnp.sum(slot(some, i) != slot(others, i), dtype=jnp.int32)

    return lax.fori_loop(0, num_slots(some), body, jnp.int32(0))
