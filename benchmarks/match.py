"""How long `match` takes on a full index, beside a chained SHA-256 a page over the same prompts.

    python -m benchmarks.match

The index is filled to its last node by `extend` over prompts that branch off one another. Each
timed call gets another prompt than the call before and computes its keys anew; tokens are on the
device already, as they are bytes already for the hash. Both run on one core unless `--cores` says
otherwise: with more, the median depends on who else wants them. Cases: `full` (every page that a
match may reach), `half` (the prompt leaves the known prefix half-way) and `miss` (no page known).
"""

import argparse
import hashlib
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _report
from tiercache import prefix

VOCABULARY = 151_936


class Bench(NamedTuple):
    """A full index and prompts to match against it.

    Attributes:
      index: the index.
      namespace: whose prompts.
      prompts: `int32[prompt, tokens]` by case.
      expected: pages each case resumes.
    """

    index: prefix.PrefixIndex
    namespace: jax.Array
    prompts: dict[str, np.ndarray]
    expected: dict[str, int]


def build(*, num_nodes: int, num_pages: int, page_size: int, num_prompts: int) -> Bench:
    """Fills an index; the first `num_prompts` prompts share half of their pages at least."""
    rng = np.random.default_rng(0)
    size = num_pages * page_size
    index = prefix.init_index(
        num_nodes=num_nodes, page_size=page_size, max_pages=num_pages, num_leases=64
    )
    namespace = jnp.asarray(prefix.Namespace(tenant="bench").lanes())
    extend = jax.jit(_store, donate_argnums=0)
    known = []
    free = num_nodes
    while free:
        tokens = rng.integers(0, VOCABULARY, size, dtype=np.int32)
        if known and rng.random() < 0.7:
            shared = int(rng.integers(1, num_pages)) * page_size
            tokens[:shared] = known[rng.integers(len(known))][:shared]
        index, made = extend(index, jnp.asarray(tokens), namespace)
        free = int(prefix.num_free_nodes(index))
        known.append(tokens)
        _report.progress(f"{num_nodes - free} of {num_nodes} nodes, {int(made)} new")
    fulls = [tokens for tokens in known[:-1]][:num_prompts]
    halves = []
    for tokens in fulls:
        half = tokens.copy()
        half[size // 2 :] = rng.integers(0, VOCABULARY, size - size // 2)
        halves.append(half)
    misses = rng.integers(0, VOCABULARY, (len(fulls), size), dtype=np.int32)
    return Bench(
        index=index,
        namespace=namespace,
        prompts={"full": np.stack(fulls), "half": np.stack(halves), "miss": misses},
        expected={"full": num_pages - 1, "half": num_pages // 2, "miss": 0},
    )


def _store(index, tokens, namespace):
    """Makes as much of a prompt known as fits, with a hot page and a snapshot at every node."""
    num_known, num_pages = prefix.can_extend(
        index, tokens, jnp.int32(prefix.max_pages(index)), namespace
    )
    index, info = prefix.extend(index, tokens, num_pages, namespace)
    index = prefix.set_entries(index, info.node_ids, info.node_ids)
    return prefix.set_snapshots(index, info.node_ids, info.node_ids), num_pages - num_known


def sha256_chain(pages: list[bytes]) -> bytes:
    """A digest a page, each over the digest before and the page's token bytes."""
    digest = b""
    for page in pages:
        digest = hashlib.sha256(digest + page).digest()
    return digest


def keep_to_cores(count: int) -> None:
    """Keeps this process to its last `count` cores, where the system lets it; before JAX starts."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-count:])


def main() -> None:
    parser = argparse.ArgumentParser(description="Times match beside a chained SHA-256.")
    parser.add_argument("--nodes", type=int, default=65_536)
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--page-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--cores", type=int, default=1)
    _report.add_out(parser)
    args = parser.parse_args()
    keep_to_cores(args.cores)
    num_pages = args.tokens // args.page_size
    bench = build(
        num_nodes=args.nodes, num_pages=num_pages, page_size=args.page_size, num_prompts=16
    )
    match = jax.jit(prefix.match)
    length = jnp.int32(args.tokens)
    results = {}
    for case, prompts in bench.prompts.items():
        arrays = [jnp.asarray(tokens) for tokens in prompts]
        for tokens in arrays:
            plan = match(bench.index, tokens, length, bench.namespace)
            if int(plan.num_pages) != bench.expected[case]:
                raise SystemExit(f"{case}: {int(plan.num_pages)} pages, not {bench.expected[case]}")
        results[case] = _report.times_us(
            lambda turn, arrays=arrays: match(
                bench.index, arrays[turn % len(arrays)], length, bench.namespace
            ),
            args.repeats,
        )
        _report.progress(f"{case}: {_report.median(results[case]):.0f} us")
    chunks = [
        [page.tobytes() for page in tokens.reshape(num_pages, -1)]
        for tokens in bench.prompts["full"]
    ]
    results["sha256"] = _report.times_us(
        lambda turn: sha256_chain(chunks[turn % len(chunks)]), max(args.repeats // 8, 20)
    )
    report(args, results)


def report(args: argparse.Namespace, results: dict[str, list[float]]) -> None:
    """Prints the table and the JSON line."""
    thousands = args.tokens / 1000
    rows = [
        (name, f"{_report.median(t):.0f}", f"{min(t):.0f}", f"{_report.median(t) / thousands:.2f}")
        for name, t in results.items()
    ]
    print(_report.table(("case", "us a call", "fastest", "us / 1k tokens"), rows))
    per_1k = {name: round(_report.median(t) / thousands, 3) for name, t in results.items()}
    _report.emit(
        "benchmarks.match",
        {
            "benchmark": "match",
            "us_per_1k_tokens": per_1k["full"],
            "half_us_per_1k_tokens": per_1k["half"],
            "miss_us_per_1k_tokens": per_1k["miss"],
            "sha256_us_per_1k_tokens": per_1k["sha256"],
            "nodes": args.nodes,
            "tokens": args.tokens,
            "page_size": args.page_size,
            "repeats": args.repeats,
            "cores": args.cores,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
