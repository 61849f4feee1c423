"""Programs that copy a pool or a bank: they show that the check would see it."""

from collections.abc import Iterator
from typing import Final

import jax
import jax.numpy as jnp

from pallas_kernels import banks
from tests.compile_gpu import transitions
from tests.compile_gpu.programs import Program
from tests.compile_gpu.target import in_memory

NUM_SLOTS: Final = 4001
NUM_BYTES: Final = 33792


def programs() -> Iterator[Program]:
    """Yields a state that is not donated, and donated arrays that cannot stay where they are."""
    spec = transitions.SPECS["host"]
    step, rest = transitions.abstract_steps(spec)["reserve"]
    yield transitions.of(
        "control: host reserve, not donated", step, spec, rest, donated=(), is_control=True
    )
    slot_id = in_memory(jax.ShapeDtypeStruct((), jnp.int32), host=False)
    record = in_memory(jax.ShapeDtypeStruct((NUM_BYTES,), jnp.uint8), host=False)
    shape = jax.ShapeDtypeStruct((NUM_SLOTS + 1, NUM_BYTES), jnp.uint8)
    bank = in_memory(shape, host=True)
    yield Program(
        "control: host bank, read and written in no order", exchange, (bank, record, slot_id),
        donated=(0,), pools=(0,), is_control=True,
    )  # fmt: skip
    bank = in_memory(shape, host=False)
    yield Program("control: device bank, shifted", shift, (bank,), (0,), (0,), is_control=True)


def exchange(bank, record, slot_id):
    """Writes a slot and returns what was there, and lacks the barrier between the two."""
    old = banks.read_record(bank, slot_id)
    return banks.write_record(bank, slot_id, record), old


def shift(bank):
    """Moves every record by one slot."""
    return bank.at[1:].set(bank[:-1])
