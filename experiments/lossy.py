"""What a lossy tier does to a model: errors that are measured and shown, never hidden."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

import tiercache as tc
from experiments.arms import padded, resume
from experiments.conversation import Tokens
from models.engine import Engine, Report, shared_jit
from models.hybrid_gdn import CHUNK, Apply, Recurrent


class Loss(NamedTuple):
    """One arm beside the control.

    Attributes:
      logit_kl: KL(control || arm) at the first generated token, in nats.
      logit_max_diff: largest difference of two logits there.
      tokens_equal: generated tokens before the first that differs.
      attention_error: per attention layer, relative L2 error of what is read from the restored
        pages by the same queries; None where it was not measured.
    """

    logit_kl: float
    logit_max_diff: float
    tokens_equal: int
    attention_error: tuple[float, ...] | None = None


def loss(report: Report, control: Report) -> Loss:
    """Compares logits and tokens."""
    ours, theirs = (np.asarray(r.first_logits, np.float64) for r in (report, control))
    log_p, log_q = (x - np.logaddexp.reduce(x) for x in (theirs, ours))
    pairs = zip(report.outputs, control.outputs, strict=True)
    differs = [a != b for a, b in pairs]
    return Loss(
        logit_kl=max(0.0, float(np.sum(np.exp(log_p) * (log_p - log_q)))),
        logit_max_diff=float(np.max(np.abs(ours - theirs))),
        tokens_equal=differs.index(True) if any(differs) else len(differs),
    )


def attention_error(
    exact: Engine, lossy: Engine, apply: Apply, prompt: Tokens, num_tokens: int
) -> tuple[float, ...]:
    """Relative L2 error per attention layer of reading a prefix from `lossy`'s copies of it.

    Queries are those that the model asks at the end of the prompt, over exact pages. Both caches
    know the prompt, and neither runs a row; afterwards row 0 of both holds it.

    Args:
      exact, lossy: engines with the prompt in their caches.
      apply: the model.
      prompt: the prompt that was served.
      num_tokens: only pages below this depth are read: those that were restored.
    """
    plans = [resume(engine, prompt) for engine in (exact, lossy)]
    depths = [int(plan.num_pages) * exact.spec.page_size for plan in plans]
    if depths[0] != depths[1] or depths[0] < num_tokens:
        raise RuntimeError(f"resumed at {depths} tokens, not both at one depth past {num_tokens}.")
    tokens = padded(prompt, exact.spec)[depths[0] :][:CHUNK]
    tokens = jnp.asarray(np.resize(tokens, CHUNK))
    count = jnp.int32(min(len(prompt) - depths[0], CHUNK))
    queries = shared_jit(_queries, apply=apply, spec=exact.spec)(
        exact.params, exact.cache, tokens, count
    )
    outputs = [
        shared_jit(_read, spec=engine.spec)(
            engine.cache, queries, count, jnp.int32(num_tokens // engine.spec.page_size)
        )
        for engine in (exact, lossy)
    ]
    return tuple(
        float(np.linalg.norm(b - a) / np.linalg.norm(a))
        for a, b in zip(*(np.asarray(x, np.float64) for x in outputs), strict=True)
    )


def _queries(params, cache: tc.CacheState, tokens, count, *, apply: Apply, spec: tc.CacheSpec):
    """What each attention layer asks of the cache, for `count` tokens that row 0 goes on with."""
    counts = jnp.zeros(spec.max_rows, jnp.int32).at[0].set(count)
    cache, _ = tc.reserve(cache, counts, max_tokens=CHUNK, spec=spec)
    view = tc.view(cache, jnp.zeros(1, jnp.int32), count[None], num_tokens=CHUNK, spec=spec)

    def attend(carry, layer, q, k, v):
        cache, asked = carry
        cache, _ = tc.append(cache, view, layer, k, v, spec=spec)
        return (cache, (*asked, q)), tc.attend(cache, view, layer, q, spec=spec)

    live = Recurrent(*(lax.slice_in_dim(x, 0, 1, axis=1) for x in cache.live))
    out = apply(params, tokens[None], view.lengths, view.counts, live, (cache, ()), attend)
    return jnp.stack(out.cache[1])


def _read(cache: tc.CacheState, queries, count, num_pages, *, spec: tc.CacheSpec):
    """Attention of the queries over row 0's first `num_pages` pages, per layer; float32."""
    view = tc.view(cache, jnp.zeros(1, jnp.int32), count[None], num_tokens=CHUNK, spec=spec)
    within = jnp.arange(spec.max_pages) < num_pages
    view = view._replace(entries=jnp.where(within, view.entries, tc.HOLE))
    outputs = [
        tc.attend(cache, view, layer, queries[layer].astype(jnp.float32), spec=spec)
        for layer in range(spec.num_layers)
    ]
    valid = (jnp.arange(CHUNK) < count)[None, :, None, None]
    return jnp.stack([jnp.where(valid, out, 0) for out in outputs])
