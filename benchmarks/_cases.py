"""The cases of every op, found by their files, and the arguments to call them with.

Bytes of a pool or bank that an op re-encodes are those of random finite values, by the codecs
themselves; all others are random bytes. What an op updates is poisoned with 0xFF beforehand, so
that what it leaves out shows.
"""

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels
from benchmarks import _arrays
from pallas_kernels.cases import Case
from pallas_kernels.page_layout import PageLayout

FOLDER: Final = Path(pallas_kernels.__file__).parent
TINY_IDS: Final = 4
MOST_BANK: Final = 4 * 2**30 - 2**24  # two fit into the 8 GiB that XLA then pins at once


def discover() -> Iterator[Case]:
    """Yields the cases of every op that names some."""
    for path in sorted(FOLDER.glob("*/arg_specs.py")):
        module = importlib.import_module(f"pallas_kernels.{path.parent.name}.arg_specs")
        yield from getattr(module, "CASES", ())


def sized(case: Case, *, tiny: bool) -> Case:
    """The case at a size that suits the machine: host memory is pinned at 2 GB/s."""
    return shrunk(case) if tiny else capped(case)


def capped(case: Case) -> Case:
    """The case with a host bank of at most `MOST_BANK` bytes, if that holds its ids."""
    args, sizes = list(case.args), {}
    for position in case.host:
        slots, size = args[position].shape[0] - _arrays.TRASH, args[position].shape[1]
        fewer = min(slots, MOST_BANK // size - _arrays.TRASH)
        if case.make is None and fewer >= case.args[case.ids[0][0]].shape[0]:
            args[position] = jax.ShapeDtypeStruct((fewer + _arrays.TRASH, size), jnp.uint8)
            sizes[slots] = fewer
    ids = tuple((position, sizes.get(n, n)) for position, n in case.ids)
    return case._replace(args=tuple(args), ids=ids)


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

    def smaller(x, rows):
        for axis, size in enumerate(x.shape):
            if size - rows in sizes:
                shape = (*x.shape[:axis], sizes[size - rows] + rows, *x.shape[axis + 1 :])
                return jax.ShapeDtypeStruct(shape, x.dtype)
        return x

    def smaller_arg(arg):
        rows = _arrays.TRASH if _arrays.is_bank(arg) else 0
        return jax.tree.map(lambda x: smaller(x, rows), arg)

    lists = dict(case.ids)
    args = tuple(
        jax.ShapeDtypeStruct((keep,), arg.dtype) if i in lists else smaller_arg(arg)
        for i, arg in enumerate(case.args)
    )
    return case._replace(
        args=args,
        ids=tuple((position, sizes[n]) for position, n in case.ids),
        moved_bytes=case.moved_bytes * keep // number,
    )


def abstract_args(case: Case) -> list[Any]:
    """The arguments, abstract, each in the memory that it lives in."""
    return [_arrays.placed(arg, host=i in case.host) for i, arg in enumerate(case.args)]


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
    device = _arrays.memory(host=False)
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


def prepare(case: Case) -> None:
    """Compiles what the arguments are made with."""
    for i, arg in enumerate(case.args):
        if i not in list_positions(case):
            _arrays.prepare(
                arg, host=i in case.host, layout=_layout_of(case, arg), is_updated=i in case.donated
            )


def fixed_args(case: Case, rng: np.random.Generator) -> dict[int, Any]:
    """What the case reads and does not update, by position, without the lists of ids."""
    return {
        i: _arrays.random(
            arg, host=i in case.host, layout=_layout_of(case, arg), seed=int(rng.integers(2**31))
        )
        for i, arg in enumerate(case.args)
        if i not in (*list_positions(case), *case.donated)
    }


def updated_args(case: Case) -> tuple[Any, ...]:
    """What the case updates, in order, poisoned."""
    return tuple(_arrays.poisoned(case.args[i], host=i in case.host) for i in case.donated)


def _layout_of(case: Case, arg: Any) -> PageLayout | None:
    """The layout of a pool or of a bank's records, where the op has to know one."""
    keywords = getattr(case.call, "keywords", {})
    return keywords.get("target" if _arrays.is_bank(arg) else "source")


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
