"""Prefill of one chunk and the decode loop: the jitted, donated functions that serve a model.

Both take the whole cache and return it. Everything that happens per token happens inside: pages
are reserved, K and V appended, old pages retired, snapshots taken, tokens sampled, rows stopped.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, Key

import tiercache as tc
from models.hybrid_gdn import CHUNK, Apply, Output, Recurrent
from models.sampling import sample
from pallas_kernels.banks import default_device
from tiercache.policies import SnapshotPlacement, decode_boundaries


class Rows(NamedTuple):
    """The running sequences beside the cache.

    Attributes:
      tokens: everything a row holds, prompt first; `[lengths[row]]` is the next one to feed.
      active: rows that decode.
      remaining: tokens that each row may still sample.
      prompt: tokens of each row's prompt.
      temperature, top_p: of the sampler; temperature 0 is greedy.
      stop: tokens that end a row; -1 for none.
      stalled: rows that wait for a page: `reserve` has refused them.
      key: for the sampler.
    """

    tokens: Int32[Array, "row token"]
    active: Bool[Array, "row"]
    remaining: Int32[Array, "row"]
    prompt: Int32[Array, "row"]
    temperature: Float32[Array, "row"]
    top_p: Float32[Array, "row"]
    stop: Int32[Array, "row stop"]
    stalled: Bool[Array, "row"]
    key: Key[Array, ""]


def init_rows(spec: tc.CacheSpec, *, num_stop: int = 1, seed: int = 0) -> Rows:
    """No row runs. Committed to the device, as later states are, so that one compile serves all."""
    rows = spec.max_rows
    empty = Rows(
        tokens=jnp.zeros((rows, spec.max_tokens + 1), jnp.int32),
        active=jnp.zeros(rows, bool),
        remaining=jnp.zeros(rows, jnp.int32),
        prompt=jnp.zeros(rows, jnp.int32),
        temperature=jnp.zeros(rows),
        top_p=jnp.ones(rows),
        stop=jnp.full((rows, num_stop), -1, jnp.int32),
        stalled=jnp.zeros(rows, bool),
        key=jax.random.key(seed),
    )
    return jax.device_put(empty, default_device())


def attend_fn(view: tc.View, spec: tc.CacheSpec):
    """The model's `attend`: appends a layer's K and V to the cache and reads all of the row."""

    def attend(cache: tc.CacheState, layer: int, q, k, v):
        cache, _ = tc.append(cache, view, layer, k, v, spec=spec)
        return cache, tc.attend(cache, view, layer, q, spec=spec)

    return attend


class PrefillInfo(NamedTuple):
    """What a chunk did.

    Attributes:
      reason: `Reason` of `reserve`; the chunk ran only if it is `OK`.
      logits: after the chunk's last valid token.
      snapshots: `Reason` of each boundary's `save_snapshot`.
    """

    reason: Int32[Array, ""]
    logits: Float32[Array, "vocab"]
    snapshots: Int32[Array, "k"]


def prefill_chunk(
    params,
    cache: tc.CacheState,
    row_id: Int32[Array, ""],
    tokens: Int32[Array, "chunk"],
    count: Int32[Array, ""],
    boundaries: Int32[Array, "k"],
    *,
    apply: Apply,
    spec: tc.CacheSpec,
) -> tuple[tc.CacheState, PrefillInfo]:
    """Runs `count` tokens of one row through the model, over everything that the row holds.

    Args:
      params: weights, for `apply`.
      cache: the cache; donate it.
      row_id: the row.
      tokens: the chunk, padded; its width is the static bucket.
      count: valid tokens.
      boundaries: depths in tokens, in the whole sequence, to save a snapshot at. Those count that
        lie at the chunk's end, or a multiple of 64 tokens after its start; others are left out.
      apply: of `hybrid_gdn.functional`; static.
      spec: the geometry; static.
    """
    (width,) = tokens.shape
    rows = jnp.zeros(spec.max_rows, jnp.int32)
    cache, reserved = tc.reserve(cache, rows.at[row_id].set(count), max_tokens=width, spec=spec)
    reason = reserved.reason[row_id]
    count = jnp.where(reason == tc.Reason.OK, count, 0)
    view = tc.view(cache, row_id[None], count[None], num_tokens=width, spec=spec)
    start = view.lengths[0]
    offsets = boundaries - start
    inside = (offsets > 0) & (offsets <= count)
    offsets = jnp.where(inside & ((offsets % CHUNK == 0) | (offsets == count)), offsets, -1)

    live = Recurrent(*(lax.dynamic_slice_in_dim(x, row_id, 1, axis=1) for x in cache.live))
    out = apply(
        params, tokens[None], view.lengths, view.counts, live, cache, attend_fn(view, spec),
        boundaries=offsets,
    )  # fmt: skip
    cache = out.cache._replace(
        live=tuple(
            lax.dynamic_update_slice_in_dim(x, new, row_id, axis=1)
            for x, new in zip(out.cache.live, out.recurrent, strict=True)
        )
    )
    cache, _ = tc.advance(cache, rows.at[row_id].set(count), spec=spec)
    saved = jnp.zeros(boundaries.shape, jnp.int32)
    if spec.num_snapshots:
        cache, info = tc.save_snapshot(
            cache,
            jnp.where(offsets > 0, row_id, tc.NO_ROW),
            jnp.where(offsets > 0, start + offsets, 0),
            _states_at(offsets, count, out),
            spec=spec,
        )
        saved = info.reason
    return cache, PrefillInfo(reason, out.logits[0], saved)


def _states_at(offsets: Int32[Array, "k"], count: Int32[Array, ""], out: Output):
    """The recurrent leaves [k, layer, ...] at offsets of a chunk with one row."""
    at_end = (offsets == count)[:, None]

    def pick(inner, last):
        return jnp.where(at_end.reshape(-1, *[1] * (last.ndim - 1)), last[:, 0], inner[:, :, 0])

    assert out.boundary_states is not None
    return tuple(map(pick, out.boundary_states, out.recurrent))


def start_row(
    rows: Rows,
    row_id: Int32[Array, ""],
    tokens: Int32[Array, "token"],
    length: Int32[Array, ""],
    logits: Float32[Array, "vocab"],
    max_new: Int32[Array, ""],
    temperature: Float32[Array, ""],
    top_p: Float32[Array, ""],
    stop: Int32[Array, "stop"],
) -> tuple[Rows, Int32[Array, ""]]:
    """Sets a row decoding after its prompt: (rows, the first sampled token)."""
    key, draw = jax.random.split(rows.key)
    token = sample(logits[None], draw, temperature=temperature[None], top_p=top_p[None])[0]
    ends = jnp.any(stop == token) | (max_new <= 1)
    return rows._replace(
        tokens=rows.tokens.at[row_id].set(tokens.at[length].set(token)),
        active=rows.active.at[row_id].set(~ends),
        remaining=rows.remaining.at[row_id].set(max_new - 1),
        prompt=rows.prompt.at[row_id].set(length),
        temperature=rows.temperature.at[row_id].set(temperature),
        top_p=rows.top_p.at[row_id].set(top_p),
        stop=rows.stop.at[row_id].set(stop),
        stalled=rows.stalled.at[row_id].set(False),
        key=key,
    ), token


def decode(
    params,
    cache: tc.CacheState,
    rows: Rows,
    num_steps: Int32[Array, ""],
    *,
    apply: Apply,
    placement: SnapshotPlacement,
    spec: tc.CacheSpec,
) -> tuple[tc.CacheState, Rows, Int32[Array, ""]]:
    """Decodes all active rows, up to `num_steps` tokens each, in one call.

    Ends early when no row is active, or when a row is refused a page (`rows.stalled`): make room
    and call again; nothing is lost. Donate `cache` and `rows`.

    Args:
      params: weights, for `apply`.
      cache: the cache.
      rows: the running sequences.
      num_steps: steps at most.
      apply: of `hybrid_gdn.functional`; static.
      placement: where snapshots are taken; static.
      spec: the geometry; static. With `keep_tokens`, old pages are retired inside the loop.

    Returns:
      (cache, rows, steps taken).
    """

    def go_on(carry):
        _, rows, step = carry
        return (step < num_steps) & jnp.any(rows.active) & ~jnp.any(rows.stalled)

    def body(carry):
        cache, rows, step = carry
        cache, rows = decode_step(params, cache, rows, apply=apply, placement=placement, spec=spec)
        return cache, rows, step + 1

    rows = rows._replace(stalled=jnp.zeros_like(rows.stalled))
    return lax.while_loop(go_on, body, (cache, rows, jnp.int32(0)))


def decode_step(
    params,
    cache: tc.CacheState,
    rows: Rows,
    *,
    apply: Apply,
    placement: SnapshotPlacement,
    spec: tc.CacheSpec,
) -> tuple[tc.CacheState, Rows]:
    """One token of every active row that gets its page; the others keep all they have."""
    all_rows = jnp.arange(spec.max_rows, dtype=jnp.int32)
    cache, reserved = tc.reserve(cache, rows.active.astype(jnp.int32), max_tokens=1, spec=spec)
    runs = rows.active & reserved.granted
    counts = runs.astype(jnp.int32)
    view = tc.view(cache, all_rows, counts, num_tokens=1, spec=spec)
    tokens = jnp.take_along_axis(rows.tokens, view.lengths[:, None], axis=1)
    out = apply(
        params, tokens, view.lengths, counts, Recurrent(*cache.live), cache, attend_fn(view, spec)
    )
    # The last layer reads the cold bank and `retire` writes it: unless one waits for the other, XLA
    # keeps both versions, and each token copies the bank.
    cache, logits = lax.optimization_barrier((out.cache, out.logits))
    cache = cache._replace(live=tuple(out.recurrent))
    cache, _ = tc.advance(cache, counts, spec=spec)
    if spec.num_snapshots:
        due, replaces = decode_boundaries(
            cache.table.lengths, rows.prompt, placement, page_size=spec.page_size
        )
        cache, _ = tc.save_snapshot(
            cache,
            jnp.where(runs & due, all_rows, tc.NO_ROW),
            cache.table.lengths,
            replaces=replaces,
            spec=spec,
        )
    if spec.keep_tokens is not None:
        cache, _ = tc.retire(cache, most=spec.max_rows, spec=spec)
    return cache, _take_sample(rows, logits, runs, cache.table.lengths)


def _take_sample(rows: Rows, logits, runs, lengths) -> Rows:
    key, draw = jax.random.split(rows.key)
    token = sample(logits, draw, temperature=rows.temperature, top_p=rows.top_p)
    place = jnp.where(runs, lengths, rows.tokens.shape[1])
    all_rows = jnp.arange(runs.shape[0])
    ends = jnp.any(rows.stop == token[:, None], axis=1) | (rows.remaining <= 1)
    return rows._replace(
        tokens=rows.tokens.at[all_rows, place].set(token, mode="drop"),
        active=rows.active & ~(runs & ends),
        remaining=rows.remaining - runs,
        stalled=rows.active & ~runs,
        key=key,
    )
