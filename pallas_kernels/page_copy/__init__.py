"""`page_copy`: whole items between pools, and between a pool and a bank of records."""

from pallas_kernels.page_copy.api import copy_items, copy_within, load_records, store_records

__all__ = ["copy_items", "copy_within", "load_records", "store_records"]
