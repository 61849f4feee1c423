"""Where a state of the library is not what the reference says."""

from collections.abc import Iterator

import jax
import numpy as np

from pallas_kernels.banks import to_numpy
from tiercache.reasons import Reason
from tiercache.state import CacheState
from tiercache.testing.reference import columns
from tiercache.testing.reference.cache import ReferenceCache
from tiercache.testing.reference.keys import key_of
from tiercache.testing.reference.storage import leaves_record


def differences(reference: ReferenceCache, state: CacheState) -> list[str]:
    """Everything in which the two differ, one line each; none if the state is right.

    What nobody owns is not looked at: bytes of free pages and slots, tokens that no one wrote.
    """
    state = to_numpy(state)
    parts = (_numbers, _tokens, _pages, _records, _states)
    return [line for part in parts for line in part(reference, state)]


def info_differences(expected, actual) -> list[str]:
    """Fields in which the reference's `Info` and a verb's differ."""
    actual = jax.device_get(actual)
    return [
        line
        for name, want, have in zip(expected._fields, expected, actual, strict=True)
        for line in same_column(f"{type(expected).__name__}.{name}", want, have)
    ]


def same_column(name: str, want, have) -> Iterator[str]:
    """A line if two arrays differ, with the first place."""
    if name == "counters.status":
        want, have = _reasons(want), _reasons(have)
    want, have = np.asarray(want), np.asarray(have)
    if want.size == 0 and have.size == 0:
        return
    if want.shape != have.shape:
        yield f"{name}: shape {have.shape}, not {want.shape}"
    elif not np.array_equal(want, have):
        where = np.argwhere(np.atleast_1d(want != have))[0].tolist()
        yield f"{name}: {have.tolist()}, not {want.tolist()} (first at {where})"


def _reasons(status) -> list[str]:
    return [reason.name for reason in Reason if reason and int(status) >> reason & 1]


def _numbers(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    have = columns.of_state(state)
    for name, want in columns.of_reference(reference).items():
        yield from same_column(name, want, have[name])


def _tokens(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    yield from same_column("index.parked", np.zeros_like(state.index.parked), state.index.parked)
    for node in reference.index.nodes():
        have = state.index.tokens[node.node_id][: len(node.tokens)].view(np.uint32)
        want = np.array(node.tokens, np.int64).astype(np.uint32)
        yield from same_column(f"index.tokens[{node.node_id}]", want, have)
        key = state.index.key[node.node_id]
        yield from same_column(f"index.key[{node.node_id}]", key_of(node), key)


def _pages(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    """Every written token of every page that somebody names."""
    for page_id, page in reference.pages.items():
        written = sorted(page.written)
        for group, pool in zip(reference.spec.hot_layout.groups, state.pages.payload, strict=True):
            for number, where in enumerate(group.planes):
                if where not in page.planes:
                    continue
                for leaf, want in zip(pool, page.planes[where], strict=True):
                    if leaf is None or want is None:
                        continue
                    have = np.asarray(leaf)[page_id, number][:, written]
                    if have.tobytes() != want[:, written].tobytes():
                        layer, kv = where
                        kind = "codes" if leaf is pool.codes else "scales"
                        yield f"page {page_id}, layer {layer} {'KV'[kv]}: other {kind}"


def _records(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    for slot_id, page in reference.slots.items():
        if state.cold.bank[slot_id].tobytes() != page.record():
            yield f"cold slot {slot_id}: other bytes"
    for host_id, page in reference.host_pages.items():
        if state.host.pages[host_id].tobytes() != page.record():
            yield f"host page {host_id}: other bytes"
    for host_snap_id, leaves in reference.host_snapshots.items():
        have = state.host.snapshots[host_snap_id].tobytes()
        if leaves is not None and have != leaves_record(leaves):
            yield f"host snapshot {host_snap_id}: other bytes"


def _states(reference: ReferenceCache, state: CacheState) -> Iterator[str]:
    for snap_id, snapshot in reference.snapshots.items():
        if snapshot.leaves is None:
            continue
        have = leaves_record(tuple(np.asarray(x)[snap_id] for x in state.snapshots.leaves))
        if have != leaves_record(snapshot.leaves):
            yield f"snapshot {snap_id}: other bytes"
    for row_id, row in enumerate(reference.rows):
        if row.live is None or row.is_empty:
            continue
        have = leaves_record(tuple(np.asarray(x)[:, row_id] for x in state.live))
        if have != leaves_record(row.live):
            yield f"live state of row {row_id}: other bytes"
