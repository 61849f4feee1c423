"""Measurements that need a process of their own: other settings of XLA, or most of the memory."""

import json
import os
import subprocess
import sys
from typing import Any, Final

from benchmarks import _report

BANKS: Final = ("16:20", "80:84")  # GiB, and the most GiB that XLA may pin
BANK_SECONDS: Final = 150
DISPATCH_SECONDS: Final = 90


def banks(sizes: list[str]) -> list[dict[str, Any]]:
    """One row a bank: what `benchmarks.banks` says, or why it says nothing."""
    rows = []
    for size in sizes:
        gib, _, limit = size.partition(":")
        limit = limit or str(int(float(gib)) + 4)
        found = _run(
            ["benchmarks.banks", "--gib", gib],
            {"XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB": limit},
            BANK_SECONDS,
        )
        row: dict[str, Any] = {
            "op": "banks",
            "spec": f"a host bank of {gib} GiB",
            "implementation": "default",
        }
        row |= {"median_us": None, "floor_us": None, "floor_ratio": None}
        row |= {"limit_gib": float(limit)} | found
        if "device_bytes_grown" in row:
            grown = row["device_bytes_grown"].get("peak_bytes_in_use")
            row["note"] = f"peak grew by {grown} B, moved {row['times_moved']} times"
        rows.append(row)
    return rows


def dispatch() -> list[dict[str, Any]]:
    """Two rows: what `benchmarks.dispatch` says with and without command buffers of XLA."""
    rows = []
    for name, flag in (("with", ""), ("without", "--xla_gpu_enable_command_buffer=")):
        flags = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
        found = _run(
            ["benchmarks.dispatch", "--repeats", "200"], {"XLA_FLAGS": flags}, DISPATCH_SECONDS
        )
        row = {"op": "dispatch", "spec": "one step of a whole cache, on the host"}
        row |= {"implementation": f"{name} command buffers", "floor_us": None, "floor_ratio": None}
        row |= {"median_us": found.get("step_host_us"), "single_us": found.get("step_us")}
        if "trivial_us" in found:
            row["note"] = f"a trivial call {found['trivial_us']:.0f} us"
        rows.append(row | found)
    return rows


def _run(command: list[str], settings: dict[str, str], seconds: int) -> dict[str, Any]:
    """The last JSON line that a command prints, or `unable`."""
    _report.progress(" ".join([*(f"{k}={v}" for k, v in settings.items()), *command]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            env=os.environ | settings, capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"unable": f"not done after {seconds} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = " ".join(done.stderr.strip().splitlines()[-3:])
        return {"unable": f"exit status {done.returncode}: {said[-500:]}"}
    return json.loads(lines[-1])
