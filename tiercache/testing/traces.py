"""Traces of calls as text, to be kept and replayed, and cut down to what still fails."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tiercache.spec import CacheSpec, SnapshotLeaf
from tiercache.testing.calls import Call
from tiercache.testing.lockstep import Lockstep
from tiercache.testing.reference import Codecs


class Trace(NamedTuple):
    """Calls from an empty cache on.

    Attributes:
      spec: of the cache.
      calls: in order.
      note: what went wrong, and where the trace is from.
    """

    spec: CacheSpec
    calls: tuple[Call, ...]
    note: str = ""

    def to_json(self) -> str:
        """One call a line."""
        spec = json.dumps(dataclasses.asdict(self.spec))
        calls = ",\n".join(json.dumps([call.name, *call.args]) for call in self.calls)
        return f'{{"note": {json.dumps(self.note)},\n"spec": {spec},\n"calls": [\n{calls}\n]}}\n'

    @classmethod
    def from_json(cls, text: str) -> "Trace":
        """The trace that `to_json` made the text of."""
        data = json.loads(text)
        values = dict(data["spec"])
        values["snapshot_leaves"] = tuple(
            SnapshotLeaf(x["name"], tuple(x["shape"]), x["dtype"])
            for x in values["snapshot_leaves"]
        )
        for name in ("hot_formats", "cold_formats"):
            values[name] = tuple((k, v) for k, v in values[name])
        calls = tuple(Call(name, tuple(args)) for name, *args in data["calls"])
        return cls(CacheSpec(**values), calls, data["note"])


def replay(trace: Trace, *, codecs: Codecs | None = None, at_once: bool = False) -> Lockstep:
    """Runs a trace on a new cache and its reference.

    Args:
      trace: what to run.
      codecs: of the reference; None for the library's.
      at_once: whether to make calls one by one: for a short trace, whose verbs compile sooner than
        the program of a batch.

    Raises:
      AssertionError: at the first call after which they differ.
    """
    lockstep = Lockstep(trace.spec, codecs=codecs)
    run = lockstep.call if at_once else lockstep.push
    for call in trace.calls:
        run(call.name, *call.args)
    lockstep.flush()
    return lockstep


def failure(trace: Trace) -> str:
    """The verb after which cache and reference first differ, and in what; empty if nowhere.

    What is cut out of a trace may make it fail for another reason: compare these.
    """
    try:
        replay(trace)
    except AssertionError as error:
        return failure_of(str(error))
    return ""


def failure_of(message: str) -> str:
    """The same from the text of what a `Lockstep` raised."""
    first, second, *_ = [*message.split("\n"), ""]
    return f"{first.partition('(')[0]}, {second.partition(':')[0]}"


def shrink(
    calls: Sequence[Call], still_fails: Callable[[Sequence[Call]], bool], *, most: int = 400
) -> tuple[Call, ...]:
    """Takes calls out, many at a time and then fewer, as long as what is left still fails.

    Args:
      calls: a trace that fails.
      still_fails: judges a shorter one.
      most: judgements at most.
    """
    kept, size = list(calls), len(calls)
    while size and most > 0:
        start = 0
        while start < len(kept) and most > 0:
            shorter = kept[:start] + kept[start + size :]
            most -= 1
            if shorter and still_fails(shorter):
                kept = shorter
            else:
                start += size
        size = size // 2
    return tuple(kept)
