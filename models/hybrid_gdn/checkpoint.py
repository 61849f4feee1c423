"""Published weights' layouts, where they differ from ours by more than a transpose."""

import numpy as np
from jaxtyping import Shaped

from models.hybrid_gdn.config import HybridConfig


def unfuse_qkvz(
    weight: Shaped[np.ndarray, "out in"], config: HybridConfig
) -> Shaped[np.ndarray, "out in"]:
    """Reorders the outputs of a Qwen3-Next `in_proj_qkvz.weight` to ours.

    The checkpoint keeps, for each key head in turn, its query channels, its key channels, the
    values of all its value heads and their gates. Ours keeps all queries, then all keys, all
    values and all gates. Value head h belongs to key head `h // group` in both.
    """
    group = config.linear_num_value_heads // config.linear_num_key_heads
    dk, dv = config.linear_key_head_dim, group * config.linear_value_head_dim
    return _by_kind(weight, config.linear_num_key_heads, (dk, dk, dv, dv))


def unfuse_ba(
    weight: Shaped[np.ndarray, "out in"], config: HybridConfig
) -> Shaped[np.ndarray, "out in"]:
    """Reorders the outputs of a Qwen3-Next `in_proj_ba.weight` to ours.

    The checkpoint keeps, for each key head in turn, b of all its value heads, then a of them.
    Ours keeps all b, then all a.
    """
    group = config.linear_num_value_heads // config.linear_num_key_heads
    return _by_kind(weight, config.linear_num_key_heads, (group, group))


def _by_kind(weight: np.ndarray, heads: int, sizes: tuple[int, ...]) -> np.ndarray:
    if weight.ndim != 2 or weight.shape[0] != heads * sum(sizes):
        raise ValueError(
            f"weight has shape {weight.shape}, not ({heads * sum(sizes)}, in): "
            f"{heads} key heads of {sizes} channels."
        )
    per_head = weight.reshape(heads, sum(sizes), -1)
    parts = np.split(per_head, np.cumsum(sizes)[:-1], axis=1)
    return np.concatenate([part.reshape(-1, weight.shape[1]) for part in parts])
