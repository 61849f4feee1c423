"""Runs pytest and keeps how it went, with the device, as one JSON line.

python -m tests.record FILE PYTEST-ARGUMENTS...
"""

import json
import platform
import shlex
import sys
import time
from pathlib import Path

import jax
import pytest

KEPT = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


class Counts:
    """A plugin that counts outcomes, of all workers."""

    def __init__(self) -> None:
        self.found = dict.fromkeys(KEPT, 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self.found = {name: len(terminalreporter.stats.get(name, [])) for name in KEPT}


def main() -> int:
    out, *arguments = sys.argv[1:]
    counts, start = Counts(), time.monotonic()
    status = pytest.main(list(arguments), plugins=[counts])
    record = counts.found | {
        "status": int(status),
        "seconds": round(time.monotonic() - start),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "command": shlex.join(["python", "-m", "tests.record", Path(out).name, *arguments]),
    }
    with Path(out).open("a") as file:
        file.write(json.dumps(record) + "\n")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
