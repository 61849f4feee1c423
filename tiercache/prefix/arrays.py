"""Gathers and scatters in which an id that does not exist, negative ones too, is left out."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, Shaped

from tiercache.ids import NO_NODE


def gather(
    values: Shaped[Array, "node *rest"], ids: Int32[Array, "*ids"], fill: int
) -> Shaped[Array, "*shape"]:
    """`values[ids]`, and `fill` where an id is out of range."""
    return values.at[ids].get(mode="fill", fill_value=fill, wrap_negative_indices=False)


def put(
    values: Shaped[Array, "node *rest"],
    ids: Int32[Array, "*ids"],
    new: Shaped[Array, "*shape"] | int,
) -> Shaped[Array, "node *rest"]:
    """Sets `values[ids]`; ids out of range are dropped."""
    return values.at[ids].set(new, mode="drop", wrap_negative_indices=False)


def add(
    values: Shaped[Array, "node *rest"],
    ids: Int32[Array, "*ids"],
    more: Shaped[Array, "*shape"] | int,
) -> Shaped[Array, "node *rest"]:
    """Adds to `values[ids]`, repeated ids repeatedly; ids out of range are dropped."""
    return values.at[ids].add(more, mode="drop", wrap_negative_indices=False)


def keep_ids(ids: Int32[Array, "*shape"], keep: Bool[Array, "*keep"]) -> Int32[Array, "*shape"]:
    """The ids where `keep` holds, NO_NODE elsewhere."""
    return jnp.where(keep, ids, NO_NODE)


def first_false(flags: Bool[Array, "n"]) -> Int32[Array, ""]:
    """How many flags hold before the first that does not."""
    (size,) = flags.shape
    return jnp.min(jnp.where(flags, size, jnp.arange(size, dtype=jnp.int32)))
