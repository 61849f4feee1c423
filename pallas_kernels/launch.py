"""The one place that knows the Pallas-Triton lowering: its parameters, its views, its versions.

The lowering is deprecated since JAX 0.11 and unchanged in 0.12, which is why the project pins
`jax>=0.11,<0.13`. Leaving it means another body for `kernel_call`; `requantize/triton.py` shows
that the exit is open.
"""

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton
from jaxtyping import Array, Int32, Shaped, UInt8

from pallas_kernels.banks import is_host

WORD: Final = 4  # bytes of the int32 words that kernels move
UNITS: Final = {1: jnp.uint8, 2: jnp.uint16, WORD: jnp.int32}  # by their bytes

# Whether what is being traced is a kernel that is compiled, not interpreted.
_compiled = contextvars.ContextVar("compiled", default=False)


def kernel_call(
    body: Callable[..., None],
    operands: Sequence[Array],
    num_updated: int,
    *,
    grid: tuple[int, ...],
    name: str,
    num_warps: int,
    new: Sequence[jax.ShapeDtypeStruct] = (),
    interpret: bool = False,
) -> tuple[Array, ...]:
    """Runs a kernel over whole arrays, the last of which it updates in place.

    Args:
      body: takes one reference per operand, then one per `new`; all are of whole arrays, in the
        memory that they live in. It only reads the first operands.
      operands: arrays; the last `num_updated` are updated.
      num_updated: how many.
      grid: programs.
      name: of the kernel, in profiles.
      num_warps: of 32 threads, per program.
      new: results that no operand becomes.
      interpret: whether the interpreter runs it, on any backend.

    Returns:
      The updated operands, then the new results.

    Raises:
      NotImplementedError: while tracing, if one result lives in host memory and there are others:
        the compiler cannot return arrays of two memories from one kernel.
    """
    first = len(operands) - num_updated
    updated = operands[first:]
    in_host = [is_host(x) for x in updated]
    if any(in_host) and len(updated) + len(new) > 1:
        raise NotImplementedError("a kernel that updates host memory can have no other result.")

    def run(*refs):
        token = _compiled.set(not interpret)
        try:
            body(*refs[:first], *refs[len(operands) :])
        finally:
            _compiled.reset(token)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    results = pl.pallas_call(
        run,
        out_shape=[*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in updated), *new],
        grid=grid,
        in_specs=[anywhere] * len(operands),
        out_specs=[anywhere] * (num_updated + len(new)),
        input_output_aliases={first + i: i for i in range(num_updated)},
        compiler_params=pltriton.CompilerParams(num_warps=num_warps, num_stages=1),
        interpret=interpret,
        name=name,
    )(*operands)
    host = jax.memory.Space.Host
    in_host += [False] * len(new)
    # The kernel's result is typed as device memory; this gives the type back, and moves nothing.
    return tuple(jax.device_put(x, host) if h else x for x, h in zip(results, in_host, strict=True))


def read(ref: Any, mask: Any = None) -> Array:
    """Loads a tile; where the mask is false, anything."""
    return pltriton.load(ref, mask=mask)


def write(ref: Any, tile: Array, mask: Any = None) -> None:
    """Stores a tile where the mask is true."""
    pltriton.store(ref, tile, mask=mask)


def is_compiled() -> bool:
    """Whether what is being traced is a kernel for a GPU, which may hold `instruction`s."""
    return _compiled.get()


def instruction(text: str, dtype: Any, *args: Array | int) -> Array:
    """One instruction per element, of registers of 32 bits.

    Args:
      text: its name in PTX.
      dtype: of the arguments and of the result; float32 or int32.
      *args: arrays of one shape, and constants.
    """
    kind = "f" if dtype == jnp.float32 else "r"
    arrays = [x for x in args if not isinstance(x, int)]
    numbers = iter(range(1, len(arrays) + 1))
    operands = (str(x) if isinstance(x, int) else f"${next(numbers)}" for x in args)
    (result,) = pltriton.elementwise_inline_asm(
        f"{text} $0, {', '.join(operands)};", args=arrays,
        constraints=",".join([f"={kind}", *[kind] * len(arrays)]), pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(arrays[0].shape, dtype)],
    )  # fmt: skip
    return result


def as_words(x: Array, *shape: int) -> Int32[Array, "..."]:
    """An array's bytes as int32 words in another shape, of words; costs nothing on a GPU.

    Kernels see words wherever they can: the lowering has no cast between widths, and its 32-bit
    offsets would wrap in arrays of 2 to 4 GiB of single bytes.
    """
    return as_units(x, WORD, *shape)


def as_units(x: Array, unit: int, *shape: int) -> Shaped[Array, "..."]:
    """`as_words`, of units of 1, 2 or 4 bytes: uint8, uint16 or int32.

    Raises:
      NotImplementedError: while tracing, on 2 to 4 GiB by the byte.
    """
    size = x.dtype.itemsize
    if unit == 1 and 2**31 <= x.size * size <= 2**32:
        raise NotImplementedError(
            f"{x.dtype} {x.shape} would be moved by the byte, and its 2 to 4 GiB have more bytes"
            " than an offset of the lowering can count."
        )
    if size < unit:
        x = x.reshape(-1, unit // size)
    return lax.bitcast_convert_type(x, UNITS[unit]).reshape(shape)


def of_units(units: Shaped[Array, "..."], like: Array) -> Array:
    """The inverse of `as_units`, for units no smaller than the elements of `like`."""
    return lax.bitcast_convert_type(units, like.dtype).reshape(like.shape)


def records_as_words(bank: UInt8[Array, "slots bytes"]) -> Int32[Array, "slots words"]:
    """A bank as words.

    Raises:
      NotImplementedError: while tracing, if records are no whole words.
    """
    slots, size = bank.shape
    if size % WORD:
        raise NotImplementedError(f"records of {size} bytes are no whole words of {WORD} bytes.")
    return as_words(bank, slots, size // WORD)


def strided_loop(count: Array, body: Callable[[Array], None]) -> None:
    """Spreads `count` pieces of work over the programs of a one-dimensional grid.

    The grid stays as small as its caller chose, however much there is to do.
    """
    first, programs = pl.program_id(0), pl.num_programs(0)
    mine = (count - first + programs - 1) // programs

    def turn(i, nothing):
        body(first + i * programs)
        return nothing

    lax.fori_loop(0, mine, turn, None)


when = pl.when
dslice = pl.ds
iota = functools.partial(lax.broadcasted_iota, jnp.int32)
