"""Small caches that every step of a test can be compared in: shapes few, pools tiny."""

from typing import Final

from tiercache.spec import CacheSpec, SnapshotLeaf

LEAVES: Final = (
    SnapshotLeaf("conv", (2, 2, 3), "bfloat16"),
    SnapshotLeaf("delta", (2, 2, 4), "float32"),
)
WINDOW: Final = CacheSpec(
    num_layers=2, num_kv_heads=1, head_dim=64, page_size=16,
    num_pages=10, max_rows=3, max_pages=6, num_cold_slots=5, num_host_pages=5,
    num_snapshots=3, num_host_snapshots=3, num_nodes=16, num_leases=5,
    policy="window", keep_tokens=16, snapshot_leaves=LEAVES,
    hot_formats="all:bf16; 1.v:int8_g64", cold_formats="all:nvfp4_g16; 1.v:e2m1_g64",
)  # fmt: skip
HOST: Final = CacheSpec(
    num_layers=2, num_kv_heads=2, head_dim=64, page_size=16,
    num_pages=8, max_rows=3, max_pages=5, num_cold_slots=4, num_host_pages=6,
    num_snapshots=2, num_host_snapshots=4, num_nodes=20, num_leases=6, index_pages=6,
    policy="host", keep_tokens=32, snapshot_leaves=LEAVES[1:],
    hot_formats="all:int8_g64", cold_formats="all:e2m1_g64",
)  # fmt: skip
PLAIN: Final = CacheSpec(
    num_layers=2, num_kv_heads=2, head_dim=64, page_size=16,
    num_pages=10, max_rows=3, max_pages=6, num_host_pages=4, index_pages=5, num_leases=5,
    hot_formats="all:fp8_e4m3; 0.v:bf16",
)  # fmt: skip
SPECS: Final = {"window": WINDOW, "host": HOST, "plain": PLAIN}
