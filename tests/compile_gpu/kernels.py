"""The cases of every op that has a kernel, found by their files."""

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import jax

from pallas_kernels.cases import Case
from tests.compile_gpu.programs import Program
from tests.compile_gpu.target import in_memory

FOLDER: Final = Path(__file__).resolve().parents[2] / "pallas_kernels"


def ops() -> dict[str, tuple[Case, ...]]:
    """Op -> its cases, for each folder that has a kernel or names shapes."""
    found = {}
    for folder in sorted(path for path in FOLDER.iterdir() if path.is_dir()):
        if (folder / "arg_specs.py").exists():
            module = importlib.import_module(f"pallas_kernels.{folder.name}.arg_specs")
            found[folder.name] = tuple(getattr(module, "CASES", ()))
        elif (folder / "pallas.py").exists():
            found[folder.name] = ()
    return found


def programs() -> Iterator[Program]:
    """Yields every case, to be served by the kernel alone."""
    for cases in ops().values():
        for case in cases:
            yield of(case)


def of(case: Case) -> Program:
    """A case, served by its kernel or not at all.

    A pool is a tuple of leaves, and a bank an array: they are what is donated or in host memory,
    and tuples that are only read. Lists of ids and new tokens are arrays of their own.
    """
    args = tuple(
        jax.tree.map(functools.partial(in_memory, host=position in case.host), arg)
        for position, arg in enumerate(case.args)
    )
    big, parameter = [], 0
    for position, arg in enumerate(case.args):
        leaves = len(jax.tree.leaves(arg))
        if position in (*case.donated, *case.host) or isinstance(arg, tuple):
            big += range(parameter, parameter + leaves)
        parameter += leaves
    step = functools.partial(case.call, implementation="pallas")
    return Program(
        f"{case.op} {case.name}", step, args, case.donated, tuple(big), wants_kernels=True
    )
