"""Where snapshots are taken: pure functions from prompt positions to page boundaries."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from tiercache.prefix import Plan


@dataclasses.dataclass(frozen=True)
class SnapshotPlacement:
    """At which depths of a sequence its recurrent state is kept. Hashable: a static argument.

    Attributes:
      every: tokens between snapshots, a multiple of the page size; 0 for none of these.
      last_page: at the last page boundary before a prompt's last token.
      branches: where a prompt leaves a known prefix, so that a third one can resume there.
    """

    every: int = 0
    last_page: bool = True
    branches: bool = True

    def check(self, page_size: int):
        """Raises `ValueError` if `every` is not a whole number of pages."""
        if self.every < 0 or self.every % page_size:
            raise ValueError(f"every={self.every} is not a multiple of page_size={page_size}.")


class Boundaries(NamedTuple):
    """Depths to take a snapshot at.

    Attributes:
      tokens: depths in tokens, ascending; -1 after the last.
    """

    tokens: Int32[Array, "most"]


def snapshot_boundaries(
    plan: Plan, length: Int32[Array, ""], placement: SnapshotPlacement, *, page_size: int, most: int
) -> Boundaries:
    """The depths past a plan's resume depth at which a prompt's prefill should save snapshots.

    Args:
      plan: how far the prompt is known.
      length: tokens of the prompt.
      placement: the policy; static.
      page_size: tokens per page; static.
      most: depths at most; static. If there are more, the deepest are taken.

    Returns:
      Multiples of the page size, above the resume depth and below `length`.
    """
    placement.check(page_size)
    (max_pages,) = plan.node_ids.shape
    depth = (1 + jnp.arange(max_pages, dtype=jnp.int32)) * page_size
    wanted = jnp.zeros(max_pages, bool)
    if placement.every:
        wanted |= depth % placement.every == 0
    if placement.last_page:
        wanted |= depth == (length - 1) // page_size * page_size
    if placement.branches:
        wanted |= _branch(plan, depth, page_size)
    wanted &= (depth > plan.num_pages * page_size) & (depth < length)
    surplus = jnp.sum(wanted) - most
    wanted &= jnp.cumsum(wanted) > surplus
    (places,) = jnp.nonzero(wanted, size=most, fill_value=max_pages)
    return Boundaries(jnp.where(places < max_pages, (places + 1) * page_size, -1).astype(jnp.int32))


def _branch(plan: Plan, depth, page_size: int) -> Bool[Array, "page"]:
    """The depth at which the prompt leaves what is known, where that is a page boundary."""
    return depth == plan.known_pages * page_size


def decode_boundaries(
    lengths: Int32[Array, "row"],
    prompt: Int32[Array, "row"],
    placement: SnapshotPlacement,
    *,
    page_size: int,
) -> tuple[Bool[Array, "row"], Int32[Array, "row"]]:
    """Rows of a decode loop that have just reached a depth to save, and what that replaces.

    While a row decodes, nobody knows which page boundary will be its last. With `last_page` each
    one is saved, in the place of the one before if that was saved while decoding, too.

    Args:
      lengths: tokens of each row after the step.
      prompt: tokens of each row's prompt.
      placement: the policy; static.
      page_size: tokens per page; static.

    Returns:
      (due, replaces): for `save_snapshot`; `replaces` is 0 where an older snapshot stays.
    """
    due = (lengths > 0) & (lengths % page_size == 0)
    before = lengths - page_size
    kept = before <= prompt
    if placement.every:
        kept |= before % placement.every == 0
    if not placement.last_page:
        due &= lengths % placement.every == 0 if placement.every else jnp.zeros_like(due)
        kept = jnp.ones_like(kept)
    return due, jnp.where(kept, 0, before)
