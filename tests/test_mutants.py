"""The table of mutants fits the code: `make mutants` runs it, this keeps it from going stale."""

import ast
import collections
import re
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, Mutant
from tests.mutants import __main__ as runner

ROOT = Path(__file__).resolve().parents[1]


def test_there_are_enough_and_each_has_its_own_name():
    assert len(MUTANTS) >= 40
    names = collections.Counter(mutant.name for mutant in MUTANTS)
    assert not [name for name, number in names.items() if number > 1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_edits_what_is_there_and_is_still_a_program(mutant):
    source = (ROOT / mutant.file).read_text()
    assert source.count(mutant.old) == 1
    mutated = source.replace(mutant.old, mutant.new)
    assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))
    assert mutant.why


def test_every_killing_test_exists():
    for mutant in MUTANTS:
        file, name = mutant.test.partition("[")[0].split("::")
        tree = ast.parse((ROOT / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


TINY = {
    "tiercache/__init__.py": "",  # else an installed tiercache would come first
    "tiercache/adding.py": "def add(a, b):\n    return a + b\n",
    "tiercache/idle.py": "x = 1\n",
    "tests/test_adding.py": (
        "from tiercache.adding import add\n\n\n"
        "def test_add():\n    assert add(2, 3) == 5\n\n\n"
        "def test_nothing():\n    assert add\n\n\n"
        "def test_wrong():\n    assert add(2, 2) == 5\n"
    ),
    "tests/mutants/__init__.py": "",
    "tests/mutants/loaded.py": (ROOT / "tests/mutants/loaded.py").read_text(),
}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The root of a checkout of one function, in which the runner works."""
    for name, source in TINY.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(source)
    monkeypatch.setattr(runner, "ROOT", tmp_path / "root")
    monkeypatch.setattr(runner, "COPIED", ("tiercache", "tests"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than the tests
    return tmp_path / "root"


def tiny_mutant(name: str, test: str, file="adding", old="a + b", new="a - b") -> Mutant:
    return Mutant(name, f"tiercache/{file}.py", old, new, f"tests/test_adding.py::{test}", "why")


def test_the_runner_tells_what_became_of_each_mutant(tiny, tmp_path, capsys):
    mutants = [
        tiny_mutant("dead", "test_add"),
        tiny_mutant("alive", "test_nothing"),
        tiny_mutant("elsewhere", "test_add", "idle", "x = 1", "x = 2"),
        tiny_mutant("no program", "test_add", new="a +"),
    ]
    assert runner.run(mutants, tmp_path, 2, False) == 1
    out = capsys.readouterr().out
    assert re.search(r"killed +[\d.]+ s  dead  ->  test_adding.py::test_add", out)
    assert "SURVIVED: alive" in out and "NOT LOADED: elsewhere" in out
    assert re.search(r"BROKEN, pytest exits with \d: no program", out)
    assert out.endswith("1 of 4 mutants killed\n")
    assert (tiny / "tiercache/adding.py").read_text() == TINY["tiercache/adding.py"]
    assert runner.run(mutants[:1], tmp_path / "again", 1, False) == 0


def test_the_runner_wants_killing_tests_that_pass(tiny, tmp_path, capsys):
    assert runner.run([tiny_mutant("m", "test_wrong")], tmp_path, 1, False) == 1
    assert "do not pass:\n  FAILED tests/test_adding.py::test_wrong" in capsys.readouterr().out
