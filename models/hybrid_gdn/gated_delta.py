"""The gated delta rule and its convolution, as pure functions (Gated DeltaNet, arXiv 2412.06464).

One head keeps a matrix S of `[dk, dv]`. Each token decays it, replaces what its key recalls by
its value, and reads it with its query:

    S ← exp(g) S;   S ← S + k ⊗ β (v − Sᵀ k);   o = Sᵀ q

A token with `β == 0` and `g == 0` is idle: it leaves S as it is, bit for bit. This is how padding
is told apart from text. Everything here is float32.
"""

from typing import NamedTuple

import jax
from jax import lax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int32

from models.hybrid_gdn.config import CHUNK


class ChunkOutput(NamedTuple):
    """What a prefill by chunks returns.

    Attributes:
      out: what each token's query read.
      state: S after the last token.
      boundary_states: S after `boundaries[i]` tokens, or zeros; None if none were asked for.
    """

    out: Float[Array, "row token head dv"]
    state: Float[Array, "row head dk dv"]
    boundary_states: Float[Array, "k row head dk dv"] | None


def recurrent_gated_delta_step(
    q: Float[Array, "row head dk"],
    k: Float[Array, "row head dk"],
    v: Float[Array, "row head dv"],
    g: Float[Array, "row head"],
    beta: Float[Array, "row head"],
    state: Float[Array, "row head dk dv"],
) -> tuple[Float[Array, "row head dv"], Float[Array, "row head dk dv"]]:
    """Advances every row by one token.

    Args:
      q: queries, normalised and scaled by `dk ** -0.5`; float32, as are all the others.
      k: keys, normalised to length one.
      v: values.
      g: log decay, at most 0.
      beta: write strength in [0, 1].
      state: S before the token.

    Returns:
      The read-out, and S after the token. A row and head with `beta == 0` and `g == 0` keeps
      its S bit for bit.
    """
    decayed = state * jnp.exp(g)[..., None, None]
    recalled = jnp.sum(decayed * k[..., None], axis=-2)
    change = (v - recalled) * beta[..., None]
    updated = decayed + k[..., None] * change[..., None, :]
    idle = (g == 0) & (beta == 0)
    state = jnp.where(idle[..., None, None], state, updated)
    return jnp.sum(state * q[..., None], axis=-2), state


class _Chunk(NamedTuple):
    """What the scan over chunks needs of one chunk; leaves `[row, head, …]`."""

    q_decayed: Array  # [.., CHUNK, dk]  exp(G_i) q_i
    k_to_end: Array  # [.., CHUNK, dk]  exp(G_last − G_i) k_i
    scores: Array  # [.., CHUNK, CHUNK]  causal q_i·k_j exp(G_i − G_j)
    values: Array  # [.., CHUNK, dv]  T β v
    recalls: Array  # [.., CHUNK, dk]  T β exp(G) k
    decay: Array  # [..]  exp(G_last)
    idle: Array  # [..]  no token of the chunk does anything


def _prepare(q: Array, k: Array, v: Array, g: Array, beta: Array) -> _Chunk:
    """Everything of the chunks that does not need the state. Leaves `[..., CHUNK, dim]`.

    Within a chunk the writes form a unit lower triangular system (the WY form): with
    `A_ij = β_i k_i·k_j exp(G_i − G_j)` below the diagonal and G the running sum of g, what is
    written is `T β (v − exp(G) k S)` with `T = (I + A)⁻¹`.
    """
    total = jnp.cumsum(g, axis=-1)
    causal = jnp.tril(jnp.ones((CHUNK, CHUNK), bool))
    gap = jnp.where(causal, total[..., :, None] - total[..., None, :], -jnp.inf)
    decay = jnp.exp(gap)  # 0 above the diagonal
    k_beta = k * beta[..., None]
    growth = jnp.exp(total)[..., None]
    inverse = _unit_lower_inverse(_matmul(k_beta, jnp.swapaxes(k, -1, -2)) * decay)
    return _Chunk(
        q_decayed=q * growth,
        k_to_end=k * jnp.exp(total[..., -1:] - total)[..., None],
        scores=_matmul(q, jnp.swapaxes(k, -1, -2)) * decay,
        values=_matmul(inverse, v * beta[..., None]),
        recalls=_matmul(inverse, k_beta * growth),
        decay=jnp.exp(total[..., -1]),
        idle=jnp.all((g == 0) & (beta == 0), axis=-1),
    )


def _matmul(a: Array, b: Array) -> Array:
    # TF32 products would make chunks and single steps disagree.
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _unit_lower_inverse(a: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """`(I + A)⁻¹` for the part of A below the diagonal; n is a power of two.

    Blocks on the diagonal double in size: the inverse of `[[B, 0], [C, D]]` has `−D⁻¹ C B⁻¹` in
    its corner, and all corners of one size come out of two full products. As stable as forward
    substitution, unlike a series in powers of A, which loses all digits when keys repeat; and
    without a BLAS call, whose threads fight with XLA's on a busy CPU.
    """
    n = a.shape[-1]
    rows, columns = jnp.arange(n)[:, None], jnp.arange(n)
    inverse = jnp.broadcast_to(jnp.eye(n, dtype=a.dtype), a.shape)
    size = 1
    while size < n:
        corner = (rows // size == columns // size + 1) & (columns // size % 2 == 0)
        below = jnp.where(corner, a, 0)
        # At size 1 the inverse is still the identity.
        change = below if size == 1 else _matmul(_matmul(inverse, below), inverse)
        inverse -= change
        size *= 2
    return inverse


def _advance(state: Array, chunk: _Chunk) -> tuple[Array, Array]:
    """One chunk's read-outs `[row, head, CHUNK, dv]`, and S after it."""
    written = chunk.values - _matmul(chunk.recalls, state)
    out = _matmul(chunk.q_decayed, state) + _matmul(chunk.scores, written)
    grown = state * chunk.decay[..., None, None]
    grown += _matmul(jnp.swapaxes(chunk.k_to_end, -1, -2), written)
    return jnp.where(chunk.idle[..., None, None], state, grown), out


def chunk_gated_delta_rule(
    q: Float[Array, "row token head dk"],
    k: Float[Array, "row token head dk"],
    v: Float[Array, "row token head dv"],
    g: Float[Array, "row token head"],
    beta: Float[Array, "row token head"],
    state: Float[Array, "row head dk dv"],
    *,
    boundaries: Int32[Array, "k"] | None = None,
) -> ChunkOutput:
    """Advances every row by `token` tokens, in chunks of 64.

    Equal to `token` calls of `recurrent_gated_delta_step` but for rounding. Only the states at
    `boundaries` are kept, in one buffer that the scan over chunks carries.

    Args:
      q: queries, normalised and scaled by `dk ** -0.5`; float32, as are all the others.
      k: keys, normalised to length one.
      v: values.
      g: log decay, at most 0; 0 at idle tokens.
      beta: write strength in [0, 1]; 0 at idle tokens.
      state: S before the first token.
      boundaries: token offsets whose S is handed out; traced. Multiples of 64 in (0, token];
        any other value gives zeros. Values may repeat.

    Raises:
      ValueError: while tracing, if `token` is not a positive multiple of 64.
    """
    num_rows, num_tokens, num_heads, _ = q.shape
    if num_tokens % CHUNK or not num_tokens:
        raise ValueError(f"token={num_tokens} is not a positive multiple of {CHUNK}.")
    num_chunks = num_tokens // CHUNK

    def split(x):  # [row, token, head, …] → [chunk, row, head, CHUNK, …]
        x = x.reshape(num_rows, num_chunks, CHUNK, num_heads, *x.shape[3:])
        return jnp.moveaxis(x, (1, 3), (0, 2))

    chunks = _prepare(*map(split, (q, k, v, g, beta)))
    if boundaries is None:
        state, out = lax.scan(_advance, state, chunks)
        kept = None
    else:
        state, out, kept = _scan_with_boundaries(state, chunks, boundaries)
    out = jnp.moveaxis(out, (0, 2), (1, 3)).reshape(num_rows, num_tokens, num_heads, -1)
    return ChunkOutput(out=out, state=state, boundary_states=kept)


def _scan_with_boundaries(
    state: Array, chunks: _Chunk, boundaries: Array
) -> tuple[Array, Array, Array]:
    """Scans the chunks; S after a boundary goes to that boundary's slot of a carried buffer.

    Chunks that end at no boundary write to one slot more (the trash slot), so that each step
    writes one S, however many boundaries there are.
    """
    (num_boundaries,) = boundaries.shape
    num_chunks = chunks.decay.shape[0]

    def body(carry, item):
        state, kept = carry
        end, chunk = item
        state, out = _advance(state, chunk)
        wanted = boundaries == end
        slot = jnp.where(jnp.any(wanted), jnp.argmax(wanted), num_boundaries)
        return (state, lax.dynamic_update_index_in_dim(kept, state, slot, 0)), out

    ends = jnp.arange(1, num_chunks + 1, dtype=jnp.int32) * CHUNK
    kept = jnp.zeros((num_boundaries + 1, *state.shape), state.dtype)
    (state, kept), out = lax.scan(body, (state, kept), (ends, chunks))
    # A repeated boundary was written to its first slot only; what was never written is zeros.
    first_slots = jnp.argmax(boundaries[:, None] == boundaries[None, :], axis=1)
    return state, out, kept[first_slots]


def is_boundary(boundaries: Int32[Array, "k"], num_tokens: int) -> Array:
    """Which offsets are multiples of 64 in (0, num_tokens]."""
    return (boundaries > 0) & (boundaries <= num_tokens) & (boundaries % CHUNK == 0)


def causal_conv(
    x: Float[Array, "row token channel"],
    state: Float[Array, "row tap channel"],
    weight: Float[Array, "kernel channel"],
) -> tuple[Float[Array, "row token channel"], Float[Array, "row extended channel"]]:
    """Causal depthwise convolution and SiLU, continuing from the last `kernel - 1` inputs.

    Args:
      x: inputs; a token sees itself and the `kernel - 1` before it.
      state: the inputs just before `x`, oldest first.
      weight: taps, oldest first. No bias.

    Returns:
      The activations in `x.dtype` (computed in float32), and `state` and `x` joined along the
      token axis, `kernel - 1 + token` long: `conv_state` cuts the next state from it.
    """
    (num_tokens, kernel) = x.shape[1], weight.shape[0]
    joined = jnp.concatenate([state.astype(x.dtype), x], axis=1)
    weight = weight.astype(jnp.float32)
    total = sum(
        joined[:, tap : tap + num_tokens].astype(jnp.float32) * weight[tap] for tap in range(kernel)
    )
    return jax.nn.silu(total).astype(x.dtype), joined


def conv_state(
    joined: Float[Array, "row extended channel"], counts: Int32[Array, "row"], kernel: int
) -> Float[Array, "row tap channel"]:
    """The last `kernel - 1` inputs after `counts[row]` tokens; a count of 0 gives the old state.

    Args:
      joined: second result of `causal_conv`.
      counts: tokens taken, in [0, token]; clamped to that range.
      kernel: taps of the convolution.
    """

    def cut(row, count):
        return lax.dynamic_slice_in_dim(row, count, kernel - 1, axis=0)

    return jax.vmap(cut)(joined, jnp.maximum(counts, 0))
