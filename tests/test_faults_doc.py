"""`docs/faults.md` names every fault of the list, and no test that does not exist."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/faults.md").read_text()
NUM_ROWS = {"A": 13, "B": 18, "C": 12, "D": 6, "E": 17, "F": 13, "G": 4, "H": 2}
TEST_ID = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> dict[str, list[list[str]]]:
    """Cells of each kind's table."""
    found = {}
    for section in PAGE.split("\n## ")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("|")][2:]
        found[section[0]] = [line.strip("|").split(" | ") for line in lines]
    return found


@functools.cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_kind_is_there_with_all_its_faults():
    assert {kind: len(faults) for kind, faults in rows().items()} == NUM_ROWS
    faults = [cells[0] for kind in rows().values() for cells in kind]
    assert len(set(faults)) == len(faults)


def test_each_fault_has_its_answer():
    for fault, answer in (cells for kind in rows().values() for cells in kind):
        missing = re.search(r"[Nn]ot here yet \([\w ,-]+\)", answer)
        assert missing or "By design: " in answer or TEST_ID.search(answer), fault


def test_every_test_that_is_named_exists():
    named = set(TEST_ID.findall(PAGE))
    assert len(named) > 50 and PAGE.count("::") == len(TEST_ID.findall(PAGE))
    assert not {(file, name) for file, name in named if name not in names_in(file)}
