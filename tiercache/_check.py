"""`check`: the rules that always hold, as named booleans."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from tiercache import prefix
from tiercache.ids import HOLE, NO_HOST, NO_NODE, NO_SNAP, entry_to_page, entry_to_slot
from tiercache.spec import CacheSpec
from tiercache.state import FREE, CacheState


def check(state: CacheState, *, spec: CacheSpec) -> dict[str, Bool[Array, ""]]:
    """Whether each invariant holds. Usable under `jit`.

    Returns:
      By name. `all(check(state, spec=spec).values())` is the promise of the library.
    """
    table, index, snapshots, host = state.table, state.index, state.snapshots, state.host
    used = index.depth > 0
    whole = -(-table.lengths // spec.page_size)
    page = jnp.arange(spec.max_pages)
    num_nodes = index.depth.shape[0]
    waiting = snapshots.owner >= 0
    hung = snapshots.owner < FREE
    owner_node = jnp.where(hung, -2 - snapshots.owner, NO_NODE)
    owner_depth = _get(index.depth, owner_node, -1)
    snap_ids = jnp.arange(snapshots.owner.shape[0])
    rules = {
        "page_refs": _counts(entry_to_page, table.entries, index.entry, state.pages.refs),
        "slot_refs": _counts(entry_to_slot, table.entries, index.entry, state.cold.refs),
        "pages_fit": _in_range(entry_to_page(table.entries), spec.num_pages)
        & _in_range(entry_to_page(index.entry), spec.num_pages),
        "slots_fit": _in_range(entry_to_slot(table.entries), spec.num_cold_slots)
        & _in_range(entry_to_slot(index.entry), spec.num_cold_slots),
        "index_within_budget": jnp.sum(index.entry >= 0) <= spec.index_pages,
        "lengths_fit": jnp.all((table.lengths >= 0) & (table.lengths <= spec.max_tokens)),
        "rows_are_backed": jnp.all((page >= whole[:, None]) | (table.entries != HOLE)),
        "committed_within_length": jnp.all(
            (table.committed >= 0) & (table.committed <= table.lengths)
        ),
        "reserved_pages_are_exclusive": _reserved_pages_ok(state, spec),
        "row_nodes_are_pinned": _row_nodes_pinned(state, spec),
        "snapshot_depths": jnp.all(~hung | (snapshots.tokens == owner_depth * spec.page_size)),
        "snapshot_owners": jnp.all(~hung | (_get(index.snap_id, owner_node, NO_SNAP) == snap_ids)),
        "snapshot_waits_for_row": jnp.all(~waiting | (snapshots.owner < spec.max_rows)),
        "snapshots_conserved": jnp.sum(hung) == jnp.sum(used & (index.snap_id < NO_SNAP)),
        "host_pages_conserved": _bijection(index.host_id, host.page_node, NO_HOST, num_nodes),
        "host_snapshots_conserved": _bijection(
            index.host_snap_id, host.snapshot_node, NO_SNAP, num_nodes
        ),
        "counters_not_negative": jnp.all(state.counters.values >= 0),
    }
    for name, value in prefix.check(index)._asdict().items():
        rules[f"index_{name}"] = value
    return rules


def failures(state: CacheState, spec: CacheSpec) -> list[str]:
    """Names of the rules that a state breaks, outside `jit`; empty for a sound state."""
    return [name for name, ok in jax.device_get(check(state, spec=spec)).items() if not ok]


def num_unreachable_pages(state: CacheState, *, spec: CacheSpec) -> Int32[Array, ""]:
    """Pages known to the index that no snapshot at or below them can resume: dead weight.

    Zero for a model without recurrent state. Times `bytes_per_page`, the bytes of KV that nothing
    can use.
    """
    index = state.index
    if not spec.needs_snapshot:
        return jnp.int32(0)
    anchored = (index.depth > 0) & (jnp.minimum(index.snap_id, index.host_snap_id) < NO_SNAP)

    def climb(carry):
        reached, node_ids = carry
        above = _get(index.parent, node_ids, NO_NODE)
        above = jnp.where(_get(reached, above, True), NO_NODE, above)
        return reached.at[above].set(True, mode="drop"), above

    node_ids = jnp.where(anchored, jnp.arange(index.depth.shape[0], dtype=jnp.int32), NO_NODE)
    reached, _ = jax.lax.while_loop(
        lambda carry: jnp.any(carry[1] != NO_NODE), climb, (anchored, node_ids)
    )
    return jnp.sum((index.depth > 0) & prefix.has_copy(index) & ~reached, dtype=jnp.int32)


def _get(values, ids, fill):
    return values.at[ids].get(mode="fill", fill_value=fill)


def _in_range(ids, size: int) -> Bool[Array, ""]:
    return jnp.all((ids == NO_NODE) | (ids < size))


def _counts(to_id, table_entries, node_entries, refs) -> Bool[Array, ""]:
    """References are exactly the entries that name each id."""
    named = jnp.zeros_like(refs)
    named = named.at[to_id(table_entries)].add(1, mode="drop")
    named = named.at[to_id(node_entries)].add(1, mode="drop")
    return jnp.all(named == refs)


def _bijection(node_to_id, id_to_node, nothing: int, num_nodes: int) -> Bool[Array, ""]:
    """Each host copy belongs to the one node that names it, and nothing else is taken."""
    ids = jnp.arange(id_to_node.shape[0], dtype=jnp.int32)
    held = id_to_node != NO_NODE
    back = jnp.all(~held | (_get(node_to_id, id_to_node, nothing) == ids))
    in_range = jnp.all(~held | (id_to_node < num_nodes))
    return back & in_range & (jnp.sum(held) == jnp.sum(node_to_id != nothing))


def _reserved_pages_ok(state: CacheState, spec: CacheSpec) -> Bool[Array, ""]:
    """Pages past a row's last token are that row's alone, and hot: it will write there."""
    table = state.table
    empty = jnp.arange(spec.max_pages) * spec.page_size >= table.lengths[:, None]
    refs = _get(state.pages.refs, entry_to_page(table.entries), 0)
    return jnp.all(~empty | (table.entries == HOLE) | (refs == 1))


def _row_nodes_pinned(state: CacheState, spec: CacheSpec) -> Bool[Array, ""]:
    """A node whose copy is a whole page of a row is pinned, so that it is never taken for idle.

    A page that a row reads only part of is one it has truncated or was forked into; it is not
    written, since it is shared, and it is not idle either, since the row counts as a reference.
    """
    index, table = state.index, state.table
    whole = jnp.arange(spec.max_pages) < (table.lengths // spec.page_size)[:, None]
    entries = jnp.where(whole, table.entries, HOLE)
    hot = jnp.zeros(state.pages.refs.shape, bool)
    hot = hot.at[entry_to_page(entries)].set(True, mode="drop")
    cold = jnp.zeros(state.cold.refs.shape, bool)
    cold = cold.at[entry_to_slot(entries)].set(True, mode="drop")
    read = _get(hot, entry_to_page(index.entry), False)
    if cold.size:
        read |= _get(cold, entry_to_slot(index.entry), False)
    return jnp.all(~read | (index.pins > 0))
