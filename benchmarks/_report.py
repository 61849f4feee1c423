"""What every benchmark prints and keeps: a short table, and one JSON line a run."""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import jax


def add_out(parser: argparse.ArgumentParser) -> None:
    """Adds `--out FILE`: where the JSON line is appended."""
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")


def progress(text: str) -> None:
    """One line of progress, on stderr."""
    print(f"  {text}", file=sys.stderr, flush=True)


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A text table; numbers are right-aligned."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: list[str]) -> str:
        first, *rest = zip(row, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(c.rjust(w) for c, w in rest)])

    return "\n".join([line(cells[0]), "  ".join("-" * w for w in widths), *map(line, cells[1:])])


def reason(error: BaseException) -> str:
    """An exception in one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def emit(module: str, record: Mapping[str, object], out: Path | None) -> None:
    """Prints a record as one JSON line, with device, versions and command; appends it to `out`."""
    print(append(module, record, out))


def append(module: str, record: Mapping[str, object], out: Path | None) -> str:
    """The JSON line of `emit`, appended to `out`."""
    full = dict(record) | {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
    }
    text = json.dumps(full)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write(text + "\n")
    return text


def times_us(call: Callable[[int], object], repeats: int) -> list[float]:
    """Wall-clock microseconds of `call(0)`, `call(1)`, … each waited for."""
    times = []
    for turn in range(repeats):
        start = time.perf_counter_ns()
        jax.block_until_ready(call(turn))
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def median(times: Iterable[float]) -> float:
    """The median."""
    return statistics.median(times)
