"""Choosing the next token: greedy, temperature and nucleus, per row and under one compile."""

import math
from numbers import Real

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Float32, Int32, Key


def sample(
    logits: Float32[Array, "row vocab"],
    key: Key[Array, ""] | Key[Array, "row"],
    *,
    temperature: Float[Array, "row"] | float = 1.0,
    top_p: Float[Array, "row"] | float = 1.0,
) -> Int32[Array, "row"]:
    """Draws one token per row.

    A row's token depends on that row's logits, its knobs and its key, never on other rows or on
    how many there are. Other values of the knobs do not recompile.

    Args:
      logits: unnormalised log probabilities; -inf forbids a token.
      key: one key, from which row i takes `fold_in(key, i)`, or one key per row. Typed keys or
        raw `uint32` ones.
      temperature: divides the logits. 0 (or less, in an array) takes the largest logit, the
        lowest id among equals, and ignores `top_p`.
      top_p: nucleus: a row draws from the smallest set of most probable tokens whose mass is at
        least `top_p`; always one token at least, so 0 is greedy; 1 keeps all.

    Raises:
      ValueError: if a Python number is out of range (temperature below 0, top_p outside [0, 1],
        either not finite), or a shape fits neither one value nor one per row.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits has shape {logits.shape}, not (row, vocab).")
    num_rows = logits.shape[0]
    temperature = _per_row("temperature", temperature, num_rows, math.inf)
    top_p = _per_row("top_p", top_p, num_rows, 1.0)
    return jax.vmap(_sample_row)(logits, _row_keys(key, num_rows), temperature, top_p)


def _per_row(name: str, value: Array | float, num_rows: int, most: float) -> Array:
    if isinstance(value, Real) and not (math.isfinite(value) and 0 <= value <= most):
        raise ValueError(f"{name}={value} is not a finite number in [0, {most}].")
    array = jnp.asarray(value, jnp.float32)
    if array.shape not in ((), (num_rows,)):
        raise ValueError(f"{name} has shape {array.shape}, neither () nor ({num_rows},).")
    return jnp.broadcast_to(array, (num_rows,))


def _row_keys(key: Array, num_rows: int) -> Array:
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    if key.shape == ():
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_rows))
    if key.shape != (num_rows,):
        raise ValueError(f"key has shape {key.shape}, neither () nor ({num_rows},).")
    return key


def _sample_row(logits: Array, key: Array, temperature: Array, top_p: Array) -> Array:
    greedy = temperature <= 0
    order = jnp.argsort(logits, descending=True, stable=True)
    ranked = logits[order]
    # The largest becomes 0, so that no temperature overflows.
    shifted = (ranked - ranked[0]) / jnp.where(greedy, 1, temperature)
    shares = jax.nn.softmax(shifted)
    before = jnp.cumsum(shares) - shares  # mass of all better tokens
    kept = (before < top_p) | (top_p >= 1)  # at 1, rounding must not drop the tail
    kept = kept.at[0].set(True)
    noise = jax.random.gumbel(key, logits.shape, jnp.float32)
    rank = jnp.argmax(jnp.where(kept, shifted + noise, -jnp.inf))
    return order[jnp.where(greedy, 0, rank)].astype(jnp.int32)
