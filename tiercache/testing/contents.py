"""What tests write into a cache: vectors of which no two in use are alike."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from tiercache.spec import CacheSpec

NUM_VECTORS = 1021  # prime: no step of any size comes back to a vector before all have been
NUM_QUERIES = 61
GROUP = 2  # query heads per head of K and V
NOT_FINITE = (np.inf, -np.inf, np.nan)
SMALLEST = float(np.finfo(np.float32).tiny)


class Contents(NamedTuple):
    """A table of K and V vectors, of recurrent states and of queries, to be named by number.

    Attributes:
      k, v: [number, layer, head, dim]; the numbers from `NUM_VECTORS` on hold one value that is not
        finite, each of `NOT_FINITE` in another layer or channel.
      live: per recurrent leaf, [number, ...].
      q: [query, layer, q_head, dim]. Most are small: beside the largest keys, they tell tokens
        apart which larger ones do not.
    """

    k: np.ndarray
    v: np.ndarray
    live: tuple[np.ndarray, ...]
    q: np.ndarray

    def numbers(self, key: int, num_rows: int, width: int, bad: tuple[int, int] | None = None):
        """Which vector each token [row, token] of a step takes.

        Args:
          key: of the step; other ones for the next steps give other vectors.
          num_rows, width: of the step.
          bad: (row, which of `NOT_FINITE`) whose first token is not finite.
        """
        numbers = (key * num_rows * width + np.arange(num_rows * width)) % NUM_VECTORS
        numbers = numbers.reshape(num_rows, width)
        if bad is not None:
            numbers[bad[0], 0] = NUM_VECTORS + bad[1]
        return numbers


@functools.cache
def contents_of(spec: CacheSpec, seed: int = 0) -> Contents:
    """A table with K unlike V, layers unlike one another, and the values that break codecs.

    Of eight vectors, one has a spike, one is zero but for one channel, one is scaled to where
    codecs have their limits (448, 65504, denormals), and one has values beside a spike that round
    to zero, and to -0 unless a codec takes care.
    """
    rng = np.random.default_rng(seed)
    shape = (2, NUM_VECTORS + len(NOT_FINITE), spec.num_layers, spec.num_kv_heads, spec.head_dim)
    both = rng.standard_normal(shape, np.float32) * 2
    channel = rng.integers(spec.head_dim, size=shape[1])
    for number in range(NUM_VECTORS):
        kind, place = number % 8, channel[number]
        if kind == 1:
            both[:, number, ..., place] *= 300
        elif kind == 3:
            both[:, number, ..., :place] = 0
            both[:, number, ..., place + 1 :] = 0
        elif kind == 5:
            both[:, number] *= rng.choice([448 / 6, 448, 6e4, 1e-38, SMALLEST])
        elif kind == 7:
            both[:, number, ..., place] = 30
            both[:, number, ..., :place] *= -1e-3
    for i, value in enumerate(NOT_FINITE):
        layer = i // 2 % spec.num_layers
        both[i % 2, NUM_VECTORS + i, layer, i % spec.num_kv_heads, channel[i]] = value
    k, v = both
    live = tuple(
        rng.standard_normal((NUM_VECTORS, *leaf.shape)).astype(jnp.dtype(leaf.dtype))
        for leaf in spec.snapshot_leaves
    )
    heads = spec.num_kv_heads * GROUP
    q = rng.standard_normal((NUM_QUERIES, spec.num_layers, heads, spec.head_dim), np.float32)
    q *= rng.choice(np.exp2([0, -4, -8, -12], dtype=np.float32), NUM_QUERIES)[:, None, None, None]
    return Contents(k, v, live, q)
