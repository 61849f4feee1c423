"""`Cache`: the verbs with a spec bound to them."""

import dataclasses
import functools

from tiercache import (
    _append,
    _attend,
    _check,
    _evict,
    _evict_snapshots,
    _insert,
    _make_room,
    _match,
    _mirror,
    _rehydrate,
    _requantize,
    _reserve,
    _retire,
    _rows,
    _snapshot,
    _view,
)
from tiercache.spec import CacheSpec
from tiercache.state import init_state

_VERBS = {
    "init": init_state,
    "reserve": _reserve.reserve,
    "view": _view.view,
    "append": _append.append,
    "attend": _attend.attend,
    "advance": _append.advance,
    "match": _match.match,
    "rehydrate": _rehydrate.rehydrate,
    "load_snapshot": _snapshot.load_snapshot,
    "save_snapshot": _snapshot.save_snapshot,
    "insert": _insert.insert,
    "mirror": _mirror.mirror,
    "evict": _evict.evict,
    "evict_snapshots": _evict_snapshots.evict_snapshots,
    "make_room": _make_room.make_room,
    "requantize": _requantize.requantize,
    "retire": _retire.retire,
    "fork": _rows.fork,
    "truncate": _rows.truncate,
    "release": _rows.release,
    "check": _check.check,
    "is_writable": _append.is_writable,
    "num_unreachable_pages": _check.num_unreachable_pages,
}


@dataclasses.dataclass(frozen=True)
class Cache:
    """A spec and its verbs: `Cache(spec).match(state, ...)` is `match(state, ..., spec=spec)`.

    Holds no arrays and changes nothing; hashable, so it may be a static argument.
    """

    spec: CacheSpec

    pin = staticmethod(_match.pin)  # these two need no spec
    unpin = staticmethod(_match.unpin)

    def __getattr__(self, name: str):
        if name not in _VERBS:
            raise AttributeError(name)
        return functools.partial(_VERBS[name], spec=self.spec)
