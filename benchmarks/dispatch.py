"""What a call costs on the host: one functional step of the cache beside calls that do nothing.

    python -m benchmarks.dispatch

The whole state is an argument and a result of each step, so every leaf of it is handed over twice.
Timed are `step` (reserve, append and attend of each layer, advance; the state donated), `identity`
(the same state in and out, donated, nothing computed), `trivial` (two leaves, donated), and `loop`:
the same step inside one jitted loop, per token. What the leaves cost is `identity` less `trivial`;
the loop pays it once a call, whatever the number of tokens.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
from jax import lax

import tiercache as tc
from benchmarks import _report

SPEC = tc.CacheSpec(
    num_layers=2,
    num_kv_heads=2,
    head_dim=64,
    num_pages=64,
    max_rows=4,
    max_pages=16,
    snapshot_leaves=(
        tc.SnapshotLeaf("conv", (6, 3, 64), "float32"),
        tc.SnapshotLeaf("delta", (6, 2, 32, 32), "float32"),
    ),
    hot_formats="all:int8_g64",
    cold_formats="all:e2m1_g64",
    policy="window",
    num_cold_slots=32,
    num_host_pages=32,
    num_snapshots=4,
    num_host_snapshots=4,
)

RUN = 20  # calls of one kind in a row


def step(state: tc.CacheState, x: jax.Array) -> tuple[tc.CacheState, jax.Array]:
    """One token of every row: what a decode step asks of the cache."""
    counts = jnp.ones(SPEC.max_rows, jnp.int32)
    rows = jnp.arange(SPEC.max_rows, dtype=jnp.int32)
    # A row that is full starts anew, so that every step does the same work.
    lengths = jnp.where(state.table.lengths >= 600, 0, state.table.lengths)
    state = state._replace(table=state.table._replace(lengths=lengths))
    state, _ = tc.reserve(state, counts, max_tokens=1, spec=SPEC)
    view = tc.view(state, rows, counts, num_tokens=1, spec=SPEC)
    for layer in range(SPEC.num_layers):
        state, _ = tc.append(state, view, layer, x, x + 1, spec=SPEC)
        x = 0.5 * x + tc.attend(state, view, layer, x, spec=SPEC)
    state, _ = tc.advance(state, counts, spec=SPEC)
    return state, x


def loop(state: tc.CacheState, x: jax.Array, number: jax.Array):
    """`number` steps in one call."""
    return lax.fori_loop(0, number, lambda _, carry: step(*carry), (state, x))


class Chain:
    """Calls of one donated function, each on what the one before returned."""

    def __init__(self, function, *carry):
        self.function = jax.jit(function, donate_argnums=tuple(range(len(carry))))
        self.carry = carry

    def host_us(self) -> float:
        """Microseconds until the call returns: what the host is busy for. Then it is waited for."""
        start = time.perf_counter_ns()
        self.carry = self.function(*self.carry)
        elapsed = time.perf_counter_ns() - start
        jax.block_until_ready(self.carry)
        return elapsed / 1e3

    def whole_us(self) -> float:
        """Microseconds until the result is there."""
        start = time.perf_counter_ns()
        self.carry = jax.block_until_ready(self.function(*self.carry))
        return (time.perf_counter_ns() - start) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--steps", type=int, default=256, help="tokens in one call of the loop")
    _report.add_out(parser)
    args = parser.parse_args()
    x = jnp.ones((SPEC.max_rows, 1, SPEC.num_kv_heads, SPEC.head_dim))
    chains = {
        "trivial": Chain(lambda x, y: (x, y), x + 0, x + 1),
        "identity": Chain(lambda state, x: (state, x), tc.init_state(SPEC), x + 0),
        "step": Chain(step, tc.init_state(SPEC), x + 0),
    }
    for chain in chains.values():  # compile
        chain.host_us()
    # In turn, so that a busy moment of the machine falls on all alike; in runs, so that a call
    # finds its own code and buffers in the caches.
    host, whole = ({name: [] for name in chains} for _ in range(2))
    for _ in range(args.repeats // RUN):
        for name, chain in chains.items():
            for times, call in ((host, chain.host_us), (whole, chain.whole_us)):
                call()
                times[name] += [call() for _ in range(RUN)]
    _report.progress("calls done")
    number = jnp.int32(args.steps)
    looped = Chain(functools.partial(_with_number, number), tc.init_state(SPEC), x + 0)
    looped.whole_us()
    tokens = [looped.whole_us() / args.steps for _ in range(max(args.repeats // 20, 10))]
    report(args, host, whole, tokens)


def _with_number(number: jax.Array, state: tc.CacheState, x: jax.Array):
    return loop(state, x, number)


def report(args, host: dict, whole: dict, tokens: list[float]) -> None:
    """Prints the table and the JSON line."""
    median, leaves = _report.median, len(jax.tree.leaves(tc.init_state(SPEC)))
    rows = [
        (name, 2 if name == "trivial" else leaves + 1, f"{median(host[name]):.1f}",
         f"{median(whole[name]):.1f}")
        for name in host
    ]  # fmt: skip
    rows.append(("loop, a token", leaves + 1, "", f"{median(tokens):.1f}"))
    print(_report.table(("call", "leaves", "host us", "until done, us"), rows))
    per_leaf = (median(host["identity"]) - median(host["trivial"])) / (leaves - 1)
    _report.emit(
        "benchmarks.dispatch",
        {
            "benchmark": "dispatch",
            "leaves": leaves,
            "trivial_us": round(median(host["trivial"]), 2),
            "identity_us": round(median(host["identity"]), 2),
            "step_us": round(median(whole["step"]), 2),
            "step_host_us": round(median(host["step"]), 2),
            "leaf_us": round(per_leaf, 3),
            "loop_us_per_token": round(median(tokens), 2),
            "steps": args.steps,
            "repeats": args.repeats,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
