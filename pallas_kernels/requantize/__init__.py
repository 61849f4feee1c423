"""`requantize`: pages of a pool to records of another format in a bank, and back."""

from pallas_kernels.requantize.api import pack, restore

__all__ = ["pack", "restore"]
