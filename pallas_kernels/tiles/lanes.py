"""Lanes: how the channels of a tile lie in its words, and what groups of them share."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from pallas_kernels import instructions
from pallas_kernels.codecs import bits

Lanes = tuple[Array, Array, Array, Array]  # each [row, dim/8]


class Tile(NamedTuple):
    """Some rows of a plane; lane i of a half holds its channels 4j + i.

    Attributes:
      low: channels [0, dim/2).
      high: channels [dim/2, dim).
    """

    low: Lanes
    high: Lanes


class Grouped(NamedTuple):
    """One value per group of channels, [row, groups of a half], of each half.

    A group wider than a half is in both.
    """

    low: Float32[Array, "row group"]
    high: Float32[Array, "row group"]


def each(function: Callable, *tiles: Tile) -> Tile:
    """Applies an elementwise function to every lane."""
    return Tile(
        *(
            tuple(function(*lanes) for lanes in zip(*halves, strict=True))
            for halves in zip(*tiles, strict=True)
        )
    )


def each_grouped(function: Callable, groups: tuple[Grouped, ...], *tiles: Tile) -> Tile:
    """Applies function(values of the group..., values of the channel...) to every channel."""

    def half(number: int) -> Lanes:
        rest = [tile[number] for tile in tiles]
        spread_out = [spread(values[number], rest[0][0].shape[1]) for values in groups]
        a, b, c, d = (function(*spread_out, *lanes) for lanes in zip(*rest, strict=True))
        return a, b, c, d

    return Tile(half(0), half(1))


def spread(value: Array, columns: int) -> Array:
    """One value per group to one per column."""
    rows, groups = value.shape
    if groups == columns:
        return value
    return jnp.broadcast_to(value[:, :, None], (rows, groups, columns // groups)).reshape(
        rows, columns
    )


def groups_per_half(group: int, dim: int) -> int:
    """Groups that a half has a value for."""
    return max(1, dim // 2 // group)


def reduce_groups(combine: Callable, reduce: Callable, tile: Tile, group: int, dim: int) -> Grouped:
    """Combines the channels of each group: `combine` of two arrays, `reduce` along an axis."""
    groups, halves = groups_per_half(group, dim), []
    for lanes in tile:
        both = combine(combine(lanes[0], lanes[1]), combine(lanes[2], lanes[3]))
        rows, columns = both.shape
        halves.append(
            reduce(both.reshape(rows, groups, columns // groups), axis=-1)
            if groups < columns
            else both
        )
    if group > dim // 2:
        halves = [combine(*halves)] * 2
    return Grouped(*halves)


def all_finite(largest: Grouped) -> Bool[Array, ""]:
    """Whether no `group_max` of magnitudes is infinite or NaN."""
    finite = [(x < jnp.inf).astype(jnp.int32) for x in largest]
    return jnp.min(jnp.minimum(*finite)) == 1


def is_finite(tile: Tile) -> Bool[Array, ""]:
    """Whether no value is infinite or NaN."""
    patterns = each(lambda x: bits.float_bits(x) & bits.MAGNITUDE_MASK, tile)
    halves = [jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d)) for a, b, c, d in patterns]
    return jnp.max(jnp.maximum(*halves)) < bits.INF_BITS


def group_max(tile: Tile, group: int, dim: int) -> Grouped:
    """The largest value of each group, or NaN if one is; of magnitudes, or of int32."""
    if tile.low[0].dtype != jnp.float32:
        return reduce_groups(jnp.maximum, jnp.max, tile, group, dim)
    return reduce_groups(instructions.maximum_or_nan, _max_or_nan, tile, group, dim)


def _max_or_nan(x: Float32[Array, "row group column"], axis: int) -> Float32[Array, "row group"]:
    # As bits, in which magnitudes have the order of their values, and a NaN is above them all.
    return bits.bits_float(jnp.max(bits.float_bits(x), axis=axis))


def split_bytes(words: Int32[Array, "row words"]) -> Lanes:
    """The four bytes of each word, in [0, 255]."""
    return words & 0xFF, (words >> 8) & 0xFF, (words >> 16) & 0xFF, (words >> 24) & 0xFF


def join_bytes(parts: Lanes) -> Int32[Array, "row words"]:
    """The inverse of `split_bytes`."""
    a, b, c, d = parts
    return a | (b << 8) | (c << 16) | (d << 24)


def join_pairs(first: Array, second: Array) -> Int32[Array, "row twice"]:
    """Two arrays of columns, alternating."""
    rows, columns = first.shape
    return lax.stack([first, second], axis=2).reshape(rows, 2 * columns)


def split_pairs(x: Array) -> tuple[Array, Array]:
    """The even and the odd columns."""
    rows, columns = x.shape
    first, second = lax.unstack(x.reshape(rows, columns // 2, 2), axis=2)
    return first, second
