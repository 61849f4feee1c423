"""Who may share a prefix with whom."""

import dataclasses
import hashlib
from typing import Final

import numpy as np
from jaxtyping import UInt32

NUM_LANES: Final = 16
_LANES_PER_FIELD: Final = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Namespace:
    """What must agree before two prompts may share pages; each field is a part of its own.

    Fields are hashed apart and never joined, so `adapter="x"` and `tenant="x"` differ, and so do
    `("ab", "c")` and `("a", "bc")`.

    Attributes:
      tenant: salt of the owner.
      adapter: adapter (LoRA) name or digest.
      weights: fingerprint of the model weights.
      codec: how pages are stored, where that changes what a model sees.
    """

    tenant: str = ""
    adapter: str = ""
    weights: str = ""
    codec: str = ""

    def lanes(self) -> UInt32[np.ndarray, "16"]:
        """The namespace as an array: 128 bits of SHA-256 for each of the four fields in turn."""
        fields = (self.tenant, self.adapter, self.weights, self.codec)
        digests = (hashlib.sha256(field.encode()).digest() for field in fields)
        size = 4 * _LANES_PER_FIELD
        joined = b"".join(digest[:size] for digest in digests)
        return np.frombuffer(joined, dtype="<u4").astype(np.uint32)
