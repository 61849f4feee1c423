"""The op in plain jnp: one page a turn."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32, UInt8

from pallas_kernels.banks import read_record, write_record
from pallas_kernels.page_copy.pairs import Pairs
from pallas_kernels.page_layout import (
    PageLayout,
    Payload,
    page_to_record,
    read_page,
    record_to_page,
    transcode_page,
    write_page,
)


def pack(
    pool: Payload, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, source: PageLayout,
    target: PageLayout,
) -> tuple[UInt8[Array, "slots bytes"], Int32[Array, "n"]]:  # fmt: skip
    def body(i, carry):
        bank, flags = carry
        page, ok = transcode_page(read_page(pool, pairs.sources[i]), source, target)
        bank = write_record(bank, pairs.targets[i], page_to_record(page))
        return bank, flags.at[pairs.places[i]].set(ok.astype(jnp.int32))

    return lax.fori_loop(0, pairs.number, body, (bank, pairs.flags))


def restore(
    pool: Payload, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, source: PageLayout,
    target: PageLayout,
) -> Payload:  # fmt: skip
    def body(i, pool):
        page = record_to_page(target, read_record(bank, pairs.sources[i]))
        page, _ = transcode_page(page, target, source)
        return write_page(pool, pairs.targets[i], page)

    return lax.fori_loop(0, pairs.number, body, pool)
