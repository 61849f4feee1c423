"""Tries every mutant: its killing test has to pass without it and to fail with it.

    python -m tests.mutants [PART OF A NAME ...] [--workers 2]

Works in temporary copies of the packages and their tests; the checkout is never touched. Compiled
programs are shared by all runs, so only what a mutant changes is compiled anew.
"""

import argparse
import concurrent.futures
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants import MUTANTS, Mutant
from tests.mutants.loaded import NOT_LOADED

ROOT: Final = Path(__file__).resolve().parents[2]
COPIED: Final = ("tiercache", "pallas_kernels", "models", "tests", "pyproject.toml")
LIMIT_S: Final = 300  # of one killing test
FAILED: Final = 1  # pytest's exit status when a test failed


class Outcome(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    verdict: str
    seconds: float
    output: str

    @property
    def killed(self) -> bool:
        return self.verdict == "killed"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only mutants whose name holds one of these")
    parser.add_argument("--workers", type=int, default=2, help="pytest processes at a time")
    parser.add_argument("--show", action="store_true", help="print how each test failed")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(n in m.name for n in options.names)]
    stale = [m for m in chosen if (ROOT / m.file).read_text().count(m.old) != 1]
    for mutant in stale:
        print(f"{mutant.name}: its text is not in {mutant.file} exactly once")
    if stale or not chosen:
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        return run(chosen, Path(scratch), options.workers, options.show)


def run(chosen: Sequence[Mutant], scratch: Path, workers: int, show: bool) -> int:
    copies: queue.Queue[Path] = queue.Queue()
    for number in range(workers):
        copies.put(copy_to(scratch / str(number)))
    start = time.perf_counter()
    outcomes = []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        failing = baseline(pool, copies, chosen, workers)
        if failing:
            print("Without a mutant these do not pass:", *failing, sep="\n  ")
            return 1
        spent = time.perf_counter() - start
        print(f"Without a mutant all {len({m.test for m in chosen})} tests pass ({spent:.0f} s).")
        futures = [pool.submit(attempt, copies, mutant) for mutant in chosen]
        for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
            outcomes.append(future.result())
            print(line(outcomes[-1], number, len(chosen)), flush=True)
            if show:
                print(*failure_lines(outcomes[-1].output), sep="\n")
    return report(chosen, outcomes, time.perf_counter() - start)


def copy_to(place: Path) -> Path:
    """A copy of what the tests need, without caches and compiled files."""
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=ignore)
        else:
            shutil.copy(source, place / name)
    return place


def baseline(pool, copies, chosen: Sequence[Mutant], workers: int) -> list[str]:
    """The killing tests that do not pass on the code as it is."""
    tests = sorted({mutant.test for mutant in chosen})
    # Neighbours share a file and what it compiles.
    size = -(-len(tests) // workers)
    shares = [tests[i : i + size] for i in range(0, len(tests), size)]

    def passes(share: list[str]) -> list[str]:
        copy = copies.get()
        try:
            status, output = pytest(copy, share, limit_s=len(share) * LIMIT_S)
        finally:
            copies.put(copy)
        if status == 0:
            return []
        named = [text for text in output.splitlines() if text.startswith(("FAILED", "ERROR"))]
        return named or output.splitlines()[-5:]

    return [name for found in pool.map(passes, shares) for name in found]


def attempt(copies: "queue.Queue[Path]", mutant: Mutant) -> Outcome:
    """Runs the killing test in a copy with the mutant in it, and takes the mutant out again."""
    copy = copies.get()
    file = copy / mutant.file
    source = file.read_text()
    start = time.perf_counter()
    try:
        rewrite(file, source.replace(mutant.old, mutant.new))
        status, output = pytest(copy, [mutant.test], mutated=mutant.file)
    finally:
        rewrite(file, source)
        copies.put(copy)
    known = {0: "SURVIVED", FAILED: "killed", NOT_LOADED: "NOT LOADED", None: "TIMED OUT"}
    verdict = known.get(status, f"BROKEN, pytest exits with {status}")
    return Outcome(mutant, verdict, time.perf_counter() - start, output)


def rewrite(file: Path, source: str):
    """Writes a module and drops its compiled form, which is told from the old by seconds only."""
    file.write_text(source)
    for stale in file.parent.glob(f"__pycache__/{file.stem}.*"):
        stale.unlink()


def pytest(
    copy: Path, tests: Iterable[str], *, mutated: str | None = None, limit_s: float = LIMIT_S
) -> tuple[int | None, str]:
    """(exit status or None for too long, output) of some tests in a copy."""
    environment = os.environ | {
        "PYTHONPATH": str(copy),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(copy.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    if mutated is not None:
        environment |= {"MUTATED_FILE": mutated, "MUTATED_ROOT": str(copy)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "tests.mutants.loaded", *(["-x"] if mutated else []), *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def failure_lines(output: str) -> list[str]:
    return [f"      {text}" for text in output.splitlines() if text.startswith("E  ")][:4]


def line(outcome: Outcome, number: int, total: int) -> str:
    where = outcome.mutant.test.removeprefix("tests/")
    return f"{number:3} of {total}  {outcome.verdict:8} {outcome.seconds:5.1f} s  " + (
        f"{outcome.mutant.name}  ->  {where}"
    )


def report(chosen: Sequence[Mutant], outcomes: Sequence[Outcome], seconds: float) -> int:
    killed = {outcome.mutant.name for outcome in outcomes if outcome.killed}
    alive = [outcome for outcome in outcomes if not outcome.killed]
    for outcome in alive:
        mutant = outcome.mutant
        print(f"\n{outcome.verdict}: {mutant.name} ({mutant.file})\n  {mutant.why}")
        print(*outcome.output.splitlines()[-5:], sep="\n  ")
    print(f"{seconds:.0f} s")
    print(f"{len(killed)} of {len(chosen)} mutants killed")
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main())
