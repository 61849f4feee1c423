"""Compiles every transition and every kernel for an NVIDIA H200, and reads what came of it.

    python -m tests.compile_gpu [-k PART OF A NAME] [--workers 2]

Fails if one does not compile, copies a pool or a bank, does not take over all donated ones, has
scratch as large as half of one, or computes in host memory; if a control, which has to copy, does
not; and if an op has a kernel but no case. Needs no GPU.
"""

import argparse
import concurrent.futures
import multiprocessing
import sys
import time
from collections.abc import Sequence

from tests.compile_gpu import kernels, report
from tests.compile_gpu.check import outcome_of, programs
from tests.compile_gpu.judge import Outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compile_gpu", description=__doc__)
    parser.add_argument("-k", default="", metavar="SUBSTRING", help="only names that hold it")
    parser.add_argument("--workers", type=int, default=2, help="programs compiled at a time")
    options = parser.parse_args()
    chosen = [name for name in programs() if options.k in name]
    counts = {op: len(cases) for op, cases in kernels.ops().items()}
    print(report.found(len(chosen), len(programs()), counts), flush=True)
    start = time.perf_counter()
    outcomes = compile_all(chosen, options.workers)
    print(report.table(outcomes))
    print(f"{time.perf_counter() - start:.0f} s")
    without = [op for op, count in counts.items() if not count]
    print(report.verdict(outcomes, without))
    return int(report.is_bad(outcomes, without))


def compile_all(names: Sequence[str], workers: int) -> list[Outcome]:
    """Compiles in processes. If one dies of it, whatever was unfinished has failed."""
    outcomes = {}
    # Forking a process in which JAX has started threads may hang.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(outcome_of, name): name for name in names}
        for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
            name = futures[future]
            try:
                outcomes[name] = future.result()
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                outcomes[name] = Outcome(name, programs()[name].is_control, (what,))
            print(report.progress(outcomes[name], number, len(names)), flush=True)
    return [outcomes[name] for name in names]


if __name__ == "__main__":
    sys.exit(main())
