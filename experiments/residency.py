"""Who is resident where: counts read off the index, by owner and tier."""

from typing import NamedTuple

import jax
import numpy as np

import tiercache as tc

type Counts = dict[str, dict[str, int]]  # by tier, then owner


class Residency(NamedTuple):
    """What the index names at one moment. A page with two copies counts in both tiers.

    Attributes:
      label: the request after which this was seen.
      pages: pages by tier, then owner.
      snapshots: snapshots by tier, then owner.
    """

    label: str
    pages: Counts
    snapshots: Counts


def path_of(index: tc.prefix.PrefixIndex, tokens: tuple[int, ...]) -> list[int]:
    """The nodes of a prompt's pages, found by comparing tokens, with no use of the hash table."""
    page_size = index.tokens.shape[1]
    children = {
        (int(index.parent[node]), index.tokens[node].tobytes()): int(node)
        for node in np.flatnonzero(np.asarray(index.depth) > 0)
    }
    roots = np.flatnonzero(np.asarray(index.depth) == 0)
    path: list[int] = []
    node = int(roots[0]) if len(roots) else tc.NO_NODE
    for start in range(0, len(tokens) - page_size + 1, page_size):
        page = np.asarray(tokens[start : start + page_size], np.int32)
        node = children.get((node, page.tobytes()), tc.NO_NODE)
        if node == tc.NO_NODE:
            break
        path.append(node)
    return path


def residency(state: tc.CacheState, tokens: tuple[int, ...], label: str) -> Residency:
    """Counts copies, outside `jit`. All requests must be in one namespace.

    Args:
      state: the cache.
      tokens: the conversation; pages on its path are its own, all else is the others'.
      label: kept with the counts.
    """
    index = jax.device_get(state.index)
    mine = np.zeros(index.depth.shape, bool)
    mine[path_of(index, tokens)] = True

    def by_owner(mask) -> dict[str, int]:
        return {"conversation": int((mask & mine).sum()), "others": int((mask & ~mine).sum())}

    return Residency(
        label,
        {
            "device": by_owner(index.entry >= 0),
            "cold": by_owner(index.entry < tc.HOLE),
            "host": by_owner(index.host_id < tc.NO_HOST),
        },
        {
            "device": by_owner(index.snap_id < tc.NO_SNAP),
            "host": by_owner(index.host_snap_id < tc.NO_SNAP),
        },
    )
