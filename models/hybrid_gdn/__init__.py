"""Hybrid decoders of the Qwen3-Next / Qwen3.5 family: gated attention and Gated DeltaNet."""

from models.hybrid_gdn.attention import AttendFn, Cache
from models.hybrid_gdn.config import (
    CHUNK,
    HybridConfig,
    qwen3_5_27b,
    qwen3_next_80b_a3b,
    small,
    tiny,
)
from models.hybrid_gdn.model import (
    Apply,
    HybridGDN,
    Output,
    Recurrent,
    functional,
    init_recurrent,
    recurrent_leaves,
)

__all__ = [
    "CHUNK",
    "Apply",
    "AttendFn",
    "Cache",
    "HybridConfig",
    "HybridGDN",
    "Output",
    "Recurrent",
    "functional",
    "init_recurrent",
    "qwen3_5_27b",
    "qwen3_next_80b_a3b",
    "recurrent_leaves",
    "small",
    "tiny",
]
