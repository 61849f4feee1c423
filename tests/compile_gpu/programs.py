"""What is compiled, and what comes of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Program(NamedTuple):
    """A function at abstract arguments.

    Attributes:
      name: unique.
      step: the function; whatever it updates comes first in its result, in the order of `args`.
      args: pytrees of abstract arrays, each in its memory.
      donated: positions in `args` of what is updated in place.
      pools: numbers, among all leaves of `args`, of the pools and banks.
      wants_kernels: whether a kernel has to be called.
      is_control: whether a pool or bank has to be copied: it shows that a copy would be seen.
    """

    name: str
    step: Callable[..., Any]
    args: tuple[Any, ...]
    donated: tuple[int, ...]
    pools: tuple[int, ...]
    wants_kernels: bool = False
    is_control: bool = False

    @property
    def limit(self) -> int:
        """Bytes of an array that counts as a pool or bank: half of the smallest one."""
        leaves = jax.tree.leaves(self.args)
        return min(bytes_of(leaves[number]) for number in self.pools) // 2

    @property
    def kept(self) -> dict[int, tuple[int, int]]:
        """Parameter of each pool or bank that is donated -> (result that it becomes, bytes)."""
        found, parameter, result = {}, 0, 0
        for position, arg in enumerate(self.args):
            for leaf in jax.tree.leaves(arg):
                if position in self.donated:
                    if parameter in self.pools:
                        found[parameter] = (result, bytes_of(leaf))
                    result += 1
                parameter += 1
        return found


class Compiled(NamedTuple):
    """What the compiler made of a function.

    Attributes:
      hlo: the optimised program, as text.
      temporary: bytes of scratch in device memory.
      host_temporary: bytes of scratch in pinned host memory.
    """

    hlo: str
    temporary: int
    host_temporary: int


def bytes_of(leaf: jax.ShapeDtypeStruct) -> int:
    return leaf.size * leaf.dtype.itemsize
