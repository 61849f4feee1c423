"""The README's code runs as it stands there."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.slow
def test_the_decode_loop_runs(quick_compiles):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102
    state = names["state"]
    assert state.table.lengths.tolist() == [64, 80, 80, 80]
    assert int(names["plan"].num_pages) == 1
    assert int(names["back"].num_host) == 1
    assert names["step"]._cache_size() == 1
