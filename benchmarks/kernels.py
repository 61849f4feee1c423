"""How fast the kernels are, beside their peers and beside what the machine can do, in one run.

    python -m benchmarks.kernels [--op NAME] [-k SUBSTRING] [--tune] [--out FILE]

Cases are those that the ops name in `pallas_kernels/*/arg_specs.py`. Each is checked before it is
timed: on random finite values, with poisoned outputs and some ids that do not exist, the kernel
must leave the same bytes as the reference, on the device. One that does not is reported, and fails
the command at its end.

Times are per call, medians of rounds in which all implementations take turns, each updating its
donated arrays in place. `median_us` is without the dispatch of a call by the host, `single_us` with
it: see `benchmarks/_timing.py`. `floor_us` is what the case moves over what the machine moves at
best, measured first: device memory against the fastest copy within it, by XLA or torch; records in
host memory against one big copy over the bus in the same direction. `floor_ratio` is 1 where a case
takes no longer than that. Ops that move little take as long as it takes to launch their kernels.

Peers at some of the cases: one `device_put` per record, a plain restore in torch, and FlashInfer's
kernel that decodes NVFP4 KV, given `--flashinfer` or its package. Then what concerns several ops:
both directions of the bus at once, a long prefix restored beside matrix products, and the mirror
within a prefill chunk; see `benchmarks/_claims.py` and `benchmarks/_prefill.py`. In processes of
their own, on demand: `--banks`, whether large host banks stay where they are and cost no device
memory; `--dispatch`, what a step of a whole cache costs the host, with and without command buffers.

`--tune` times candidates for the kernels' `Tuning` instead, and the table has the best of each.
`--tiny` is for a machine without a GPU: small arrays, and only what can run there.

Progress goes to stderr, the tables come last, and `--out` gets one JSON line a measurement, as soon
as there is one.
"""

import os

# Before a backend starts: other libraries need some of the device memory, and banks are large.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "100")

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

from benchmarks import (
    _cases,
    _claims,
    _floors,
    _measure,
    _peers,
    _prefill,
    _processes,
    _report,
    _table,
    _tune,
)


class Run:
    """What a run has found so far, written down as it comes."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.rows: list[dict[str, Any]] = []
        self.started = time.monotonic()

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        _report.append("benchmarks.kernels", row, self.args.out)

    def wants(self, op: str, spec: str) -> bool:
        """Whether a measurement of this name is asked for."""
        return op.startswith(self.args.op or "") and self.args.k in f"{op} {spec}"

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.started > self.args.seconds

    def guarded(self, op: str, spec: str, measure: Callable[[], None]) -> None:
        """Measures; what goes wrong becomes a row, and so does what there is no time for."""
        row = {"op": op, "spec": spec, "implementation": None, "median_us": None}
        row |= {"floor_us": None, "floor_ratio": None}
        if self.is_late:
            self.add(row | {"skipped": f"after {self.args.seconds} s"})
            return
        start = time.monotonic()
        try:
            measure()
        except Exception as error:
            self.add(row | {"error": _report.reason(error)})
            _report.progress(f"{op} {spec}: {_report.reason(error)}")
        _report.progress(f"{op} {spec}: {time.monotonic() - start:.1f} s")


def measure_cases(run: Run, floors: _floors.Floors) -> None:
    """Checks and times every case that is asked for."""
    cases = [
        case for case in (*_cases.discover(), *_claims.planes()) if run.wants(case.op, case.name)
    ]
    cases = [_cases.sized(case, tiny=run.args.tiny) for case in cases]
    start = time.monotonic()
    built = _measure.build(cases, floors)
    _report.progress(f"{len(cases)} cases compiled in {time.monotonic() - start:.0f} s")
    for case, programs in zip(cases, built, strict=True):
        run.guarded(
            case.op, case.name,
            lambda c=case, p=programs: _measure.measure(c, p, floors.us(c), run),
        )  # fmt: skip


def measure_claims(run: Run, floors: _floors.Floors) -> None:
    """Measures what concerns several ops together."""
    for claim in (_claims.both_directions, _claims.prefix_restore, _prefill.prefill_chunk):
        if run.wants(claim.__name__, ""):
            run.guarded(claim.__name__, "", lambda c=claim: c(run, floors))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--op", help="only cases of this op, or of ops that begin so")
    parser.add_argument("-k", default="", metavar="SUBSTRING", help="only cases that hold it")
    parser.add_argument("--repeats", type=int, default=7, help="rounds of timing")
    parser.add_argument("--seconds", type=float, default=240, help="nothing is begun after these")
    parser.add_argument("--tune", action="store_true", help="time candidates for Tuning instead")
    parser.add_argument("--tiny", action="store_true", help="small arrays, for a test without GPU")
    parser.add_argument(
        "--banks", nargs="*", metavar="GIB[:LIMIT]",
        help="also update large host banks, with so many GiB that may be pinned",
    )  # fmt: skip
    parser.add_argument("--dispatch", action="store_true", help="also time a step on the host")
    parser.add_argument("--flashinfer", metavar="PATH", help="its wheel, folder or kernel's source")
    _report.add_out(parser)
    return parser.parse_args()


def main() -> int:
    args = parsed()
    run = Run(args)
    # First, and before JAX takes memory of either kind here.
    found = _processes.banks(args.banks or list(_processes.BANKS)) if args.banks is not None else []
    found += _processes.dispatch() if args.dispatch else []
    floors = _floors.measure(tiny=args.tiny)
    for row in (*found, *floors.rows):
        run.add(row)
    if args.tune:
        _tune.tune(run, floors)
    else:
        measure_cases(run, floors)
        _peers.measure(run, floors)
        measure_claims(run, floors)
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}")
    print(_table.tables(run.rows))
    return int(has_failed(run.rows))


def has_failed(rows: list[dict[str, Any]]) -> bool:
    """Whether bytes differ, or something went wrong; what is merely not to be had is no failure."""
    return any(row.get("equal") is False or "error" in row for row in rows)


if __name__ == "__main__":
    sys.exit(main())
