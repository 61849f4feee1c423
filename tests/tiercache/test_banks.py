"""Banks in both memories: reads, writes, ids that do not exist, batches, donation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import banks

SLOTS, BYTES = 5, 48
NOWHERE = (-1, SLOTS, SLOTS + 1, 2**30, -(2**31), 2**31 - 1)


def filled(host: bool, seed: int = 0):
    """A bank of random bytes, and the same in NumPy."""
    bank = banks.make_bank(SLOTS, BYTES, host=host)
    data = np.random.default_rng(seed).integers(0, 256, bank.shape, np.uint8)
    return jax.device_put(data, bank.sharding), data


def record(seed: int):
    return jnp.asarray(np.random.default_rng([1, seed]).integers(0, 256, BYTES, np.uint8))


write = jax.jit(banks.write_record)
read = jax.jit(banks.read_record, static_argnames=("offset", "size"))


@pytest.mark.parametrize("host", [False, True])
def test_a_bank_is_one_slot_longer_and_in_its_memory(host):
    bank = banks.make_bank(SLOTS, BYTES, host=host)
    assert bank.shape == (SLOTS + 1, BYTES) and bank.dtype == jnp.uint8
    assert banks.num_slots(bank) == SLOTS
    assert banks.is_host(bank) is host
    assert bank.sharding.memory_kind == ("pinned_host" if host else "device")


@pytest.mark.parametrize("host", [False, True])
def test_a_write_changes_one_record(host):
    bank, data = filled(host)
    for slot in range(SLOTS):
        after = write(bank, jnp.int32(slot), record(slot))
        assert banks.is_host(after) is host
        wanted = data.copy()
        wanted[slot] = record(slot)
        np.testing.assert_array_equal(after, wanted)


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("slot", NOWHERE)
def test_a_write_to_no_slot_goes_to_the_trash(host, slot):
    bank, data = filled(host)
    after = np.asarray(write(bank, jnp.int32(slot), record(7)))
    np.testing.assert_array_equal(after[:SLOTS], data[:SLOTS])
    np.testing.assert_array_equal(after[SLOTS], record(7))
    np.testing.assert_array_equal(read(bank, jnp.int32(slot)), data[SLOTS])


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize(("offset", "size"), [(0, None), (16, None), (16, 8), (0, 1), (47, 1)])
def test_a_read_takes_part_of_a_record_to_the_device(host, offset, size):
    bank, data = filled(host)
    end = BYTES if size is None else offset + size
    for slot in (0, 3, SLOTS - 1):
        part = read(bank, jnp.int32(slot), offset=offset, size=size)
        assert not banks.is_host(part)
        np.testing.assert_array_equal(part, data[slot, offset:end])


@pytest.mark.parametrize("host", [False, True])
def test_reads_and_writes_batch_over_banks_slots_and_records(host):
    pairs = [filled(host, seed) for seed in range(3)]
    many = jax.device_put(np.stack([data for _, data in pairs]), pairs[0][0].sharding)
    slots = jnp.array([4, 0, -1])
    records = jnp.stack([record(i) for i in range(3)])
    for in_axes in ((0, 0, 0), (0, None, 0), (0, 0, None), (None, 0, 0)):
        arguments = [
            x if axis == 0 else x[0]
            for x, axis in zip((many, slots, records), (0, *in_axes[1:]), strict=True)
        ]
        if in_axes[0] is None:
            arguments[0] = pairs[0][0]
        after = jax.jit(jax.vmap(banks.write_record, in_axes))(*arguments)
        got = jax.jit(jax.vmap(banks.read_record, in_axes[:2]))(*arguments[:2])
        for i in range(3):
            bank, slot, new = (
                x if axis is None else x[i]
                for x, axis in zip((np.asarray(arguments[0]), *arguments[1:]), in_axes, strict=True)
            )
            wanted = np.array(bank)
            wanted[slot if 0 <= slot < SLOTS else SLOTS] = new
            np.testing.assert_array_equal(after[i], wanted)
            np.testing.assert_array_equal(got[i], bank[slot if 0 <= slot < SLOTS else SLOTS])


@pytest.mark.parametrize("host", [False, True])
def test_a_batch_of_parts_of_one_bank_reads_what_one_by_one_reads(host):
    bank, data = filled(host)
    some = functools.partial(banks.read_record, offset=5, size=9)
    got = jax.jit(jax.vmap(some, (None, 0)))(bank, jnp.array([2, 2, 0, 9]))
    np.testing.assert_array_equal(got, data[[2, 2, 0, SLOTS], 5:14])


@pytest.mark.parametrize("host", [False, True])
def test_a_donated_bank_stays_where_it_was(host):
    bank, data = filled(host)
    bank = jax.jit(lambda x: x + 0 if not host else x, donate_argnums=0)(bank)  # own the buffer
    place = bank.unsafe_buffer_pointer()
    after = jax.jit(banks.write_record, donate_argnums=0)(bank, jnp.int32(1), record(1))
    assert after.unsafe_buffer_pointer() == place
    data[1] = record(1)
    np.testing.assert_array_equal(after, data)


@pytest.mark.parametrize("host", [False, True])
def test_an_empty_bank_has_the_trash_only(host):
    bank = banks.make_bank(0, BYTES, host=host)
    after = write(bank, jnp.int32(0), record(3))
    np.testing.assert_array_equal(after[0], record(3))


def test_a_host_bank_that_does_not_fit_names_the_knob_and_the_numbers():
    with pytest.raises(MemoryError, match=r"1048577 records of 1073741824 bytes, .*_LIMIT_GB"):
        banks.make_bank(2**20, 2**30, host=True)
