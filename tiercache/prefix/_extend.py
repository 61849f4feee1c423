"""Making the nodes of a prompt known."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, UInt32

from tiercache.ids import HOLE, NO_HOST, NO_NODE, NO_SNAP
from tiercache.prefix._touch import stamp
from tiercache.prefix.arrays import add, first_false, gather, keep_ids, put
from tiercache.prefix.index import FREE, PrefixIndex, max_pages, num_free_nodes
from tiercache.prefix.lookup import bucket_of, find_chain, fingerprint_of, root_row
from tiercache.reasons import Reason, first_reason


class ExtendInfo(NamedTuple):
    """What an extension made known.

    Attributes:
      node_ids: node of each page below the asked depth; NO_NODE after. Known nodes only, if
        refused.
      is_new: which of them are new; none, if refused.
      num_known: pages that were known before, at most the asked depth.
      shortfall: nodes that could not be made; zero when done.
      reason: `Reason` of a refusal; OK otherwise.
    """

    node_ids: Int32[Array, "page"]
    is_new: Bool[Array, "page"]
    num_known: Int32[Array, ""]
    shortfall: Int32[Array, ""]
    reason: Int32[Array, ""]


class _Growth(NamedTuple):
    """A path and the nodes it lacks; position 0 is the namespace root.

    Attributes:
      known_ids: nodes of the path that are known, NO_NODE elsewhere.
      is_new: positions that need a node.
      rows: token row of each position.
      keys: key of each position.
      ways: free way of each new position's bucket, or NO_NODE.
      num_known: known pages.
    """

    known_ids: Int32[Array, "path"]
    is_new: Bool[Array, "path"]
    rows: Int32[Array, "path token"]
    keys: UInt32[Array, "path 2"]
    ways: Int32[Array, "path"]
    num_known: Int32[Array, ""]


def extend(
    index: PrefixIndex,
    tokens: Int32[Array, "tokens"],
    length_pages: Int32[Array, ""],
    namespace: UInt32[Array, "16"],
) -> tuple[PrefixIndex, ExtendInfo]:
    """Makes the first `length_pages` pages of a prompt known, and touches their path.

    Missing nodes, and the namespace root, are made without copies: attach these next. Free node
    ids are taken lowest first.

    Args:
      index: the known prefixes.
      tokens: the prompt, padded to `max_pages` whole pages.
      length_pages: whole pages that count, in [0, max_pages].
      namespace: `Namespace.lanes()`.

    Returns:
      The index and what was made. Refuses as a whole, and changes nothing, when `length_pages` is
      out of range (OVERSIZE), free nodes are short (NODES_FULL), or a bucket is (BUCKET_FULL).

    Raises:
      ValueError: while tracing, if `tokens` is not `max_pages` whole pages.
    """
    growth = _grow(index, tokens, length_pages, namespace)
    num_new = jnp.sum(growth.is_new, dtype=jnp.int32)
    num_short = jnp.maximum(num_new - num_free_nodes(index), 0)
    num_unplaced = jnp.sum(growth.is_new & (growth.ways == NO_NODE), dtype=jnp.int32)
    reason = first_reason(
        ((length_pages < 0) | (length_pages > max_pages(index)), Reason.OVERSIZE),
        (num_short > 0, Reason.NODES_FULL),
        (num_unplaced > 0, Reason.BUCKET_FULL),
    )
    ok = reason == Reason.OK
    is_new = growth.is_new & ok
    path = jnp.where(is_new, _fresh_ids(index, is_new), growth.known_ids)
    index = _write_nodes(index, growth, path, is_new)
    index = stamp(index, keep_ids(path, ok), ok.astype(jnp.int32))
    shortfall = jnp.where(num_short > 0, num_short, num_unplaced)
    return index, ExtendInfo(
        node_ids=path[1:],
        is_new=is_new[1:],
        num_known=growth.num_known,
        shortfall=jnp.where(ok, 0, shortfall),
        reason=reason,
    )


def can_extend(
    index: PrefixIndex,
    tokens: Int32[Array, "tokens"],
    length_pages: Int32[Array, ""],
    namespace: UInt32[Array, "16"],
) -> tuple[Int32[Array, ""], Int32[Array, ""]]:
    """How much of a prompt is known, and how many of its pages `extend` would accept.

    Args: as for `extend`.

    Returns:
      (num_known, num_affordable), in pages; both at most `length_pages`.
    """
    growth = _grow(index, tokens, length_pages, namespace)
    order = jnp.cumsum(growth.is_new, dtype=jnp.int32)
    affordable = ~growth.is_new | ((order <= num_free_nodes(index)) & (growth.ways < NO_NODE))
    num_affordable = jnp.clip(first_false(affordable) - 1, 0, length_pages)
    return growth.num_known, num_affordable


def _grow(
    index: PrefixIndex,
    tokens: Int32[Array, "tokens"],
    length_pages: Int32[Array, ""],
    namespace: UInt32[Array, "16"],
) -> _Growth:
    chain = find_chain(index, tokens, namespace, length_pages)
    known_ids = jnp.concatenate([chain.root_id[None], chain.node_ids])
    position = jnp.arange(known_ids.shape[0], dtype=jnp.int32)
    wanted = (position <= length_pages) & (length_pages > 0)
    keys = jnp.concatenate([chain.root_key[None], chain.keys])
    is_new = wanted & (known_ids == NO_NODE)
    return _Growth(
        known_ids=keep_ids(known_ids, wanted),
        is_new=is_new,
        rows=jnp.concatenate([root_row(namespace, chain.pages.shape[1])[None], chain.pages]),
        keys=keys,
        ways=_free_ways(index, keys, is_new),
        num_known=chain.num_known,
    )


def _free_ways(
    index: PrefixIndex, keys: UInt32[Array, "path 2"], is_new: Bool[Array, "path"]
) -> Int32[Array, "path"]:
    """A way of its own in its bucket for each new node, shallow nodes first; NO_NODE if none."""
    buckets = keep_ids(bucket_of(index, keys), is_new)
    position = jnp.arange(buckets.shape[0], dtype=jnp.int32)
    order = jnp.argsort(buckets, stable=True)
    ordered = buckets[order]
    starts = lax.cummax(jnp.where(ordered != jnp.roll(ordered, 1), position, 0))
    rank = jnp.zeros_like(position).at[order].set(position - starts)
    free = gather(index.table[:, 1], buckets, 0) == NO_NODE
    nth = jnp.cumsum(free, axis=1, dtype=jnp.int32)
    way = jnp.argmax(free & (nth == rank[:, None] + 1), axis=1).astype(jnp.int32)
    return keep_ids(way, is_new & (rank < nth[:, -1]))


def _fresh_ids(index: PrefixIndex, is_new: Bool[Array, "path"]) -> Int32[Array, "path"]:
    """The lowest free node ids, handed out in path order."""
    num_free_up_to = jnp.cumsum(index.depth == FREE, dtype=jnp.int32)
    rank = jnp.cumsum(is_new, dtype=jnp.int32)
    node_ids = jnp.searchsorted(num_free_up_to, rank).astype(jnp.int32)
    return keep_ids(node_ids, is_new)


def _write_nodes(
    index: PrefixIndex,
    growth: _Growth,
    path: Int32[Array, "path"],
    is_new: Bool[Array, "path"],
) -> PrefixIndex:
    """Writes the new nodes of a path, their bucket ways and their parents' child counts."""
    new_ids = keep_ids(path, is_new)
    parents = jnp.concatenate([jnp.full((1,), NO_NODE, jnp.int32), path[:-1]])
    buckets = keep_ids(bucket_of(index, growth.keys), is_new)
    slots = jnp.stack([fingerprint_of(growth.keys), new_ids], axis=1)
    return index._replace(
        tokens=put(index.tokens, new_ids, growth.rows),
        parent=put(index.parent, new_ids, parents),
        key=put(index.key, new_ids, growth.keys),
        depth=put(index.depth, new_ids, jnp.arange(path.shape[0], dtype=jnp.int32)),
        children=add(put(index.children, new_ids, 0), keep_ids(parents, is_new), 1),
        pins=put(index.pins, new_ids, 0),
        entry=put(index.entry, new_ids, HOLE),
        host_id=put(index.host_id, new_ids, NO_HOST),
        snap_id=put(index.snap_id, new_ids, NO_SNAP),
        host_snap_id=put(index.host_snap_id, new_ids, NO_SNAP),
        parked=put(index.parked, new_ids, 0),
        table=index.table.at[buckets, :, growth.ways].set(slots, mode="drop"),
    )
