"""The op in plain jnp: one item a turn, by slices that leave everything else where it is."""

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from pallas_kernels.banks import read_record, write_record
from pallas_kernels.page_copy.pairs import Pairs
from pallas_kernels.page_layout import from_bytes, to_bytes

Leaves = tuple[Shaped[Array, "..."], ...]


def _item(leaf, item_id, axis: int):
    return lax.dynamic_index_in_dim(leaf, item_id, axis, keepdims=False)


def _with_item(leaf, new, item_id, axis: int):
    return lax.dynamic_update_index_in_dim(leaf, new, item_id, axis)


def store_records(leaves: Leaves, bank, pairs: Pairs, *, axis: int):
    def body(i, bank):
        item = [to_bytes(_item(leaf, pairs.sources[i], axis)) for leaf in leaves]
        return write_record(bank, pairs.targets[i], jnp.concatenate(item))

    return lax.fori_loop(0, pairs.number, body, bank)


def load_records(leaves: Leaves, bank, pairs: Pairs, *, axis: int) -> Leaves:
    def body(i, leaves):
        record, offset, new = read_record(bank, pairs.sources[i]), 0, []
        for leaf in leaves:
            shape = (*leaf.shape[:axis], *leaf.shape[axis + 1 :])
            size = math.prod(shape) * leaf.dtype.itemsize
            part = lax.slice_in_dim(record, offset, offset + size)
            new.append(
                _with_item(leaf, from_bytes(part, shape, leaf.dtype), pairs.targets[i], axis)
            )
            offset += size
        return tuple(new)

    return lax.fori_loop(0, pairs.number, body, leaves)


def copy_items(
    sources: Leaves, targets: Leaves, pairs: Pairs, *, source_axis: int, target_axis: int
) -> Leaves:
    def body(i, targets):
        return tuple(
            _with_item(
                new, _item(old, pairs.sources[i], source_axis), pairs.targets[i], target_axis
            )
            for old, new in zip(sources, targets, strict=True)
        )

    return lax.fori_loop(0, pairs.number, body, targets)


def copy_within(leaves: Leaves, pairs: Pairs) -> Leaves:
    def body(i, leaves):
        return tuple(
            _with_item(leaf, _item(leaf, pairs.sources[i], 0), pairs.targets[i], 0)
            for leaf in leaves
        )

    return lax.fori_loop(0, pairs.number, body, leaves)
