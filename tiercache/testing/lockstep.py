"""One cache twice: the library's state and the reference, driven by the same calls.

After every call its info, every number of the state and the rules of `check` are compared, and what
nobody owns is overwritten. After every `flush` so is every byte that somebody owns.
"""

import functools
import math
from collections import Counter
from typing import Final

import jax
import numpy as np

from pallas_kernels.page_layout import K, V
from tiercache._check import check
from tiercache.prefix import Plan
from tiercache.reasons import Reason
from tiercache.spec import CacheSpec
from tiercache.state import CacheState, init_state
from tiercache.testing.calls import (
    NAMESPACES,
    NUM_PLANS,
    OPTIONS,
    WIDTH,
    Call,
    encode,
    num_words,
    prompt_tokens,
    signature,
)
from tiercache.testing.contents import contents_of
from tiercache.testing.reference import Codecs, ReferenceCache, columns, differences
from tiercache.testing.reference.compare import same_column
from tiercache.testing.reference.storage import LibraryCodecs, Plane
from tiercache.testing.steps import Seen, init_held, run_calls

BATCH: Final = 64  # calls in one dispatch
LIBRARY: Final = LibraryCodecs()
FULL_EVERY: Final = 4  # batches from one comparison of bytes to the next, while nothing else asks


@functools.cache
def compiled(spec: CacheSpec):
    """`run_calls` for a spec; the one program that all its traces run."""
    return jax.jit(functools.partial(run_calls, spec=spec), donate_argnums=0)


@functools.cache
def encoded_contents(spec: CacheSpec, codecs: Codecs) -> dict[tuple[int, int], Plane]:
    """Every vector of the contents in its layer's format, by (layer, K or V): [number, head, ...].

    What tokens store does not depend on their neighbours, so that it may be looked up.
    """
    contents = contents_of(spec)
    return {
        (layer, kv): Plane(*codecs.encode(spec.hot_formats[layer][kv], x[:, layer]))
        for layer in range(spec.num_layers)
        for kv, x in ((K, contents.k), (V, contents.v))
    }


class Lockstep:
    """A state and its reference.

    `call` runs one call on both and compares. `push` runs it on the reference at once and on the
    state with the next `flush`, up to `BATCH` calls in one dispatch: hundreds of times faster, and
    as strict, since the numbers of every single step are compared then.

    Attributes:
      reference: may be looked at, to choose the next call.
      num_calls: compared so far.
      calls_made: all that were pushed, if they are to be kept.
      seen: how often each verb ended with each `Reason`, by (name of the call, reason).
    """

    def __init__(self, spec: CacheSpec, *, codecs: Codecs | None = None, keep_calls: bool = False):
        self.spec = spec
        self.reference = ReferenceCache(spec, codecs or LIBRARY)
        self._encoded = encoded_contents(spec, codecs or LIBRARY)
        self.num_calls = 0
        self.seen: Counter[tuple[str, str]] = Counter()
        self._contents = contents_of(spec)
        # Until the first `match`, every plan is that of an empty prompt.
        self._plans = [self._matched((0,) * spec.max_pages, 0, 0)] * NUM_PLANS
        self._held = init_held(init_state(spec), self._plans)
        self._rules = list(jax.eval_shape(functools.partial(check, spec=spec), self.state))
        self.calls_made: list[Call] = []
        self._keep_calls, self._num_batches = keep_calls, 0
        self._waiting: list[tuple[Call, tuple, list[int]]] = []

    @property
    def state(self) -> CacheState:
        """The library's state, as of the last flush. It is donated to the next."""
        return self._held.state

    def call(self, name: str, *args):
        """`push`, then `flush`; returns the info of the reference."""
        info = self.push(name, *args)
        self.flush()
        return info

    def push(self, name: str, *args):
        """Runs a call of `signature` on the reference, now, and keeps it for the state.

        Returns:
          The info that the verb must give.
        """
        call = Call(name, args)
        if self._keep_calls:
            self.calls_made.append(call)
        info = getattr(self, f"_{name}", functools.partial(self._plain, name))(*args)
        self.reference.forget_unowned()
        for reason in np.atleast_1d(getattr(info, "reason", [])).tolist():
            self.seen[name, Reason(int(reason)).name] += 1
        numbers = _flat(columns.of_reference(self.reference).values())
        self._waiting.append((call, info, numbers))
        if len(self._waiting) == BATCH:
            self._num_batches += 1
            self.flush(full=self._num_batches % FULL_EVERY == 0)
        return info

    def flush(self, *, full: bool = True):
        """Runs what was pushed on the state, and compares.

        Args:
          full: whether to compare bytes, too.

        Raises:
          AssertionError: naming the call and every difference after it.
        """
        words = np.zeros((BATCH, num_words(self.spec)), np.int32)
        for i, (call, _, _) in enumerate(self._waiting):
            words[i] = encode(call, self.spec)
        count = np.int32(len(self._waiting))
        self._held, seen = compiled(self.spec)(self._held, words, count)
        waiting, self._waiting = self._waiting, []
        seen = jax.device_get(seen)
        infos = [_flat(info, seen.info.shape[1]) for _, info, _ in waiting]
        bad = _rows_unlike(infos, seen.info) | _rows_unlike([x[2] for x in waiting], seen.numbers)
        bad |= ~np.all(seen.ok[: len(waiting)], axis=1)
        if np.any(bad):
            first = int(np.argmax(bad))
            lines = self._problems(jax.tree.map(lambda x: x[first], seen), *waiting[first][1:])
            call = waiting[first][0]
            raise AssertionError("\n".join([f"after {call.name}{call.args}:", *lines]))
        self.num_calls += len(waiting)
        if full:
            problems = differences(self.reference, self.state)
            assert not problems, "\n".join([f"after {len(waiting)} calls:", *problems])

    def _problems(self, seen: Seen, info, numbers: list[int]) -> list[str]:
        found = [f"check: {self._rules[i]}" for i in np.flatnonzero(~seen.ok)]
        named = {f"{type(info).__name__}.{k}": np.shape(v) for k, v in info._asdict().items()}
        state = jax.eval_shape(columns.of_state, self.state)
        shapes = {name: state[name].shape for name in columns.of_reference(self.reference)}
        words, numbers_seen = np.asarray(seen.info), np.asarray(seen.numbers)
        found += _unlike(named, _flat(info), words)
        return found + _unlike(shapes, numbers, numbers_seen)

    def _plain(self, name: str, *args):
        method = name.partition("_")[0] if name.startswith(("evict", "rehydrate")) else name
        method = "evict_snapshots" if name.startswith("evict_snapshots") else method
        return getattr(self.reference, method)(*args, **OPTIONS.get(name, {}))

    def _append(self, counts, key: int, bad: int):
        contents, rows = self._contents, self.spec.max_rows
        numbers = contents.numbers(key, rows, WIDTH, None if bad < 0 else divmod(bad, 3))
        info = None
        for row_id, count in enumerate(counts):
            if count > 0:
                self.reference.set_live(row_id, [x[numbers[row_id, 1]] for x in contents.live])
        for layer in range(self.spec.num_layers):
            info = self.reference.append_encoded(
                range(rows), counts, layer, {kv: self._stored(layer, kv, numbers) for kv in (K, V)}
            )
        return info

    def _stored(self, layer: int, kv: int, numbers: np.ndarray) -> Plane:
        codes, scales = self._encoded[layer, kv]
        if scales is not None:
            scales = scales[numbers].swapaxes(1, 2)
        return Plane(codes[numbers].swapaxes(1, 2), scales)

    def _match(self, place: int, symbols, length: int, namespace: int):
        self._plans[place] = self._matched(symbols, length, namespace)
        return self._plans[place]

    def _matched(self, symbols, length: int, namespace: int) -> Plan:
        tokens = prompt_tokens(symbols, self.spec)
        return self.reference.match(tokens, length, NAMESPACES[namespace])

    def _pin(self, place: int, lease_id: int):
        return self.reference.pin(self._plans[place], lease_id)

    def _rehydrate_share(self, place: int, row_id: int):
        return self.reference.rehydrate(self._plans[place], row_id, cold="share")

    def _rehydrate_hot(self, place: int, row_id: int):
        return self.reference.rehydrate(self._plans[place], row_id, cold="hot")

    def _load_snapshot(self, place: int, row_id: int):
        return self.reference.load_snapshot(self._plans[place], row_id)

    def _insert(self, row_id: int, symbols, namespace: int):
        return self.reference.insert(
            row_id, prompt_tokens(symbols, self.spec), NAMESPACES[namespace]
        )

    def _save_snapshot(self, row_ids, depths, replaces):
        return self.reference.save_snapshot(row_ids, depths, replaces=replaces)

    @property
    def calls(self) -> list[str]:
        """Names of the calls that the spec allows."""
        return list(signature(self.spec))


def _flat(values, size: int = 0) -> list[int]:
    """Numbers and nested lists of numbers, one after the other; with zeros up to `size`."""
    words: list[int] = []
    for value in values:
        if isinstance(value, np.ndarray):
            words += value.ravel().tolist()
        elif isinstance(value, list):
            words += _flat(value) if value and isinstance(value[0], list) else value
        else:
            words.append(value)
    return words + [0] * (size - len(words))


def _rows_unlike(expected: list[list[int]], seen: np.ndarray) -> np.ndarray:
    """Which of the first rows of `seen` are not as expected."""
    want = np.array(expected, np.int64).astype(np.int32).reshape(len(expected), seen.shape[1])
    return np.any(want != seen[: len(expected)], axis=1)


def _unlike(shapes: dict, expected: list[int], words: np.ndarray) -> list[str]:
    """Where flat words differ from the expected ones, by the names of what they are parts of."""
    found, at = [], 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        want = np.array(expected[at : at + size], np.int64).reshape(shape)
        found += same_column(name, want, words[at : at + size].reshape(shape))
        at += size
    return found
