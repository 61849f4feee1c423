"""The op in plain jnp: encode, then scatter."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32, UInt8

from pallas_kernels.banks import is_host, num_slots
from pallas_kernels.codecs import Codec, Encoded
from pallas_kernels.page_copy.pairs import NOWHERE, existing
from pallas_kernels.page_layout import to_bytes


def append_quantized(
    pool: Encoded, new: tuple[Float[Array, "n token head dim"], ...],
    page_ids: Int32[Array, "n token"], offsets: Int32[Array, "n token"], *,
    planes: tuple[int, ...], codec: Codec,
) -> Encoded:  # fmt: skip
    pages, _, num_heads, page_size, _ = pool.codes.shape
    page_ids, offsets = _or_nowhere(page_ids, pages), _or_nowhere(offsets, page_size)
    heads = jnp.arange(num_heads)[:, None]
    for x, plane in zip(new, planes, strict=True):
        encoded = codec.encode(jnp.moveaxis(x, 2, 1))
        where = (page_ids[:, None, :], plane, heads, offsets[:, None, :])
        codes = pool.codes.at[where].set(encoded.codes, mode="drop")
        scales = pool.scales
        if scales is not None:
            scales = scales.at[where].set(encoded.scales, mode="drop")
        pool = Encoded(codes, scales)
    return pool


def _or_nowhere(ids: Int32[Array, "n token"], number: int) -> Int32[Array, "n token"]:
    return jnp.where((ids >= 0) & (ids < number), ids, NOWHERE)


def mirror_tokens(
    pool: Encoded, bank: UInt8[Array, "slots bytes"], page_ids: Int32[Array, "n token"],
    offsets: Int32[Array, "n token"], slot_ids: Int32[Array, "n token"], *,
    planes: tuple[int, ...], codes_offset: int, scales_offset: int,
) -> UInt8[Array, "slots bytes"]:  # fmt: skip
    pages, _, num_heads, page_size, _ = pool.codes.shape
    flat = offsets.reshape(-1)
    page_ids = jnp.where((flat >= 0) & (flat < page_size), page_ids.reshape(-1), NOWHERE)
    pairs = existing(page_ids, pages, slot_ids.reshape(-1), num_slots(bank))

    def body(i, bank):
        page, slot, offset = pairs.sources[i], pairs.targets[i], flat[pairs.places[i]]
        for leaf, start in ((pool.codes, codes_offset), (pool.scales, scales_offset)):
            if leaf is None:
                continue
            row_bytes = leaf.shape[-1] * leaf.dtype.itemsize
            for plane in planes:
                for head in range(num_heads):
                    row = ((plane * num_heads) + head) * page_size + offset
                    data = to_bytes(leaf[page, plane, head, offset])
                    bank = _write(bank, slot, start + row * row_bytes, data)
        return bank

    return lax.fori_loop(0, pairs.number, body, bank)


def _write(bank, slot_id, offset, data):
    data = data[None]
    if is_host(bank):
        data = jax.device_put(data, jax.memory.Space.Host)
    return lax.dynamic_update_slice(bank, data, (slot_id, offset), allow_negative_indices=False)
