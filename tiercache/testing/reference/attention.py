"""`attend` in float64, over what the reference says that a row holds."""

from typing import NamedTuple

import numpy as np

from pallas_kernels.page_layout import K, V
from tiercache.ids import HOLE
from tiercache.testing.reference.base import Base
from tiercache.testing.reference.storage import Page

# Of a float32 dot product of a few hundred numbers, relative to the sum of their magnitudes.
DOT_ERROR = 3e-6
LARGEST = 1e30  # K and V whose sums do not overflow; formats that saturate can hold larger ones
SMALLEST = 1e-30  # that anybody looks at: denormal numbers may count as zero


class Attended(NamedTuple):
    """What queries give.

    Attributes:
      out: float64, in the shape of the queries; NaN where nobody can know.
      error: how far a sum in float32 may be from it. It grows with the scores, since a weight's
        relative error is the absolute one of its score.
    """

    out: np.ndarray
    error: np.ndarray

    @property
    def num_known(self) -> int:
        """Outputs that are of some use: neither unknown nor of a row without tokens."""
        return int(np.sum(self.error > 0))

    def differs(self, have) -> np.ndarray:
        """Where an output is not this one; what is not a number never is."""
        with np.errstate(invalid="ignore"):
            near = np.abs(np.asarray(have, np.float64) - self.out) <= self.error
        return ~near & ~np.isnan(self.out)


class AttentionVerb(Base):
    def attend(self, row_ids, counts, layer: int, q) -> Attended:
        """q [row, token, q_head, dim]: causal attention of the tokens after each row's last one.

        They are those of the step that `append` has written and `advance` has not yet counted.
        """
        out, error = np.zeros(np.shape(q)), np.zeros(np.shape(q))
        for n, (row_id, count) in enumerate(zip(row_ids, counts, strict=True)):
            row_id, count = int(row_id), int(count)
            for t in range(min(max(count, 0), np.shape(q)[1])):
                length = self.rows[row_id].length if self.row_exists(row_id) else 0
                out[n, t], error[n, t] = self.attention(row_id, length + t + 1, layer, q[n, t])
        return Attended(out, error)

    def attention(self, row_id: int, num_tokens: int, layer: int, q) -> Attended:
        """Dense attention of one token's queries [q_head, dim] over a row's first tokens."""
        k, v, seen = self._keys_and_values(row_id, num_tokens, layer)
        if k is None or v is None:
            nothing = np.full(np.shape(q), 0.0 if not np.any(seen) else np.nan)
            return Attended(nothing, np.zeros(np.shape(q)))
        group = len(q) // len(k)
        k, v = (np.repeat(x.astype(np.float64), group, axis=0) for x in (k, v))
        q = np.asarray(q, np.float64)
        scale = q.shape[-1] ** -0.5
        scores = scale * np.einsum("hd,htd->ht", q, k)
        sums = scale * np.einsum("hd,htd->ht", np.abs(q), np.abs(k))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        relative = np.expm1(np.minimum(2 * DOT_ERROR * sums.max(-1), 60)) + DOT_ERROR
        magnitude = np.einsum("ht,htd->hd", weights, np.abs(v))
        out = np.einsum("ht,htd->hd", weights, v)
        return Attended(out, relative[:, None] * magnitude + SMALLEST)

    def _keys_and_values(self, row_id: int, num_tokens: int, layer: int):
        """(K, V, which tokens are held); None twice if none is, or if one is unknown."""
        entries = self.rows[row_id].entries if self.row_exists(row_id) else []
        size, parts, held = self.spec.page_size, [], []
        for place, entry in enumerate(entries[: -(-num_tokens // size)]):
            offsets = range(min(size, num_tokens - place * size))
            held.append(entry != HOLE)
            if entry == HOLE:
                continue
            page = self.pages[entry] if entry >= 0 else self.slots[-2 - entry]
            if (layer, V) not in page.planes or not page.written.issuperset(offsets):
                return None, None, held
            parts.append([self._plane(page, layer, kv)[:, : len(offsets)] for kv in (K, V)])
        if not parts:
            return None, None, held
        k, v = (np.concatenate(x, axis=1) for x in zip(*parts, strict=True))
        known = all(np.all(np.abs(x) < LARGEST) for x in (k, v))
        return (k, v, held) if known else (None, None, held)

    def _plane(self, page: Page, layer: int, kv: int) -> np.ndarray:
        return self.codecs.decode(page.formats[layer][kv], *page.planes[layer, kv])
