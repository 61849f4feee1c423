"""Keys of prefixes, in NumPy: what the index must hold of each node beside its tokens."""

import functools

import numpy as np

from tiercache.testing.reference.index import Node

GOLDEN = np.uint64(0x9E3779B9)
SEEDS = np.array([0x243F6A88, 0x85A308D3], np.uint64)
WORD = np.uint64(2**32 - 1)


def key_of(node: Node) -> np.ndarray:
    """The two words of a node's key: its parent's, and a step for its page at its depth."""
    words = _hashes(node.tokens)
    if node.parent is None:
        return _mix(words) ^ WORD
    return (key_of(node.parent) + _mix((words + np.uint64(node.depth) * GOLDEN) & WORD)) & WORD


@functools.cache
def _hashes(tokens: tuple[int, ...]) -> np.ndarray:
    """Two sums of products with odd numbers, modulo 2**32."""
    place = np.arange(1, len(tokens) + 1, dtype=np.uint64)[:, None]
    factors = _mix((place * GOLDEN + SEEDS) & WORD) | np.uint64(1)
    words = np.array(tokens, np.int64).astype(np.uint64) & WORD
    return (words[:, None] * factors & WORD).sum(axis=0) & WORD


def _mix(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> np.uint64(16))) * np.uint64(0x7FEB352D) & WORD
    words = (words ^ (words >> np.uint64(15))) * np.uint64(0x846CA68B) & WORD
    return words ^ (words >> np.uint64(16))
