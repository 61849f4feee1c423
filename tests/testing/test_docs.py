"""The code of docs/testing.md runs as it stands there, and its first example is short."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs/testing.md"


@pytest.mark.slow
def test_the_code_of_the_page_runs(quick_compiles):
    codes = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(codes) == 3
    names: dict = {}
    for code in codes:
        exec(compile(code, "docs/testing.md", "exec"), names)  # noqa: S102
    assert names["both"].num_calls > 400
    assert names["TestMyCache"].settings.max_examples == 20
