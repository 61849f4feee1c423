"""What the instructions mean, in jnp; that a GPU agrees is what comparing kernels there shows."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels import instructions

words = st.integers(-(2**31), 2**31 - 1)


def in_bytes(word: int) -> list[int]:
    return list((word & 0xFFFFFFFF).to_bytes(4, "little"))


def word_of(values: list[int]) -> int:
    return int.from_bytes(bytes(values), "little", signed=True)


@given(a=words, b=words, selector=words)
def test_bytes_are_picked_by_nibbles(a, b, selector):
    source, want = in_bytes(a) + in_bytes(b), []
    for i in range(4):
        nibble = (selector >> (4 * i)) & 15
        byte = source[nibble & 7]
        want.append((255 if byte >= 128 else 0) if nibble >= 8 else byte)
    assert int(instructions.pick_bytes(*map(jnp.int32, (a, b, selector)))) == word_of(want)
    assert int(instructions.pick_bytes(jnp.int32(a), jnp.int32(b), selector)) == word_of(want)


@given(values=st.lists(st.integers(-128, 127), min_size=4, max_size=4))
def test_magnitudes_of_bytes(values):
    word = jnp.int32(word_of([v & 0xFF for v in values]))
    assert int(instructions.byte_magnitudes(word)) == word_of([abs(v) for v in values])


@given(a=words, b=words)
def test_pairs_are_compared_as_unsigned_shorts(a, b):
    x, y = (np.array([w], np.int32).view(np.uint16) for w in (a, b))
    for function, want in (
        (instructions.max_pair, np.maximum),
        (instructions.min_pair, np.minimum),
    ):
        got = np.asarray(function(jnp.int32(a), jnp.int32(b))).reshape(1).view(np.uint16)
        np.testing.assert_array_equal(got, want(x, y))


def test_pairs_of_bfloat16_are_multiplied_and_added():
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(0, 8, (3, 4096)).astype(ml_dtypes.bfloat16) for _ in range(3))
    x, y, z = (jnp.asarray(v.view(np.int32)) for v in (a, b, c))
    wide = [v.astype(np.float32) for v in (a, b, c)]
    for got, want in (
        (instructions.bf16_pair_multiply(x, y), wide[0] * wide[1]),
        (instructions.bf16_pair_multiply_add(x, y, z), wide[0] * wide[1] + wide[2]),
    ):
        got = np.asarray(got).view(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(got, want.astype(ml_dtypes.bfloat16))


def test_a_sum_stays_between_0_and_1():
    a, b, c = (
        jnp.array(x, jnp.float32) for x in ([2, 2, -2, 0], [2, 0.25, 2, 0], [0, 0, 0, 0.125])
    )
    got = instructions.multiply_add_within_1(a, b, c)
    np.testing.assert_array_equal(got, [1, 0.5, 0, 0.125])
