"""Who may import whom, what may touch the machine, and how long a function or file may grow.

`experiments, benchmarks -> models -> tiercache -> pallas_kernels -> jax`. Every `import` counts,
also one inside a function or under `TYPE_CHECKING`: a layer does not know the layers above it.
"""

import ast
import fnmatch
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

BELOW = {
    "pallas_kernels": set(),
    "tiercache": {"pallas_kernels"},
    "models": {"tiercache", "pallas_kernels"},
    "benchmarks": {"models", "tiercache", "pallas_kernels"},
    "experiments": {"models", "tiercache", "pallas_kernels"},
}
PROJECT = {*BELOW, "tests", "tools"}
SHIPPED = ("tiercache", "pallas_kernels")

# What the wheel's own dependencies provide, and the extras that single places may need.
THIRD_PARTY = {"jax", "jaxlib", "numpy", "flax", "jaxtyping"}
THIRD_PARTY_BY_PLACE = {
    "pallas_kernels/*/triton.py": {"jax_triton", "triton"},
    "tiercache/testing/*": {"hypothesis"},
    "tiercache/stores/*": {"obstore"},
}

# Files, sockets, processes, threads, clocks and chance belong to the impure shell alone.
IMPURE_SHELL = "tiercache/stores/*"
IMPURE = set(
    "os io socket ssl http urllib pathlib shutil tempfile glob mmap fcntl ctypes subprocess signal"
    " threading multiprocessing concurrent asyncio queue select selectors sched time datetime"
    " random secrets uuid".split()
)

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 400


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yields (line, absolute dotted name) of each import, `import_module("...")` included."""
    here = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=name, level=level, names=names):
                base = here[: len(here) - level + 1] if level else []
                parts = [*base, *([name] if name else [])]
                yield from ((node.lineno, ".".join([*parts, alias.name])) for alias in names)
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if ast.unparse(
                func
            ) in ("__import__", "import_module", "importlib.import_module"):
                yield node.lineno, name


def matches(file: Path, place: str) -> bool:
    return fnmatch.fnmatchcase(file.as_posix(), place)  # here * stands for folders too


def import_offences(file: Path, tree: ast.AST) -> Iterator[str]:
    """Yields what is wrong with the imports of `file`, a path relative to the root."""
    package = file.parts[0]
    is_package = file.name == "__init__.py"
    module = ".".join(file.parent.parts if is_package else file.with_suffix("").parts)
    known = THIRD_PARTY.union(
        *(names for place, names in THIRD_PARTY_BY_PLACE.items() if matches(file, place))
    )
    for line, name in imports(tree, module, is_package):
        root = name.split(".")[0]
        if root == package or root == "__future__":
            continue
        if root in PROJECT:
            if root not in BELOW[package]:
                yield f"{file}:{line}: {package} may not import {name}"
        elif package in SHIPPED and root not in sys.stdlib_module_names and root not in known:
            yield f"{file}:{line}: the wheel does not depend on {name}"
        elif package == "tiercache" and root in IMPURE and not matches(file, IMPURE_SHELL):
            yield f"{file}:{line}: {name} outside the impure shell, {IMPURE_SHELL}"


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's docstring: a contract may be as long as it has to be."""
    first = node.body[0]
    if ast.get_docstring(node) is None:
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


def size_offences(file: Path, tree: ast.AST, source: str) -> Iterator[str]:
    """Yields the functions and the file that have outgrown their maximum."""
    num_lines = len(source.splitlines())
    if num_lines > MAX_FILE_LINES:
        yield f"{file}: {num_lines} lines, at most {MAX_FILE_LINES}"
    if file.parts[0] not in SHIPPED:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
            if num_lines > MAX_FUNCTION_LINES:
                where = f"{file}:{node.lineno}: {node.name}"
                yield f"{where} has {num_lines} lines, at most {MAX_FUNCTION_LINES}"


def sources(root: Path) -> Iterator[tuple[Path, ast.AST, str]]:
    for package in BELOW:
        for path in sorted((root / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            yield path.relative_to(root), ast.parse(source, str(path)), source


def all_import_offences(root: Path) -> list[str]:
    return [found for file, tree, _ in sources(root) for found in import_offences(file, tree)]


def all_size_offences(root: Path) -> list[str]:
    return [found for args in sources(root) for found in size_offences(*args)]


def test_every_package_is_walked():
    assert {file.parts[0] for file, _, _ in sources(ROOT)} == set(BELOW)


def test_imports_point_downwards():
    offences = all_import_offences(ROOT)
    assert not offences, "\n" + "\n".join(offences)


def test_functions_and_files_are_short():
    offences = all_size_offences(ROOT)
    assert not offences, "\n" + "\n".join(offences)


def seed(root: Path, file: str, source: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("pallas_kernels/a.py", "import tiercache"),
        ("pallas_kernels/a.py", "from models.hybrid_gdn import config"),
        ("pallas_kernels/op/api.py", "from tiercache.spec import Spec"),
        ("pallas_kernels/op/pallas.py", "import jax_triton"),
        ("tiercache/a.py", "import models"),
        ("tiercache/a.py", "def f():\n    from experiments import churn"),
        ("tiercache/a.py", "import importlib\nimportlib.import_module('models.decode')"),
        ("tiercache/a.py", "if TYPE_CHECKING:\n    from models import decode"),
        ("tiercache/a.py", "import os.path"),
        ("tiercache/codecs/a.py", "from pathlib import Path"),
        ("tiercache/a.py", "import threading"),
        ("tiercache/a.py", "import optax"),
        ("tiercache/a.py", "import hypothesis"),
        ("tiercache/stores/a.py", "from models import decode"),
        ("models/decode.py", "import experiments.churn"),
        ("models/decode.py", "import benchmarks"),
        ("benchmarks/a.py", "from experiments import churn"),
        ("experiments/a.py", "from tests import conftest"),
    ],
)
def test_a_forbidden_import_is_caught(tmp_path, file, source):
    seed(tmp_path, file, source)
    (offence,) = all_import_offences(tmp_path)
    assert offence.startswith(file)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("pallas_kernels/op/api.py", "import jax\nfrom pallas_kernels.op import reference"),
        ("pallas_kernels/op/triton.py", "import jax_triton"),
        ("pallas_kernels/op/api.py", "from . import reference\nfrom .. import dispatch"),
        (
            "tiercache/a.py",
            "from __future__ import annotations\nimport functools, jax.numpy",
        ),
        ("tiercache/a.py", "from pallas_kernels import dispatch"),
        ("tiercache/stores/local.py", "import os, threading\nfrom pathlib import Path"),
        ("tiercache/stores/remote/s3.py", "import obstore, socket"),
        ("tiercache/testing/strategies.py", "import hypothesis"),
        ("models/decode.py", "import os, optax, tiercache"),
        ("experiments/churn.py", "import rich, models.decode, tiercache"),
        ("benchmarks/a.py", "import time, models, pallas_kernels"),
    ],
)
def test_an_allowed_import_is_let_through(tmp_path, file, source):
    seed(tmp_path, file, source)
    assert all_import_offences(tmp_path) == []


def test_a_long_function_and_a_long_file_are_caught(tmp_path):
    seed(tmp_path, "tiercache/a.py", "def f():\n" + "    pass\n" * MAX_FUNCTION_LINES)
    seed(tmp_path, "tiercache/b.py", "def f():\n" + "    pass\n" * (MAX_FUNCTION_LINES - 1))
    seed(tmp_path, "experiments/c.py", "x = 1\n" * (MAX_FILE_LINES + 1))
    seed(tmp_path, "experiments/d.py", "x = 1\n" * MAX_FILE_LINES)
    long_contract = '    """' + "x\n" * MAX_FUNCTION_LINES + '"""\n'
    seed(tmp_path, "tiercache/e.py", "def f():\n" + long_contract + "    pass\n")
    assert [offence.split(":")[0] for offence in all_size_offences(tmp_path)] == [
        "tiercache/a.py",
        "experiments/c.py",
    ]
