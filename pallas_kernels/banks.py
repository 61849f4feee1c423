"""Reads and writes of whole records in banks that may live in pinned host memory.

A bank is `uint8[slots + 1, bytes]`; its last row is the trash slot, where writes of nothing go. The
space that a bank lives in is part of its type, so these two functions serve banks in either space,
and a bank never crosses the bus as a whole. Writes are `dynamic_update_slice`, which updates a
donated bank in place in both spaces; a vector index on a host bank would not.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32, UInt8

PINNED_LIMIT: Final = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"


def is_host(x: Array) -> bool:
    """Whether an array or tracer lives in host memory."""
    return jax.typeof(x).memory_space == jax.memory.Space.Host


def to_numpy(tree: Any) -> Any:
    """A pytree's arrays as NumPy copies, also of those in host memory.

    `jax.device_get` of pinned memory gives that memory itself, and an array that NumPy looks at
    cannot be donated any more: on a GPU the next call raises, on a CPU it copies the whole bank.
    """
    device = jax.memory.Space.Device
    return jax.device_get(
        jax.tree.map(lambda x: jax.device_put(x, device) if is_host(x) else x, tree)
    )


def default_device():
    """The device that JAX puts new arrays on."""
    configured = jax.config.jax_default_device
    return configured if isinstance(configured, jax.Device) else jax.local_devices()[0]


def make_bank(num_slots: int, num_bytes: int, *, host: bool) -> UInt8[Array, "slots bytes"]:
    """A bank of `num_slots` records and the trash slot; host banks are pinned and uninitialised.

    A host bank is never built on the device first, and costs no device memory.

    Raises:
      MemoryError: if a host bank does not fit into what may be pinned; it names the numbers and the
        variable that says how much that is.
    """
    shape = (num_slots + 1, num_bytes)
    if not host:
        return jnp.zeros(shape, jnp.uint8)
    pinned = jax.sharding.SingleDeviceSharding(default_device(), memory_kind="pinned_host")

    def empty():
        return jax.device_put(lax.empty(shape, jnp.uint8), jax.memory.Space.Host)

    try:
        return jax.block_until_ready(jax.jit(empty, out_shardings=pinned)())
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        gib = shape[0] * num_bytes / 2**30
        raise MemoryError(
            f"a pinned bank of {shape[0]} records of {num_bytes} bytes, {gib:,.1f} GiB, does not"
            f" fit. On GPUs, {PINNED_LIMIT} limits it, 64 by default: set it before JAX starts a"
            " backend."
        ) from error


def num_slots(bank: UInt8[Array, "slots bytes"]) -> int:
    """Slots that hold records; the trash slot is not one."""
    return bank.shape[0] - 1


def slot_or_trash(bank: UInt8[Array, "slots bytes"], slot_ids: Int32[Array, "..."]):
    """The ids themselves where they exist, else the id of the trash slot."""
    count = num_slots(bank)
    return jnp.where((slot_ids >= 0) & (slot_ids < count), slot_ids, count)


def write_record(
    bank: UInt8[Array, "slots bytes"], slot_id: Int32[Array, ""], record: UInt8[Array, "bytes"]
) -> UInt8[Array, "slots bytes"]:
    """Writes one device record to a slot; an id that does not exist writes to the trash slot."""
    row = record[None]
    if is_host(bank):
        row = jax.device_put(row, jax.memory.Space.Host)
    start = (slot_or_trash(bank, slot_id), jnp.int32(0))
    return lax.dynamic_update_slice(bank, row, start, allow_negative_indices=False)


def read_record(
    bank: UInt8[Array, "slots bytes"],
    slot_id: Int32[Array, ""],
    *,
    offset: int = 0,
    size: int | None = None,
) -> UInt8[Array, "size"]:
    """Reads `size` bytes of one slot to the device, from `offset`; all of them by default.

    An id that does not exist reads the trash slot: mask what comes of it.
    """
    size = bank.shape[1] - offset if size is None else size
    slot_id = slot_or_trash(bank, slot_id)
    return (
        _host_slice(bank, slot_id, offset, size)
        if is_host(bank)
        else _slice(bank, slot_id, offset, size)
    )


def _slice(bank, slot_id, offset, size):
    start = (slot_id, jnp.int32(offset))
    return lax.dynamic_slice(bank, start, (1, size), allow_negative_indices=False)[0]


def _host_slice(bank, slot_id, offset: int, size: int):
    """`_slice` of a host bank, with a batching rule that never makes a gather of host memory."""

    @jax.custom_batching.custom_vmap
    def read(bank, slot_id):
        return jax.device_put(_slice(bank, slot_id, offset, size), jax.memory.Space.Device)

    @read.def_vmap
    def read_many(axis_size, in_batched, banks, slot_ids):
        bank_batched, ids_batched = in_batched

        def one(i):
            slot_id = slot_ids[i] if ids_batched else slot_ids
            if not bank_batched:
                return read(banks, slot_id)
            start = (i, slot_id, jnp.int32(offset))
            part = lax.dynamic_slice(banks, start, (1, 1, size), allow_negative_indices=False)
            return jax.device_put(part, jax.memory.Space.Device)[0, 0]

        return jnp.stack([one(jnp.int32(i)) for i in range(axis_size)]), True

    return read(bank, slot_id)
