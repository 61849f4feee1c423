"""Pieces: how one or two threads hold a whole group, and what is done within it.

A *piece* is [row, group, n] int32: words next to each other that are loaded at once, four to a
thread. The words of one group are several pieces. So with four words a thread has whole groups, and
nothing about a group crosses threads or is computed twice; with eight, two threads share one, and
what they store at once are whole sectors of 32 bytes. A *part* is the words of a half of the
channels, or of all of them for 4-bit codes, whose bytes belong to both halves.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Final, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from pallas_kernels.tiles.lanes import Grouped

IN_THREAD: Final = 4  # words

Piece = Int32[Array, "row group n"]
Pieces = tuple[Piece, ...]


class Packed(NamedTuple):
    """Some rows as they are stored.

    Attributes:
      parts: of codes, 1 or 2.
      scales: bit patterns, per half.
      finite: whether every value was.
    """

    parts: tuple[Pieces, ...]
    scales: Grouped
    finite: Bool[Array, ""]


def in_threads(combine: Callable, pieces: Iterable[Piece]) -> Int32[Array, "row group thread"]:
    """Combines all words of each group that one thread holds.

    One after the other: two operations in a row are often one instruction of three operands.
    """
    return reduce(combine, (word for piece in pieces for word in _each_in_thread(piece)))


def _each_in_thread(piece: Piece) -> list[Array]:
    words = [piece]
    for _ in range(IN_THREAD.bit_length() - 1):
        words = [half for word in words for half in alternate(word)]
    return words


def alternate(words: Int32[Array, "row group n"]) -> tuple[Array, Array]:
    """The even and the odd words."""
    rows, groups, n = words.shape
    first, second = lax.unstack(words.reshape(rows, groups, n // 2, 2), axis=3)
    return first, second


def follow(first: Int32[Array, "row group n"], second: Int32[Array, "row group n"]) -> Array:
    """Two arrays of words, one after the other."""
    rows, groups, n = first.shape
    both = lax.stack([first, second], axis=3)
    return jnp.transpose(both, (0, 1, 3, 2)).reshape(rows, groups, 2 * n)


def of_words(value: Int32[Array, "row group"], like: Piece) -> Piece:
    """One value per group to one per word."""
    return jnp.broadcast_to(value[:, :, None], like.shape)


def shared(combine: Callable, halves: list[Array], group: int, dim: int) -> list[Array]:
    """What each half has of its groups: a group that is wider than a half is in both."""
    return halves if group <= dim // 2 else [combine(*halves)] * 2
