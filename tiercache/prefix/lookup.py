"""The exact walk from a namespace root down the known pages of a prompt."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, UInt32

from tiercache.ids import NO_NODE
from tiercache.prefix import keys as keys_
from tiercache.prefix.arrays import first_false, gather, keep_ids
from tiercache.prefix.index import NUM_WAYS, PrefixIndex, max_pages
from tiercache.prefix.namespace import NUM_LANES


class Chain(NamedTuple):
    """The known pages of a prompt.

    Attributes:
      pages: the prompt by pages.
      keys: key of each page prefix.
      root_key: key of the namespace.
      root_id: node of the namespace, or NO_NODE.
      node_ids: node of each page; NO_NODE from `num_known` on.
      num_known: pages known in a row from the root, at most the limit.
    """

    pages: Int32[Array, "page token"]
    keys: UInt32[Array, "page 2"]
    root_key: UInt32[Array, "2"]
    root_id: Int32[Array, ""]
    node_ids: Int32[Array, "page"]
    num_known: Int32[Array, ""]


def bucket_of(index: PrefixIndex, keys: UInt32[Array, "*shape 2"]) -> Int32[Array, "*shape"]:
    """The bucket of each key: low bits of its mixed first word."""
    mask = jnp.uint32(index.table.shape[0] - 1)
    return (keys_.mix(keys[..., 0]) & mask).astype(jnp.int32)


def fingerprint_of(keys: UInt32[Array, "*shape 2"]) -> Int32[Array, "*shape"]:
    """What a bucket keeps of a key beside the node id: its second word."""
    return lax.bitcast_convert_type(keys[..., 1], jnp.int32)


def candidates(index: PrefixIndex, keys: UInt32[Array, "*shape 2"]) -> Int32[Array, "*shape way"]:
    """Node ids in each key's bucket whose fingerprint agrees; NO_NODE in the other ways."""
    rows = index.table.at[bucket_of(index, keys)].get(mode="promise_in_bounds")
    return keep_ids(rows[..., 1, :], rows[..., 0, :] == fingerprint_of(keys)[..., None])


def _first_candidates(index: PrefixIndex, keys: UInt32[Array, "page 2"]) -> Int32[Array, "page"]:
    """The least of each key's candidates.

    Written way by way, with barriers, for the CPU backend: it would else mix each key anew for each
    way, and fold the ways one number at a time.
    """
    buckets, fingerprints = lax.optimization_barrier((bucket_of(index, keys), fingerprint_of(keys)))
    rows = lax.optimization_barrier(index.table.at[buckets].get(mode="promise_in_bounds"))
    ways = (keep_ids(rows[:, 1, way], rows[:, 0, way] == fingerprints) for way in range(NUM_WAYS))
    return functools.reduce(jnp.minimum, ways)


def root_row(namespace: UInt32[Array, "16"], page_size: int) -> Int32[Array, "token"]:
    """The token row of a namespace root."""
    lanes = lax.bitcast_convert_type(namespace, jnp.int32)
    return jnp.pad(lanes, (0, page_size - NUM_LANES))


def _find_root(
    index: PrefixIndex, root_key: UInt32[Array, "2"], namespace: UInt32[Array, "16"]
) -> Int32[Array, ""]:
    node_ids = candidates(index, root_key)
    lanes = gather(index.tokens, node_ids, 0)[:, :NUM_LANES]
    same = jnp.all(lanes == lax.bitcast_convert_type(namespace, jnp.int32), axis=-1)
    return jnp.min(keep_ids(node_ids, same & (gather(index.depth, node_ids, -1) == 0)))


def _rows_equal(
    rows: Int32[Array, "page token"], pages: Int32[Array, "page token"]
) -> Bool[Array, "page"]:
    """Which rows are equal throughout.

    Differences are counted by a product of bytes with ones, which the CPU backend vectorizes as it
    does no reduction; in groups of 64, since a byte counts no further than 127.
    """
    group = min(pages.shape[1], 64)
    differs = (rows != pages).astype(jnp.int8).reshape(-1, group)
    counts = (differs @ jnp.ones((group,), jnp.int8)).reshape(pages.shape[0], -1)
    return jnp.all(counts == 0, axis=1)


def _walk_twins(index: PrefixIndex, chain: Chain, limit: Int32[Array, ""]) -> Chain:
    """Goes on page by page where several nodes share the key of the next page.

    Chained keys carry a collision down to all descendants, so the walk looks at every way of every
    further page. It takes no step unless two keys in one bucket are equal.
    """
    (size,) = chain.node_ids.shape

    def step(carry):
        chain, _ = carry
        here = jnp.minimum(chain.num_known, size - 1)
        above = jnp.where(here > 0, chain.node_ids[jnp.maximum(here - 1, 0)], chain.root_id)
        node_ids = candidates(index, chain.keys[here])
        same = jnp.all(gather(index.tokens, node_ids, 0) == chain.pages[here], axis=-1)
        same &= (gather(index.parent, node_ids, NO_NODE) == above) & (above < NO_NODE)
        node_id = jnp.min(keep_ids(node_ids, same))
        found = (node_id < NO_NODE) & (chain.num_known < limit)
        path = chain.node_ids.at[here].set(jnp.where(found, node_id, chain.node_ids[here]))
        return chain._replace(node_ids=path, num_known=chain.num_known + found), found

    next_key = chain.keys[jnp.minimum(chain.num_known, size - 1)]
    num_alike = jnp.sum(candidates(index, next_key) < NO_NODE)
    ambiguous = (num_alike > 1) & (chain.num_known < limit)
    return lax.while_loop(lambda carry: carry[1], step, (chain, ambiguous))[0]


def find_chain(
    index: PrefixIndex,
    tokens: Int32[Array, "tokens"],
    namespace: UInt32[Array, "16"],
    limit: Int32[Array, ""],
) -> Chain:
    """Finds the nodes of a prompt's pages, at most `limit` of them.

    A node counts only if its tokens are the page's and its parent is the node found for the page
    before: equal keys of other pages cost a step of search, never a wrong node.

    Raises:
      ValueError: while tracing, if `tokens` is not `max_pages` whole pages.
    """
    page_size = index.tokens.shape[1]
    if tokens.shape[0] != max_pages(index) * page_size:
        raise ValueError(
            f"tokens holds {tokens.shape[0]} ids, not max_pages={max_pages(index)} "
            f"times page_size={page_size}; pad it."
        )
    pages = tokens.reshape(-1, page_size)
    root_key = keys_.namespace_key(namespace)
    keys = keys_.chain(keys_.page_hashes(pages), root_key)
    root_id = _find_root(index, root_key, namespace)

    node_ids = _first_candidates(index, keys)
    parents = jnp.concatenate([root_id[None], node_ids[:-1]])
    position = jnp.arange(node_ids.shape[0], dtype=jnp.int32)
    rows = jnp.minimum(node_ids, index.parent.shape[0] - 1)
    agree = _rows_equal(index.tokens.at[rows].get(mode="promise_in_bounds"), pages)
    agree &= index.parent.at[rows].get(mode="promise_in_bounds") == parents
    agree &= (node_ids < NO_NODE) & (root_id < NO_NODE) & (position < limit)
    chain = Chain(
        pages=pages,
        keys=keys,
        root_key=root_key,
        root_id=root_id,
        node_ids=node_ids,
        num_known=first_false(agree),
    )
    chain = _walk_twins(index, chain, limit)
    return chain._replace(node_ids=keep_ids(chain.node_ids, position < chain.num_known))
