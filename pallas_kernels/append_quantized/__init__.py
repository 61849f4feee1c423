"""`append_quantized`: the K and V of a step into the pages of a pool, and on into their mirror."""

from pallas_kernels.append_quantized.api import append_quantized, mirror_tokens

__all__ = ["append_quantized", "mirror_tokens"]
