"""Attention over the pages and cold slots that a block table names."""

from pallas_kernels.paged_attention.api import IMPLEMENTATIONS, paged_attention
from pallas_kernels.paged_attention.types import ColdPlane, HotPlane

__all__ = ["IMPLEMENTATIONS", "ColdPlane", "HotPlane", "paged_attention"]
