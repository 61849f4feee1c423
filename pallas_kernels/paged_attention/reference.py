"""`paged_attention` in plain jnp: a loop over blocks of pages with a running softmax."""

import jax.numpy as jnp
from jax import lax

from pallas_kernels.banks import is_host, num_slots, read_record, slot_or_trash
from pallas_kernels.codecs import Encoded
from pallas_kernels.paged_attention.types import ColdPlane, HotPlane, gather_hot

HOLE = -1
NOWHERE = 2**30  # past every pool


def paged_attention(
    q, k: HotPlane, v: HotPlane, entries, positions, counts, *, cold_k, cold_v, scale, block_pages
):
    """See `api.paged_attention`."""
    num_rows, num_tokens, num_q, dim = q.shape
    _, _, num_kv, page_size, _ = k.pool.codes.shape
    pages = entries.shape[1]
    blocks = -(-pages // block_pages)
    entries = jnp.pad(entries, ((0, 0), (0, blocks * block_pages - pages)), constant_values=HOLE)
    # [row, kv_head, group * token, dim]: one matrix product per K/V head.
    queries = q.astype(jnp.float32).reshape(num_rows, num_tokens, num_kv, -1, dim)
    queries = jnp.moveaxis(queries, 1, 3).reshape(num_rows, num_kv, -1, dim)
    token = jnp.arange(num_tokens)
    q_position = jnp.where(token < counts[:, None], positions[:, None] + token, -1)
    last = jnp.max(positions + counts)  # tokens of the longest row
    width = block_pages * page_size

    def body(block, carry):
        top, mass, total = carry
        part = lax.dynamic_slice_in_dim(entries, block * block_pages, block_pages, axis=1)
        keys, values = read_block(k, cold_k, part), read_block(v, cold_v, part)
        scores = scale * _dot("rhqd,rhtd->rhqt", queries, keys)
        k_position = block * width + jnp.arange(width)
        held = jnp.repeat(part != HOLE, page_size, axis=1)
        held &= (cold_k is not None) | jnp.repeat(part >= 0, page_size, axis=1)
        seen = held[:, None, :] & (k_position <= q_position[:, :, None])
        seen = jnp.tile(seen[:, None], (1, 1, queries.shape[2] // num_tokens, 1))
        scores = jnp.where(seen, scores, -jnp.inf)
        new_top = jnp.maximum(top, jnp.max(scores, axis=-1))
        finite_top = jnp.where(jnp.isfinite(new_top), new_top, 0.0)
        weights = jnp.exp(scores - finite_top[..., None])
        shrink = jnp.exp(top - finite_top)
        # A page may hold anything where it holds no token yet: zero times NaN would be NaN.
        seen_by_any = jnp.any(seen, axis=(1, 2))[:, None, :, None]
        values = jnp.where(seen_by_any, values, 0.0)
        total = total * shrink[..., None] + _dot("rhqt,rhtd->rhqd", weights, values)
        return new_top, mass * shrink + jnp.sum(weights, axis=-1), total

    start = (
        jnp.full(queries.shape[:3], -jnp.inf),
        jnp.zeros(queries.shape[:3]),
        jnp.zeros(queries.shape),
    )
    needed = jnp.minimum(-(-last // width), blocks)
    _, mass, total = lax.fori_loop(0, needed, body, start)
    out = total / jnp.where(mass > 0, mass, 1.0)[..., None]
    out = out.reshape(num_rows, num_kv, -1, num_tokens, dim)
    return jnp.moveaxis(out, 3, 1).reshape(q.shape).astype(q.dtype)


def _dot(spec: str, x, y):
    return jnp.einsum(spec, x, y, precision=lax.Precision.HIGHEST)


def read_block(hot: HotPlane, cold: ColdPlane | None, entries):
    """K or V of some entries, decoded: [row, page] to float32 [row, head, page * token, dim]."""
    num_rows, num_pages = entries.shape
    decoded = hot.codec.decode(gather_hot(hot, jnp.where(entries >= 0, entries, NOWHERE)))
    if cold is not None:
        is_cold = entries < HOLE
        slots = jnp.where(is_cold, -2 - entries, NOWHERE)
        restored = cold.codec.decode(gather_cold(cold, slots, decoded.shape[2:]))
        decoded = jnp.where(is_cold[:, :, None, None, None], restored, decoded)
    _, _, heads, tokens, dim = decoded.shape
    decoded = jnp.moveaxis(decoded, 2, 1)
    return decoded.reshape(num_rows, heads, num_pages * tokens, dim)


def gather_cold(cold: ColdPlane, slots, plane_shape: tuple[int, ...]) -> Encoded:
    """The plane of some slots, [row, page, head, token, width]; trash past the bank."""
    codec, (heads, tokens, dim) = cold.codec, plane_shape
    parts = [(cold.codes_offset, codec.code_width(dim), codec.code_dtype)]
    if codec.scale_dtype is not None:
        parts.append((cold.scales_offset, codec.scale_width(dim), codec.scale_dtype))
    leaves = []
    for offset, width, dtype in parts:
        dtype = jnp.dtype(dtype)
        size = heads * tokens * width * dtype.itemsize
        data = _read_slots(cold.bank, slots.reshape(-1), offset, size)
        data = data.reshape(*slots.shape, heads, tokens, width, dtype.itemsize)
        leaves.append(
            lax.bitcast_convert_type(data[..., 0] if dtype.itemsize == 1 else data, dtype)
        )
    return Encoded(leaves[0], leaves[1] if len(leaves) > 1 else None)


def _read_slots(bank, slots, offset: int, size: int):
    """[n, size] bytes at `offset` of `n` slots, on the device, from either memory; zeros from a
    host bank where a slot does not exist, so that nothing crosses the bus for it."""
    slots = slot_or_trash(bank, slots)
    if not is_host(bank):
        starts = jnp.stack([slots, jnp.full_like(slots, offset)], axis=-1)
        dimensions = lax.GatherDimensionNumbers(
            offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0, 1)
        )
        return lax.gather(bank, starts, dimensions, slice_sizes=(1, size), mode="clip")
    exists = slots < num_slots(bank)
    (order,) = jnp.nonzero(exists, size=slots.shape[0], fill_value=0)

    def body(i, out):
        row = read_record(bank, slots[order[i]], offset=offset, size=size)
        return lax.dynamic_update_index_in_dim(out, row, order[i], 0)

    empty = jnp.zeros((slots.shape[0], size), jnp.uint8)
    return lax.fori_loop(0, jnp.sum(exists), body, empty)
