"""How far a prompt can be resumed, and from where."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32

from tiercache.ids import HOLE, NO_HOST, NO_NODE, NO_SNAP
from tiercache.prefix import codes
from tiercache.prefix.arrays import first_false, gather, keep_ids
from tiercache.prefix.index import PrefixIndex
from tiercache.prefix.lookup import Chain, find_chain


class Plan(NamedTuple):
    """A read-only answer of fixed shape: what of a prompt is cached, and where.

    Attributes:
      node_ids: node of each page as deep as pages reach; NO_NODE from `kv_pages` on.
      epochs: epoch of each of those nodes when the plan was made; 0 after.
      root_id: node of the namespace, or NO_NODE.
      root_epoch: its epoch.
      num_pages: deepest resumable depth: each page below has a copy and a snapshot lies there.
      kv_pages: how deep pages alone reach over all tiers.
      known_pages: how deep tokens are known, nodes without copies included.
      source: SOURCE_* of each page below `num_pages`; SOURCE_NONE after.
      snapshot_source: SNAPSHOT_* of the snapshot at `num_pages`.
      snap_id: device snapshot at `num_pages`, or NO_SNAP.
      host_snap_id: host snapshot at `num_pages`, or NO_SNAP.
      cut: CUT_* reason why the match ends at `num_pages`.
      num_hot: pages below `num_pages` that come from hot pages.
      num_cold: the same from cold slots.
      num_host: the same from host pages.
    """

    node_ids: Int32[Array, "page"]
    epochs: Int32[Array, "page"]
    root_id: Int32[Array, ""]
    root_epoch: Int32[Array, ""]
    num_pages: Int32[Array, ""]
    kv_pages: Int32[Array, ""]
    known_pages: Int32[Array, ""]
    source: Int32[Array, "page"]
    snapshot_source: Int32[Array, ""]
    snap_id: Int32[Array, ""]
    host_snap_id: Int32[Array, ""]
    cut: Int32[Array, ""]
    num_hot: Int32[Array, ""]
    num_cold: Int32[Array, ""]
    num_host: Int32[Array, ""]


def match(
    index: PrefixIndex,
    tokens: Int32[Array, "tokens"],
    length: Int32[Array, ""],
    namespace: UInt32[Array, "16"],
    *,
    needs_snapshot: bool = True,
) -> Plan:
    """Finds the deepest depth at which a prompt can be resumed. Changes nothing.

    The last token is never matched, so at least one is left to compute: `num_pages` is at most
    `(length - 1) // page_size`.

    Args:
      index: the known prefixes.
      tokens: the prompt, padded to `max_pages` whole pages.
      length: tokens that count, in [0, max_pages * page_size].
      namespace: `Namespace.lanes()`.
      needs_snapshot: whether resuming takes a recurrent state of exactly that depth; static.

    Returns:
      The plan. An exact copy is preferred: hot, then host, then cold.

    Raises:
      ValueError: while tracing, if `tokens` is not `max_pages` whole pages.
    """
    page_size = index.tokens.shape[1]
    limit = jnp.maximum(length - 1, 0) // page_size
    chain = find_chain(index, tokens, namespace, limit)
    position = jnp.arange(chain.node_ids.shape[0], dtype=jnp.int32)

    sources = _page_sources(index, chain.node_ids)
    kv_pages = first_false(sources != codes.SOURCE_NONE)
    snap_ids = gather(index.snap_id, chain.node_ids, NO_SNAP)
    host_snap_ids = gather(index.host_snap_id, chain.node_ids, NO_SNAP)
    num_pages = kv_pages
    if needs_snapshot:
        anchored = (jnp.minimum(snap_ids, host_snap_ids) < NO_SNAP) & (position < kv_pages)
        num_pages = jnp.max(jnp.where(anchored, position + 1, 0))
    sources = jnp.where(position < num_pages, sources, codes.SOURCE_NONE)
    node_ids = keep_ids(chain.node_ids, position < kv_pages)
    last = jnp.where(num_pages > 0, num_pages - 1, NO_NODE)
    snap_id = gather(snap_ids, last, NO_SNAP)
    host_snap_id = gather(host_snap_ids, last, NO_SNAP)
    tiers = jnp.array([[codes.SOURCE_HOT], [codes.SOURCE_COLD], [codes.SOURCE_HOST]], jnp.int32)
    counts = jnp.sum(sources == tiers, axis=1, dtype=jnp.int32)
    return Plan(
        node_ids=node_ids,
        epochs=gather(index.epoch, node_ids, 0),
        root_id=chain.root_id,
        root_epoch=gather(index.epoch, chain.root_id, 0),
        num_pages=num_pages,
        kv_pages=kv_pages,
        known_pages=chain.num_known,
        source=sources,
        snapshot_source=_snapshot_source(snap_id, host_snap_id),
        snap_id=snap_id,
        host_snap_id=host_snap_id,
        cut=_cut(chain, limit, num_pages, kv_pages),
        num_hot=counts[0],
        num_cold=counts[1],
        num_host=counts[2],
    )


def _page_sources(index: PrefixIndex, node_ids: Int32[Array, "page"]) -> Int32[Array, "page"]:
    """Where each page comes from: exact copies before the lossy one."""
    entries = gather(index.entry, node_ids, HOLE)
    host_ids = gather(index.host_id, node_ids, NO_HOST)
    lower = jnp.where(entries < HOLE, codes.SOURCE_COLD, codes.SOURCE_NONE)
    lower = jnp.where(host_ids < NO_HOST, codes.SOURCE_HOST, lower)
    return jnp.where(entries > HOLE, codes.SOURCE_HOT, lower).astype(jnp.int32)


def _snapshot_source(snap_id: Int32[Array, ""], host_snap_id: Int32[Array, ""]) -> Int32[Array, ""]:
    host = jnp.where(host_snap_id < NO_SNAP, codes.SNAPSHOT_HOST, codes.SNAPSHOT_NONE)
    return jnp.where(snap_id < NO_SNAP, codes.SNAPSHOT_DEVICE, host).astype(jnp.int32)


def _cut(
    chain: Chain,
    limit: Int32[Array, ""],
    num_pages: Int32[Array, ""],
    kv_pages: Int32[Array, ""],
) -> Int32[Array, ""]:
    """The first reason that holds, from the surface down."""
    cut = jnp.where(kv_pages < chain.num_known, codes.CUT_PAGE, codes.CUT_UNKNOWN)
    cut = jnp.where(num_pages < kv_pages, codes.CUT_SNAPSHOT, cut)
    cut = jnp.where(num_pages == limit, codes.CUT_NONE, cut)
    return jnp.where(limit == 0, codes.CUT_EMPTY, cut).astype(jnp.int32)
