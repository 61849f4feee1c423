"""Random traces over a cache and its reference, for as long as there is time.

    python -m experiments.soak --seconds 600

Every verb, every tier, thousands of steps a second; after each call the info, all numbers of the
state and the rules of `check` are compared, and free storage is overwritten; every 256 calls so is
every byte. A trace that fails is cut down and saved, and the test suite replays it from then on.
`--out` appends what was reached to a file of JSON lines.
"""

import argparse
import collections
import json
import os
import platform
import shlex
import sys
import time
from pathlib import Path

import jax
import numpy as np

from tiercache.testing.driver import Driver, random_step
from tiercache.testing.lockstep import Lockstep
from tiercache.testing.specs import SPECS
from tiercache.testing.traces import Trace, failure, failure_of, shrink

STEPS_PER_TRACE = 2000
SHRINK_SECONDS = 60


class Totals:
    """What the traces of one run have seen together."""

    def __init__(self):
        self.start = time.perf_counter()
        self.steps = self.calls = self.traces = 0
        self.seen: collections.Counter[tuple[str, str]] = collections.Counter()
        self.events: collections.Counter[str] = collections.Counter()

    def add(self, driver: Driver):
        self.traces += 1
        self.steps += driver.num_steps
        self.calls += driver.lockstep.num_calls
        self.seen.update(driver.lockstep.seen)
        self.events.update(driver.lockstep.reference.counters)

    def by_verb_and_reason(self) -> tuple[collections.Counter[str], collections.Counter[str]]:
        """Calls of each verb, and refusals by their reason."""
        verbs, refusals = collections.Counter(), collections.Counter()
        for (verb, reason), number in self.seen.items():
            verbs[verb] += number
            if reason != "OK":
                refusals[reason] += number
        return verbs, refusals

    def record(self, specs: list[str], seed: int, failures: int) -> dict[str, object]:
        """What was reached, as one JSON object."""
        verbs, refusals = self.by_verb_and_reason()
        return {
            "experiment": "soak",
            "specs": specs,
            "seed": seed,
            "calls": self.calls,
            "steps": self.steps,
            "traces": self.traces,
            "seconds": round(time.perf_counter() - self.start, 1),
            "failed_traces": failures,
            "verbs": dict(verbs.most_common()),
            "refusals": dict(refusals.most_common()),
            "events": {name: number for name, number in self.events.most_common() if number},
            "device": jax.devices()[0].device_kind,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "jax": jax.__version__,
            "python": platform.python_version(),
            "command": shlex.join(["python", "-m", "experiments.soak", *sys.argv[1:]]),
        }

    def report(self) -> str:
        seconds = time.perf_counter() - self.start
        verbs, refusals = self.by_verb_and_reason()
        lines = [
            f"{self.calls:,} calls of verbs compared, in {self.steps:,} steps of {self.traces:,} "
            f"traces: {self.calls / seconds:,.0f} a second over {seconds:,.0f} s",
            f"{len(verbs)} verbs: " + _listed(verbs),
            "refusals: " + _listed(refusals),
            "tier moves and other events: " + _listed(self.events),
        ]
        return "\n".join(lines)


def _listed(counts: collections.Counter) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common() if number)


def run_trace(name: str, seed: int, until: float) -> tuple[Driver, Trace | None]:
    """One trace from one seed: the driver, and the trace as far as it came if it failed."""
    spec = SPECS[name]
    driver, rng = Driver(Lockstep(spec, keep_calls=True)), np.random.default_rng(seed)
    try:
        while driver.num_steps < STEPS_PER_TRACE and time.perf_counter() < until:
            driver.run(random_step(rng, spec))
        driver.lockstep.flush()
    except AssertionError as error:
        return driver, Trace(spec, tuple(driver.lockstep.calls_made), f"seed {seed}: {error}")
    return driver, None


def save(trace: Trace, folder: Path, name: str) -> Path:
    """Writes a failing trace, cuts it down for a while, and writes what is left."""
    path, until = folder / f"{name}.json", time.perf_counter() + SHRINK_SECONDS
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(trace.to_json(), encoding="utf-8")

    wanted = failure_of(trace.note.partition(": ")[2])

    def still_fails(calls) -> bool:
        if time.perf_counter() > until:
            return False
        return failure(trace._replace(calls=tuple(calls))) == wanted

    shorter = trace._replace(calls=shrink(trace.calls, still_fails))
    path.write_text(shorter.to_json(), encoding="utf-8")
    return path


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None, help="of the first trace; else by chance")
    parser.add_argument("--spec", choices=[*SPECS, "all"], default="all")
    parser.add_argument("--save", type=Path, default=Path("tests/testing/replays"))
    parser.add_argument("--out", type=Path, help="append what was reached to this file, as JSON")
    args = parser.parse_args(argv)
    seed = args.seed
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seeds from {seed}; the first trace of each spec compiles, which takes a minute")
    names = list(SPECS) if args.spec == "all" else [args.spec]
    totals, failures = Totals(), 0
    until, said = totals.start + args.seconds, totals.start
    while time.perf_counter() < until:
        name = names[totals.traces % len(names)]
        driver, failed = run_trace(name, seed + totals.traces, until)
        totals.add(driver)
        if failed is not None:
            failures += 1
            print(f"FAILED: {failed.note}", flush=True)
            path = save(failed, args.save, f"{name}_{seed + totals.traces - 1}")
            print(f"saved as {path}", flush=True)
        if time.perf_counter() - said > 60:
            said = time.perf_counter()
            print(totals.report().partition("\n")[0], flush=True)
    print(totals.report())
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(totals.record(names, seed, failures)) + "\n")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
