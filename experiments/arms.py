"""One scenario under one arm: requests are served, what is resident is watched, one is measured."""

import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

import tiercache as tc
from experiments.conversation import Script, Tokens
from experiments.residency import Residency, residency
from experiments.setup import Lab
from models.engine import Engine, Report, Request, shared_jit
from pallas_kernels.page_layout import page_to_record
from tiercache.policies import SnapshotPlacement


@dataclasses.dataclass
class Measured:
    """An arm's measured request, and how it got there.

    Attributes:
      arm: its name.
      report: of the measured request.
      resumable_tokens: what should be cached, by the placement policy; 0 with nothing kept.
      kv_tokens: tokens whose pages are in some tier, resumable or not.
      residencies: what was resident after each request.
      counters, traffic: events and bytes of the whole arm.
      counters_measured, traffic_measured: of the measured request alone.
      refusals: what verbs refused on the way, as texts.
      num_kernels: GPU kernels in the program that restores pages; 0 where loops do it.
    """

    arm: str
    report: Report
    resumable_tokens: int = 0
    kv_tokens: int = 0
    residencies: list[Residency] = dataclasses.field(default_factory=list)
    counters: dict[str, int] = dataclasses.field(default_factory=dict)
    traffic: dict[str, int] = dataclasses.field(default_factory=dict)
    counters_measured: dict[str, int] = dataclasses.field(default_factory=dict)
    traffic_measured: dict[str, int] = dataclasses.field(default_factory=dict)
    refusals: list[str] = dataclasses.field(default_factory=list)
    num_kernels: int = 0


@dataclasses.dataclass
class Play:
    """An arm that has served all but the measured request.

    Attributes:
      engine: its engine.
      prompt: the measured prompt: the first one, its answer and what follows.
      resumable_tokens: how deep the placement policy left something to resume `prompt` at.
      residencies: what was resident after each request.
    """

    engine: Engine
    prompt: Tokens
    resumable_tokens: int
    residencies: list[Residency]


def begin(lab: Lab, name: str, script: Script, tick: Callable[[str], None]) -> Play:
    """Serves the conversation's first request with a fresh engine."""
    sizes, engine = lab.sizes, lab.engine(name)
    tick("turn 1")
    first = engine.serve(Request(script.first, max_new=sizes.answer_tokens))
    prompt = (*script.first, *first.outputs, *script.follow)
    resumable = resumable_tokens(
        len(script.first),
        len(first.outputs),
        len(prompt),
        engine.config.placement,
        engine.spec.page_size,
    )
    return Play(engine, prompt, resumable, [residency(engine.cache, prompt, "turn 1")])


def serve_others(lab: Lab, play: Play, script: Script, tick: Callable[[str], None]):
    """Serves the requests in between."""
    for other in script.others:
        tick(other.label)
        play.engine.serve(Request(other.tokens, max_new=lab.sizes.other_answer))
        play.residencies.append(residency(play.engine.cache, play.prompt, other.label))


def pack_idle(play: Play):
    """Moves every idle page to a cold slot, so that the measured request reads all it can there.

    Does nothing where none of the conversation's pages is on the device any more.
    """
    engine = play.engine
    if int(match(engine, play.prompt).num_hot) == 0:
        return
    room = shared_jit(
        tc.make_room, 0, to="cold", snapshots_to=engine.config.snapshots_to, spec=engine.spec
    )
    everything = jnp.int32(engine.spec.num_pages)
    engine.cache, _ = room(engine.cache, everything, jnp.int32(0))
    play.residencies.append(residency(engine.cache, play.prompt, "pack"))


def measure(lab: Lab, name: str, play: Play, tick: Callable[[str], None]) -> Measured:
    """Serves the measured request and takes stock."""
    engine, spec = play.engine, play.engine.spec
    tick("measured")
    plan = match(engine, play.prompt)
    counters, traffic = tc.counter_values(engine.cache), tc.traffic(engine.cache, spec)
    report = engine.serve(measured_request(lab, play))
    play.residencies.append(residency(engine.cache, play.prompt, "measured"))
    after, traffic_after = tc.counter_values(engine.cache), tc.traffic(engine.cache, spec)
    return Measured(
        arm=name,
        report=report,
        resumable_tokens=play.resumable_tokens if name in ("on", "lossy") else 0,
        kv_tokens=int(plan.kv_pages) * spec.page_size,
        residencies=play.residencies,
        counters=after,
        traffic=traffic_after,
        counters_measured={k: after[k] - counters[k] for k in after},
        traffic_measured={k: traffic_after[k] - traffic[k] for k in traffic_after},
        refusals=tc.status_texts(engine.cache.counters.status),
        num_kernels=num_kernels(engine, plan),
    )


def num_kernels(engine: Engine, plan: tc.Plan) -> int:
    """GPU kernels in the program of `rehydrate` as the engine calls it; compiles nothing."""
    rehydrate = shared_jit(tc.rehydrate, 0, cold=engine.config.cold, spec=engine.spec)
    return rehydrate.lower(engine.cache, plan, jnp.int32(0)).as_text().count("gpu.triton")


def measured_request(lab: Lab, play: Play) -> Request:
    """The conversation goes on. Every arm ends a prefill call where `on` resumes: one chunking."""
    return Request(
        play.prompt, max_new=lab.sizes.measured_tokens, split_at=(play.resumable_tokens,)
    )


def control(lab: Lab, play: Play) -> Play:
    """A fresh engine of arm `cold` that is to serve the measured request of `play` alone."""
    return dataclasses.replace(play, engine=lab.engine("cold"), residencies=[])


def resumable_tokens(
    prompt: int, answer: int, measured: int, placement: SnapshotPlacement, page_size: int
) -> int:
    """Where a longer prompt can be resumed after one request, by arithmetic alone.

    Args:
      prompt, answer: tokens of the request and of what it generated. The last one generated is
        never fed to the model, so no state has seen it.
      measured: tokens of the longer prompt; its last is always computed.
      placement: which depths get a snapshot. A branch of an unknown prefix is none.
      page_size: tokens per page.
    """
    held = prompt + answer - 1
    depths = range(page_size, min(held, measured - 1) + 1, page_size)
    last_of_prompt = (prompt - 1) // page_size * page_size
    placed = [
        depth
        for depth in depths
        if (placement.last_page and (depth == last_of_prompt or depth > prompt))
        or (placement.every and depth % placement.every == 0)
    ]
    return max(placed, default=0)


def padded(tokens: Tokens, spec: tc.CacheSpec) -> np.ndarray:
    """A prompt at the width that `match` takes."""
    out = np.zeros(spec.max_tokens, np.int32)
    out[: len(tokens)] = tokens
    return out


def match(engine: Engine, tokens: Tokens) -> tc.Plan:
    """How far an engine's cache knows a prompt."""
    function = shared_jit(tc.match, spec=engine.spec)
    lanes = tc.Namespace().lanes()
    return function(engine.cache, padded(tokens, engine.spec), jnp.int32(len(tokens)), lanes)


def resume(engine: Engine, tokens: Tokens) -> tc.Plan:
    """Makes row 0 of an idle engine hold the cached part of a prompt, and returns the plan."""
    plan, row, config, spec = match(engine, tokens), jnp.int32(0), engine.config, engine.spec
    room = shared_jit(
        tc.make_room, 0, to=config.pages_to, snapshots_to=config.snapshots_to, spec=spec
    )
    rehydrate = shared_jit(tc.rehydrate, 0, cold=config.cold, spec=spec)
    load = shared_jit(tc.load_snapshot, 0, spec=spec)
    engine.cache, pinned = shared_jit(tc.pin, 0)(engine.cache, plan, row)
    pages = -(-len(tokens) // spec.page_size) - int(plan.num_hot)
    pages -= int(plan.num_cold) if config.cold == "share" else 0
    engine.cache, _ = room(engine.cache, jnp.int32(pages), jnp.int32(0))
    engine.cache, back = rehydrate(engine.cache, plan, row)
    engine.cache, loaded = load(engine.cache, plan, row)
    for info in (pinned, back, loaded):
        if int(info.reason):
            raise RuntimeError(f"resuming was refused: {tc.explain(info.reason)}")
    return plan


def fork(lab: Lab, name: str, engine: Engine) -> Engine:
    """An engine whose cache is a copy: states are values, so the two go their own ways."""
    twin = lab.engine(name)
    twin.cache = jax.tree.map(
        lambda x: jax.device_put(x, x.sharding, may_alias=False), engine.cache
    )
    return twin


def records(state: tc.CacheState, page_ids: np.ndarray, *, batch: int = 64) -> Iterator[np.ndarray]:
    """The bytes of some hot pages, codes and scales of all layers, K and V, `batch` at a time."""
    for start in range(0, len(page_ids), batch):
        ids = page_ids[start : start + batch]
        yield np.asarray(_read_pages(state.pages.payload, np.resize(ids, batch)))[: len(ids)]


@jax.jit
def _read_pages(payload, page_ids):
    pages = jax.tree.map(lambda x: x.at[page_ids].get(mode="clip"), payload)
    return jax.vmap(page_to_record)(pages)
