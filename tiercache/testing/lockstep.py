"""One cache twice: the library's state and the reference, driven by the same calls.

After every call its info, every number of the state and the rules of `check` are compared, and what
nobody owns is overwritten. After every `flush` so is every byte that somebody owns.
"""

import functools
import math
from collections import Counter
from typing import Any, Final

import jax
import numpy as np

from pallas_kernels.page_layout import K, V
from tiercache._check import check
from tiercache._placement import place_index, with_index
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
from tiercache.testing.contents import NUM_QUERIES, contents_of
from tiercache.testing.poison import poison_free
from tiercache.testing.reference import Attended, Codecs, ReferenceCache, columns, differences
from tiercache.testing.reference.compare import same_column
from tiercache.testing.reference.storage import LibraryCodecs, Plane
from tiercache.testing.steps import Held, Seen, init_held, observe, run_call, run_calls

BATCH: Final = 64  # calls in one dispatch
LIBRARY: Final = LibraryCodecs()
FULL_EVERY: Final = 4  # batches from one comparison of bytes to the next, while nothing else asks


@functools.cache
def compiled(spec: CacheSpec, poison: bool = True):
    """`run_calls` for a spec; the one program that all its traces run."""
    return jax.jit(functools.partial(run_calls, poison=poison, spec=spec), donate_argnums=0)


@functools.cache
def compiled_call(spec: CacheSpec, name: str):
    """`run_call` for one name of a call."""
    run = functools.partial(run_call, name=name, spec=spec)
    return jax.jit(run, donate_argnums=0, compiler_options=_quick())


@functools.cache
def compiled_observe(spec: CacheSpec):
    """`observe` for a spec."""
    return jax.jit(functools.partial(observe, spec=spec), compiler_options=_quick())


def _quick() -> dict | None:
    """Options for programs that run for microseconds on a CPU, where optimised code takes half as
    long again to compile. On an accelerator it would change how kernels are made."""
    is_cpu = jax.default_backend() == "cpu"
    return {"xla_backend_optimization_level": 0} if is_cpu else None


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
    state with the next `flush`, up to `BATCH` calls in one dispatch: a hundred times faster, and as
    strict, since the numbers of every single step are compared then. Calls one by one compile a
    program for each verb that is used, in a second or so; the program of a batch has them all.

    Attributes:
      reference: may be looked at, to choose the next call.
      num_calls: compared so far.
      calls_made: all that were pushed, if they are to be kept.
      seen: how often each verb ended with each `Reason`, by (name of the call, reason).
      num_outputs: numbers of `attend` that could be compared.
    """

    def __init__(
        self,
        spec: CacheSpec,
        *,
        codecs: Codecs | None = None,
        keep_calls: bool = False,
        poison: bool = True,
        index_device=None,
    ):
        """An empty cache.

        Args:
          spec: the geometry.
          codecs: of the reference; None for the library's.
          keep_calls: whether to keep all calls, for a `Trace`.
          poison: whether to overwrite what nobody owns after each call. Without, a test can see
            that a refused call did not touch even that.
          index_device: a `jax.Device` to keep the prefix index on; every call is then made by
            `with_index`, one by one.
        """
        self.spec = spec
        self.reference = ReferenceCache(spec, codecs or LIBRARY)
        self._encoded = encoded_contents(spec, codecs or LIBRARY)
        self.num_calls = self.num_outputs = 0
        self.seen: Counter[tuple[str, str]] = Counter()
        self._contents = contents_of(spec)
        # Until the first `match`, every plan is that of an empty prompt.
        self._plans = [self._matched((0,) * spec.max_pages, 0, 0)] * NUM_PLANS
        self._held = init_held(init_state(spec), self._plans)
        self._is_apart = index_device is not None
        if index_device is not None:
            self.state = place_index(self.state, index_device)
        self.calls_made: list[Call] = []
        self._keep_calls, self._poison, self._num_batches = keep_calls, poison, 0
        self._waiting: list[tuple[Call, tuple, list[int]]] = []

    @property
    def state(self) -> CacheState:
        """The library's state, as of the last flush. It is donated to the next."""
        return self._held.state

    @state.setter
    def state(self, state: CacheState):
        """Puts another in its place: one with other bytes where nobody owns any, say."""
        self._held = self._held._replace(state=state)

    def call(self, name: str, *args) -> Any:
        """Runs one call on both, and compares; returns the info of the reference."""
        alone = not self._waiting
        info = self.push(name, *args)
        self._flush(full=True, one_by_one=alone or self._is_apart)
        return info

    def push(self, name: str, *args) -> Any:
        """Runs a call of `signature` on the reference, now, and keeps it for the state.

        Returns:
          The info that the verb must give.
        """
        call = Call(name, args)
        if self._keep_calls:
            self.calls_made.append(call)
        info = getattr(self, f"_{name}", functools.partial(self._plain, name))(*args)
        if self._poison:
            self.reference.forget_unowned()
        if isinstance(info, Attended):
            self.num_outputs += info.num_known
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
        self._flush(full=full, one_by_one=self._is_apart)

    def _flush(self, *, full: bool, one_by_one: bool):
        waiting, self._waiting = self._waiting, []
        calls = [call for call, _, _ in waiting]
        seen = [self._run_one(call) for call in calls] if one_by_one else self._run(calls)
        for (call, info, numbers), one in zip(waiting, seen, strict=True):
            if not (np.array_equal(numbers, one.numbers) and one.ok.all() and _alike(info, one)):
                lines = self._problems(one, info, numbers)
                raise AssertionError("\n".join([f"after {call.name}{call.args}:", *lines]))
        self.num_calls += len(waiting)
        if full:
            problems = differences(self.reference, self.state)
            assert not problems, "\n".join([f"after {len(waiting)} calls:", *problems])

    def _run(self, calls: list[Call]) -> list[Seen]:
        """Runs calls in one dispatch."""
        if not calls:
            return []
        words = np.zeros((BATCH, num_words(self.spec)), np.int32)
        for i, call in enumerate(calls):
            words[i] = encode(call, self.spec)
        run = compiled(self.spec, self._poison)
        self._held, seen = run(self._held, words, np.int32(len(calls)))
        seen = jax.device_get(seen)
        return [Seen(*(x[i] for x in seen)) for i in range(len(calls))]

    def _run_one(self, call: Call) -> Seen:
        """Runs a call by the programs of its verb, of poison and of what is observed."""
        run = functools.partial(self._step, call)
        run = with_index(run) if self._is_apart else run
        state, (plans, *seen) = run(*self._held)
        self._held = Held(state, plans)
        return Seen(*jax.device_get(seen))

    def _step(self, call: Call, state: CacheState, plans: Plan):
        words = np.array(encode(call, self.spec), np.int32)
        state, (plans, info) = compiled_call(self.spec, call.name)(state, plans, words)
        if self._poison:
            state = poison_free(state, self.spec)
        return state, (plans, info, *compiled_observe(self.spec)(state))

    def _problems(self, seen: Seen, info, numbers: list[int]) -> list[str]:
        rules = list(jax.eval_shape(functools.partial(check, spec=self.spec), self.state))
        found = [f"check: {rules[i]}" for i in np.flatnonzero(~seen.ok)]
        if isinstance(info, Attended):
            wrong = np.argwhere(info.differs(_outputs(info, seen)))
            found += [f"attend: [layer, row, token, head, channel] {x.tolist()}" for x in wrong[:3]]
        else:
            named = {f"{type(info).__name__}.{k}": np.shape(v) for k, v in info._asdict().items()}
            found += _differences(named, _flat(info), np.asarray(seen.info))
        state = jax.eval_shape(columns.of_state, self.state)
        shapes = {name: state[name].shape for name in columns.of_reference(self.reference)}
        return found + _differences(shapes, numbers, np.asarray(seen.numbers))

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

    def _attend(self, counts, key: int) -> Attended:
        rows = np.arange(self.spec.max_rows)
        q = self._contents.q[(key * len(rows) + rows) % NUM_QUERIES]
        steps = [
            self.reference.attend(rows, counts, layer, q[:, None, layer])
            for layer in range(self.spec.num_layers)
        ]
        return Attended(*map(np.stack, zip(*steps, strict=True)))

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


def _flat(values) -> list[int]:
    """Numbers and nested lists of numbers, one after the other."""
    words: list[int] = []
    for value in values:
        if isinstance(value, np.ndarray):
            words += value.ravel().tolist()
        elif isinstance(value, list):
            words += _flat(value) if value and isinstance(value[0], list) else value
        else:
            words.append(value)
    return words


def _alike(info, seen: Seen) -> bool:
    """Whether a verb's info is as expected."""
    if isinstance(info, Attended):
        return not info.differs(_outputs(info, seen)).any()
    words = _flat(info)
    return np.array_equal(words, seen.info[: len(words)])


def _outputs(info: Attended, seen: Seen) -> np.ndarray:
    """What `attend` gave, of its words."""
    return np.asarray(seen.info)[: info.out.size].view(np.float32).reshape(info.out.shape)


def _differences(shapes: dict, expected: list[int], words: np.ndarray) -> list[str]:
    """Where flat words differ from the expected ones, by the names of what they are parts of."""
    found, at = [], 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        want = np.array(expected[at : at + size], np.int64).reshape(shape)
        found += same_column(name, want, words[at : at + size].reshape(shape))
        at += size
    return found
