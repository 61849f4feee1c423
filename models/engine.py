"""A serving engine small enough to read: what a request goes through, and nothing else.

admit:  match -> pin -> make room -> rehydrate -> load_snapshot -> prefill the rest -> insert
decode: every row at once, in one jitted call
finish: insert what was generated -> mirror if written through -> release

All decisions are the verbs'. The engine holds the state, picks free rows and measures time.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

import tiercache as tc
from models import decode as loops
from models.hybrid_gdn import CHUNK, Apply
from tiercache.policies import SnapshotPlacement


@dataclasses.dataclass(frozen=True)
class Config:
    """How an engine serves.

    Attributes:
      chunk: tokens per prefill call, a multiple of 64 and of the page size. Chunks end at its
        multiples, wherever a request resumes, so that results depend on positions only.
      placement: where snapshots are taken.
      snapshots_per_chunk: snapshots that one prefill call can save.
      pages_to: where pages go when room is needed.
      snapshots_to: where snapshots go.
      write: "back" leaves copies to eviction; "through" mirrors what is inserted at once.
      cold: what a request does with pages that only a cold slot holds, as in `rehydrate`.
      decode_steps: tokens per decode call.
    """

    chunk: int = 256
    placement: SnapshotPlacement = SnapshotPlacement()
    snapshots_per_chunk: int = 2
    pages_to: Literal["host", "cold", "drop"] = "host"
    snapshots_to: Literal["host", "drop"] = "host"
    write: Literal["back", "through"] = "back"
    cold: Literal["hot", "share"] = "share"
    decode_steps: int = 256


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt.

    Attributes:
      tokens: the prompt's token ids.
      max_new: tokens to generate at most.
      temperature, top_p: of the sampler; temperature 0 is greedy.
      stop: token ids that end the answer.
      namespace: whose prefixes may be shared.
      split_at: further prompt positions at which a prefill call ends; a cold run that is to equal
        a resumed one bit for bit ends one where the other began.
    """

    tokens: tuple[int, ...]
    max_new: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[int, ...] = ()
    namespace: tc.Namespace = tc.Namespace()
    split_at: tuple[int, ...] = ()


@dataclasses.dataclass
class Report:
    """What happened to a request.

    Attributes:
      prompt_tokens, cached_tokens: of the prompt, and of it those that were not computed.
      from_hot, from_host, from_cold: pages of the cached part by the tier they came from.
      snapshot: "device", "host" or "none".
      cut: why no more was cached.
      match_s, restore_s, prefill_s, ttft_s: seconds of each phase, and to the first token.
      outputs: generated token ids.
      first_logits: at the first generated token.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    from_hot: int = 0
    from_host: int = 0
    from_cold: int = 0
    snapshot: str = "none"
    cut: str = ""
    match_s: float = 0.0
    restore_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    outputs: list[int] = dataclasses.field(default_factory=list)
    first_logits: np.ndarray | None = None


class Refused(RuntimeError):
    """A request that cannot be served now; everything it took is given back."""


class Engine:
    """Serves requests with one model and one cache. See the module's docstring."""

    def __init__(self, apply: Apply, params, spec: tc.CacheSpec, config: Config, *, num_stop=1):
        if config.chunk % CHUNK or config.chunk % spec.page_size:
            raise ValueError(
                f"chunk={config.chunk} is not a multiple of {CHUNK} and page_size={spec.page_size}."
            )
        if config.write == "through" and not spec.num_host_pages:
            raise ValueError(
                "write='through' with num_host_pages=0: there is nowhere to mirror to."
            )
        config.placement.check(spec.page_size)
        self.spec, self.config, self.params = spec, config, params
        self.cache = tc.init_state(spec)
        self.rows = loops.init_rows(spec, num_stop=num_stop)
        self.reports: dict[int, Report] = {}
        self._requests: dict[int, Request] = {}
        self._jit = _Jitted(apply, spec, config)

    def serve(self, request: Request) -> Report:
        """One request from admission to release."""
        row_id = self.admit(request)
        self.decode()
        return self.finish(row_id)

    def admit(self, request: Request) -> int:
        """Starts a request in a free row and computes its prompt; returns the row.

        Raises:
          ValueError: the prompt with its answer is longer than `max_pages` allow, or empty; or
            more stop tokens than `num_stop`.
          Refused: no row, or no room even after eviction. Nothing is kept of the request.
        """
        length = len(request.tokens)
        if not 1 <= length <= self.spec.max_tokens - request.max_new:
            raise ValueError(
                f"a prompt of {length} tokens and max_new={request.max_new} do not fit into "
                f"max_pages={self.spec.max_pages} of {self.spec.page_size} tokens."
            )
        num_stop = self.rows.stop.shape[1]
        if len(request.stop) > num_stop:
            raise ValueError(f"{len(request.stop)} stop tokens, but num_stop={num_stop}.")
        free = [row for row in range(self.spec.max_rows) if row not in self._requests]
        if not free:
            raise Refused(f"all {self.spec.max_rows} rows run.")
        row_id = free[0]
        report = Report(prompt_tokens=length)
        tokens = np.zeros(self.spec.max_tokens + 1, np.int32)
        tokens[:length] = request.tokens
        self._requests[row_id], self.reports[row_id] = request, report
        try:
            start = time.perf_counter()
            plan = self._match(tokens, length, request, report)
            self._restore(plan, row_id, length, report)
            logits = self._prefill(plan, row_id, tokens, length, request, report)
            self._start(row_id, tokens, length, logits, request, report)
            report.ttft_s = time.perf_counter() - start
            self._insert(row_id, request)
        except Refused:
            self._drop(row_id)
            raise
        return row_id

    def decode(self, num_steps: int | None = None):
        """Runs the active rows until all have ended, or `num_steps` further tokens each.

        Raises:
          Refused: a row needs a page, and nothing can be evicted for it.
        """
        left = self.spec.max_tokens if num_steps is None else num_steps
        self._make_room(0, len(self._requests))  # each row keeps one snapshot while it decodes
        while left > 0 and bool(jnp.any(self.rows.active)):
            self.cache, self.rows, taken = self._jit.decode(
                self.params,
                self.cache,
                self.rows,
                jnp.int32(min(left, self.config.decode_steps)),
            )
            left -= int(taken)
            waiting = np.asarray(self.rows.active & self.rows.stalled)
            if waiting.any():
                room = self._make_room(self.spec.max_rows, 0)
                runs = np.asarray(self.rows.active) & ~waiting
                if int(room.pages) == 0 and not runs.any():
                    raise Refused(tc.explain(tc.Reason.PAGES_FULL))

    def finish(self, row_id: int) -> Report:
        """Publishes what a row holds, ends it, and returns its report."""
        request, report = self._requests[row_id], self.reports[row_id]
        length = int(self.cache.table.lengths[row_id])
        generated = request.max_new - int(self.rows.remaining[row_id])
        first = report.prompt_tokens
        tokens = np.asarray(self.rows.tokens[row_id])
        report.outputs = tokens[first : first + generated].tolist()
        if length > first:
            self._insert(row_id, request)
        self._drop(row_id)
        return report

    def _match(self, tokens, length: int, request: Request, report: Report) -> tc.Plan:
        start = time.perf_counter()
        plan = self._jit.match(
            self.cache, tokens[:-1], jnp.int32(length), request.namespace.lanes()
        )
        jax.block_until_ready(plan)
        report.match_s = time.perf_counter() - start
        report.cut = tc.prefix.CUT_TEXTS[int(plan.cut)]
        return plan

    def _restore(self, plan: tc.Plan, row_id: int, length: int, report: Report):
        """Brings the cached part back; the pages of the rest are made free in the same stroke."""
        start = time.perf_counter()
        row = jnp.int32(row_id)
        self.cache, pinned = self._jit.pin(self.cache, plan, row)
        self._accept(pinned.reason)
        pages = -(-length // self.spec.page_size) - int(plan.num_hot)
        if self.config.cold == "share":
            pages -= int(plan.num_cold)
        self._make_room(pages, 0)
        self.cache, back = self._jit.rehydrate(self.cache, plan, row)
        self._accept(back.reason)
        self.cache, loaded = self._jit.load_snapshot(self.cache, plan, row)
        self._accept(loaded.reason)
        jax.block_until_ready(self.cache)
        report.restore_s = time.perf_counter() - start
        report.cached_tokens = int(loaded.tokens)
        report.from_hot, report.from_host = int(back.num_hot), int(back.num_host)
        report.from_cold = int(back.num_cold)
        report.snapshot = ("none", "device", "host")[int(loaded.source)]

    def _prefill(self, plan, row_id: int, tokens, length: int, request: Request, report: Report):
        start = time.perf_counter()
        depths = np.asarray(self._jit.boundaries(plan, jnp.int32(length)).tokens)
        depths = depths[depths > 0]
        position, logits = report.cached_tokens, None
        while position < length:
            end = self._chunk_end(position, length, depths, request.split_at)
            inside = depths[(depths > position) & (depths <= end)]
            inside = inside[-self.config.snapshots_per_chunk :]
            boundaries = np.full(self.config.snapshots_per_chunk, -1, np.int32)
            boundaries[: len(inside)] = inside
            self._make_room(0, len(inside))
            chunk = np.zeros(self.config.chunk, np.int32)
            chunk[: end - position] = tokens[position:end]
            self.cache, info = self._jit.prefill(
                self.params, self.cache, jnp.int32(row_id), chunk, jnp.int32(end - position),
                boundaries,
            )  # fmt: skip
            self._accept(info.reason)
            position, logits = end, info.logits
        report.first_logits = np.asarray(logits)
        report.prefill_s = time.perf_counter() - start
        return logits

    def _chunk_end(self, position: int, length: int, depths, split_at) -> int:
        """Where the prefill call that starts at `position` ends."""
        end = min(length, (position // self.config.chunk + 1) * self.config.chunk)
        uneven = [int(d) for d in depths if (d - position) % CHUNK]
        return min([end, *(s for s in (*uneven, *split_at) if position < s < end)])

    def _start(self, row_id: int, tokens, length: int, logits, request: Request, report: Report):
        stop = np.full(self.rows.stop.shape[1], -1, np.int32)
        stop[: len(request.stop)] = request.stop
        self.rows, token = self._jit.start(
            self.rows, jnp.int32(row_id), tokens, jnp.int32(length), logits,
            jnp.int32(request.max_new), jnp.float32(request.temperature),
            jnp.float32(request.top_p), stop,
        )  # fmt: skip
        report.outputs = [int(token)]

    def _insert(self, row_id: int, request: Request):
        row = jnp.int32(row_id)
        tokens = self.rows.tokens[row_id, :-1]
        self.cache, _ = self._jit.insert(self.cache, row, tokens, request.namespace.lanes())
        if self.config.write == "through":
            self.cache, _ = self._jit.mirror(self.cache, row)

    def _make_room(self, pages: int, snapshots: int) -> tc.RoomInfo:
        self.cache, room = self._jit.make_room(self.cache, jnp.int32(pages), jnp.int32(snapshots))
        return room

    def _drop(self, row_id: int):
        self.cache, _ = self._jit.release(self.cache, jnp.int32(row_id))
        self.rows = self.rows._replace(active=self.rows.active.at[row_id].set(False))
        self._requests.pop(row_id, None)
        self.reports.pop(row_id, None)

    def _accept(self, reason):
        if int(reason):
            raise Refused(tc.explain(reason))


class _Jitted:
    """The verbs, jitted for one spec; those that change the cache take it as a donation."""

    def __init__(self, apply: Apply, spec: tc.CacheSpec, config: Config):
        self.match = shared_jit(tc.match, spec=spec)
        self.pin = shared_jit(tc.pin, 0)
        self.rehydrate = shared_jit(tc.rehydrate, 0, cold=config.cold, spec=spec)
        self.load_snapshot = shared_jit(tc.load_snapshot, 0, spec=spec)
        self.insert = shared_jit(tc.insert, 0, spec=spec)
        self.mirror = shared_jit(tc.mirror, 0, most=spec.max_pages, spec=spec)
        self.release = shared_jit(tc.release, 0, spec=spec)
        self.make_room = shared_jit(
            tc.make_room, 0, to=config.pages_to, snapshots_to=config.snapshots_to, spec=spec
        )
        self.boundaries = shared_jit(
            tc.snapshot_boundaries,
            placement=config.placement,
            page_size=spec.page_size,
            most=spec.max_pages,
        )
        self.prefill = shared_jit(loops.prefill_chunk, 1, apply=apply, spec=spec)
        self.start = shared_jit(loops.start_row, 0)
        self.decode = shared_jit(
            loops.decode, 1, 2, apply=apply, placement=config.placement, spec=spec
        )


@functools.lru_cache(maxsize=256)
def shared_jit(function: Callable, *donate: int, **static):
    """`function` jitted, its static arguments bound: the same jit for the same arguments.

    Engines of one spec so compile once, however their policies differ elsewhere.
    """
    return jax.jit(functools.partial(function, **static), donate_argnums=donate)
