"""Whether a large host bank costs device memory, over many updates in place.

    python -m benchmarks.banks --gib 16 --updates 1000

Each update writes a few records to slots that move on, with the bank donated. Device memory in use
and its peak are read before and after, and so is where the bank lies; what the last update wrote is
read back.
"""

import argparse
import os
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _arrays, _report
from pallas_kernels import page_copy
from pallas_kernels.banks import make_bank, num_slots, read_record

RECORD: int = 1_179_648  # bytes: a page of qwen3.5-27b in 4 bits
AT_ONCE: int = 8


def update(bank: jax.Array, pool: jax.Array, turn: jax.Array) -> jax.Array:
    """Writes `AT_ONCE` records of the pool to the slots of a turn."""
    items = jnp.arange(AT_ONCE, dtype=jnp.int32)
    return page_copy.store_records((pool,), bank, items, slots_of(turn, num_slots(bank)))


def slots_of(turn: jax.Array | int, slots: int) -> jax.Array:
    """The slots of a turn; over all turns, of the whole bank."""
    stride = slots // 3 // AT_ONCE * AT_ONCE + AT_ONCE
    first = (jnp.int32(turn) % 3) * stride + jnp.int32(turn) // 3 * AT_ONCE
    return (first + jnp.arange(AT_ONCE, dtype=jnp.int32)) % slots


def memory() -> dict[str, int]:
    """Bytes of device memory in use, and the peak so far; nothing where they are not counted."""
    stats = jax.devices()[0].memory_stats() or {}
    return {name: stats[name] for name in ("bytes_in_use", "peak_bytes_in_use") if name in stats}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gib", type=float, default=16)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--record", type=int, default=RECORD, help="bytes of a record")
    _report.add_out(parser)
    args = parser.parse_args()
    pool = _arrays.random(jax.ShapeDtypeStruct((AT_ONCE, args.record), jnp.uint8))
    start = time.monotonic()
    bank = make_bank(int(args.gib * 2**30) // args.record - 1, args.record, host=True)
    bank = jax.block_until_ready(bank)
    made = time.monotonic() - start
    _report.progress(f"a bank of {bank.nbytes / 2**30:.1f} GiB in {made:.1f} s")
    step = jax.jit(update, donate_argnums=0, out_shardings=_arrays.memory(host=True))
    for _ in range(2):  # the bank that a step returns is typed a little otherwise: two compiles
        bank = jax.block_until_ready(step(bank, pool, 0))
    before, place = memory(), bank.unsafe_buffer_pointer()
    start = time.monotonic()
    moved = 0
    for turn in range(args.updates):
        bank = step(bank, pool, turn)
        moved += bank.unsafe_buffer_pointer() != place
    jax.block_until_ready(bank)
    seconds = time.monotonic() - start
    after = memory()
    read = jax.jit(read_record)
    equal = all(
        np.array_equal(read(bank, slot), pool[item])
        for item, slot in enumerate(slots_of(args.updates - 1, num_slots(bank)))
    )
    _report.emit(
        "benchmarks.banks",
        {
            "op": "banks",
            "spec": f"{args.updates} updates of a host bank of {args.gib:g} GiB",
            "implementation": "default",
            "median_us": round(seconds / args.updates * 1e6, 2),
            "floor_us": None,
            "floor_ratio": None,
            "bytes": 2 * AT_ONCE * args.record,
            "bank_bytes": bank.nbytes,
            "make_s": round(made, 2),
            "before": before,
            "after": after,
            "device_bytes_grown": {name: after[name] - before[name] for name in before},
            "times_moved": moved,
            "equal": equal,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
