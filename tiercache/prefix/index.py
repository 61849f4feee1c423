"""The prefix index: a trie of pages in flat arrays."""

from typing import Final, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32

from tiercache.ids import HOLE, NO_HOST, NO_NODE, NO_SNAP
from tiercache.prefix.namespace import NUM_LANES

FREE: Final = -1  # depth of a node that is not in use
NUM_WAYS: Final = 8
_BUCKETS_PER_NODE: Final = 2  # load 1/2 at most: nine keys in one of 131,072 buckets, p < 1e-3


class PrefixIndex(NamedTuple):
    """Known prefixes, one node a page, and where the copies of each page and snapshot are.

    A node is in use when `depth >= 0`. A namespace is a node of depth 0 whose token row begins
    with its 16 lanes. No node outlives its parent, so a parent id names the parent it was made
    under for as long as the node lives.

    Attributes:
      tokens: the page's tokens; the namespace lanes, then zeros, at depth 0.
      parent: node id of the page before; NO_NODE at depth 0 and in free nodes.
      key: chained key of the prefix that ends here.
      depth: pages from the namespace root to here, this one included; -1 in free nodes.
      children: nodes in use whose parent this is.
      pins: leases whose path holds this node.
      last_use: clock tick of the latest touch; never later than the parent's.
      epoch: raised when the node id is freed, so that an old plan does not match a new tenant.
      entry: block-table value of the device copy: hot page, cold slot or HOLE.
      host_id: host page with the exact bytes, or NO_HOST.
      snap_id: device snapshot of exactly `depth * page_size` tokens, or NO_SNAP.
      host_snap_id: host snapshot of that depth, or NO_SNAP.
      parked: bit 1 a parked page record, bit 2 a parked snapshot record; zero for now.
      table: hash buckets: fingerprints (second key word, lane 0) and node ids (lane 1) by way.
      leases: path of each pin holder from the root down, NO_NODE after; all NO_NODE when free.
      clock: latest tick.
    """

    tokens: Int32[Array, "node token"]
    parent: Int32[Array, "node"]
    key: UInt32[Array, "node 2"]
    depth: Int32[Array, "node"]
    children: Int32[Array, "node"]
    pins: Int32[Array, "node"]
    last_use: Int32[Array, "node"]
    epoch: Int32[Array, "node"]
    entry: Int32[Array, "node"]
    host_id: Int32[Array, "node"]
    snap_id: Int32[Array, "node"]
    host_snap_id: Int32[Array, "node"]
    parked: Int32[Array, "node"]
    table: Int32[Array, "bucket 2 way"]
    leases: Int32[Array, "lease path"]
    clock: Int32[Array, ""]


def init_index(*, num_nodes: int, page_size: int, max_pages: int, num_leases: int) -> PrefixIndex:
    """An empty index.

    Args:
      num_nodes: pages and namespaces it can know at once, in [1, 2**28].
      page_size: tokens a page; a power of two, at least 16.
      max_pages: longest prefix, in pages; the M of every plan.
      num_leases: pin holders (rows and plans) at once.

    Raises:
      ValueError: for a number out of range.
    """
    if not 1 <= num_nodes <= 2**28:
        raise ValueError(f"num_nodes={num_nodes} is not in [1, 2**28].")
    if page_size < NUM_LANES or page_size & (page_size - 1):
        raise ValueError(f"page_size={page_size} is not a power of two of at least {NUM_LANES}.")
    if max_pages < 1 or num_leases < 1:
        raise ValueError(f"max_pages={max_pages} and num_leases={num_leases} must be at least 1.")
    num_buckets = 1 << (_BUCKETS_PER_NODE * num_nodes - 1).bit_length()

    def full(value: int) -> Int32[Array, "node"]:
        return jnp.full((num_nodes,), value, jnp.int32)

    return PrefixIndex(
        tokens=jnp.zeros((num_nodes, page_size), jnp.int32),
        parent=full(NO_NODE),
        key=jnp.zeros((num_nodes, 2), jnp.uint32),
        depth=full(FREE),
        children=full(0),
        pins=full(0),
        last_use=full(0),
        epoch=full(0),
        entry=full(HOLE),
        host_id=full(NO_HOST),
        snap_id=full(NO_SNAP),
        host_snap_id=full(NO_SNAP),
        parked=full(0),
        table=jnp.full((num_buckets, 2, NUM_WAYS), NO_NODE, jnp.int32),
        leases=jnp.full((num_leases, max_pages + 1), NO_NODE, jnp.int32),
        clock=jnp.zeros((), jnp.int32),
    )


def max_pages(index: PrefixIndex) -> int:
    """The longest prefix a plan can name, in pages; static."""
    return index.leases.shape[1] - 1


def num_free_nodes(index: PrefixIndex) -> Int32[Array, ""]:
    """How many node ids are free."""
    return jnp.sum(index.depth == FREE, dtype=jnp.int32)
