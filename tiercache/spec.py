"""`CacheSpec`: the static geometry of a cache, checked once, and its byte arithmetic."""

import dataclasses
import functools
import math
from typing import Final, Literal, cast

import jax.numpy as jnp

from pallas_kernels.page_layout import PageLayout
from tiercache.codecs import get_codec, is_byte_stable
from tiercache.formats import parse_formats

Tier = Literal["device", "cold", "host"]
Formats = tuple[tuple[str, str], ...]  # (K codec, V codec) per layer
AUTO: Final = -1  # a capacity that follows from the others


@dataclasses.dataclass(frozen=True)
class SnapshotLeaf:
    """One recurrent leaf of a snapshot.

    Attributes:
      name: what the model calls it.
      shape: of one sequence, all layers; e.g. (layer, head, key, value).
      dtype: by name, e.g. "float32".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * jnp.dtype(self.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class CacheSpec:
    """What a cache is made of. Frozen and hashable: pass it as a static argument.

    Geometry of the model:
      num_layers: attention layers (not all layers).
      num_kv_heads, head_dim: of each attention layer; head_dim is 64, 128 or 256.
      snapshot_leaves: every recurrent leaf; empty for a model without recurrent state, whose
        prefixes then resume at any page.

    Storage formats, as text (`"all:int8_g64; 0,1,3:nvfp4_g16"`) or as (K, V) names per layer:
      hot_formats: of device pages, and so of their exact copies in host memory.
      cold_formats: of cold slots. A cold plane must be smaller than the layer's hot plane, and a
        restored page must pack to the same bytes again; `force_codecs` waives both.

    Capacities; a tier with capacity zero is off, and what would need it is refused:
      num_pages: device pages.
      num_cold_slots: cold slots, on the device under policy `window`, in pinned host memory
        under policy `host`.
      num_host_pages: exact copies of pages in pinned host memory.
      num_snapshots, num_host_snapshots: cached snapshots in each memory.
      index_pages: most device pages that the prefix index may hold; `AUTO` for all of them.
      max_rows: sequences that run at once.
      max_pages: pages of the longest sequence.
      num_nodes: known pages of prefixes, over all tiers; `AUTO` takes enough for every copy.
      num_leases: pin holders, `AUTO` twice the rows. Leases below `max_rows` belong to the rows.

    Behaviour:
      page_size: tokens per page, a power of two of at least 16.
      policy: "none", "window" or "host": where cold slots live.
      keep_tokens: the newest tokens of a row that `retire` leaves hot.
      host_memory: "pinned_host", or "device" to keep all banks in device memory.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_pages: int
    max_rows: int
    max_pages: int
    page_size: int = 64
    snapshot_leaves: tuple[SnapshotLeaf, ...] = ()
    hot_formats: str | Formats = "all:bf16"
    cold_formats: str | Formats = "all:nvfp4_g16"
    force_codecs: bool = False
    num_cold_slots: int = 0
    num_host_pages: int = 0
    num_snapshots: int = 0
    num_host_snapshots: int = 0
    index_pages: int = AUTO
    num_nodes: int = AUTO
    num_leases: int = AUTO
    policy: Literal["none", "window", "host"] = "none"
    keep_tokens: int | None = None
    host_memory: Literal["pinned_host", "device"] = "pinned_host"

    def __post_init__(self):
        _set(self, hot_formats=_formats(self.hot_formats, self.num_layers, "hot_formats"))
        _set(self, cold_formats=_formats(self.cold_formats, self.num_layers, "cold_formats"))
        copies = self.num_pages + self.num_cold_slots + self.num_host_pages
        defaults = {
            "index_pages": self.num_pages,
            "num_nodes": copies + 8 + self.max_rows,
            "num_leases": 2 * self.max_rows,
        }
        for name, value in defaults.items():
            if getattr(self, name) in (AUTO, None):
                _set(self, **{name: value})
        _check_ranges(self)
        _check_consistency(self)
        _check_codecs(self)

    @functools.cached_property
    def hot_layout(self) -> PageLayout:
        """How a device page and its exact host copy lie in memory."""
        formats = cast(Formats, self.hot_formats)
        return PageLayout.of(formats, self.num_kv_heads, self.page_size, self.head_dim)

    @functools.cached_property
    def cold_layout(self) -> PageLayout:
        """How a cold slot lies in memory."""
        formats = cast(Formats, self.cold_formats)
        return PageLayout.of(formats, self.num_kv_heads, self.page_size, self.head_dim)

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sequence."""
        return self.max_pages * self.page_size

    @property
    def needs_snapshot(self) -> bool:
        """Whether a prefix can be resumed only where a snapshot stands."""
        return bool(self.snapshot_leaves)


def bytes_per_page(spec: CacheSpec, tier: Tier) -> int:
    """Bytes of one page in a tier: codes and scales of all layers, K and V, and heads."""
    layout = spec.cold_layout if tier == "cold" else spec.hot_layout
    return layout.record_bytes


def bytes_per_snapshot(spec: CacheSpec) -> int:
    """Bytes of one snapshot: every recurrent leaf; the same in every tier."""
    return sum(leaf.num_bytes for leaf in spec.snapshot_leaves)


def tier_bytes(spec: CacheSpec) -> dict[str, int]:
    """Bytes of every bank and pool as allocated, trash slots and live rows included."""
    page, cold = bytes_per_page(spec, "device"), bytes_per_page(spec, "cold")
    snapshot = bytes_per_snapshot(spec)
    return {
        "device_pages": spec.num_pages * page,
        "cold_slots": (spec.num_cold_slots + 1) * cold,
        "host_pages": (spec.num_host_pages + 1) * page,
        "device_snapshots": spec.num_snapshots * snapshot,
        "host_snapshots": (spec.num_host_snapshots + 1) * snapshot,
        "live_rows": spec.max_rows * snapshot,
    }


def with_budgets(
    spec: CacheSpec,
    *,
    device_bytes: int | None = None,
    cold_bytes: int | None = None,
    host_bytes: int | None = None,
    device_snapshot_bytes: int | None = None,
    host_snapshot_bytes: int | None = None,
) -> CacheSpec:
    """`spec` with capacities from budgets in bytes; None leaves a capacity as it is.

    Each budget is a most: the pool or bank, its trash slot included, is not larger.

    Raises:
      ValueError: a budget that does not hold one page or snapshot; it names both numbers.
    """
    page, cold = bytes_per_page(spec, "device"), bytes_per_page(spec, "cold")
    snapshot = bytes_per_snapshot(spec)
    wanted = {
        "num_pages": ("device_bytes", device_bytes, page, 0),
        "num_cold_slots": ("cold_bytes", cold_bytes, cold, 1),
        "num_host_pages": ("host_bytes", host_bytes, page, 1),
        "num_snapshots": ("device_snapshot_bytes", device_snapshot_bytes, snapshot, 0),
        "num_host_snapshots": ("host_snapshot_bytes", host_snapshot_bytes, snapshot, 1),
    }
    counts = {"num_nodes": AUTO, "index_pages": AUTO}
    for field, (knob, budget, unit, spare) in wanted.items():
        if budget is None:
            continue
        if unit == 0:
            raise ValueError(f"{knob}={budget}, but the spec has no snapshot_leaves.")
        counts[field] = budget // unit - spare
        if counts[field] < 1:
            raise ValueError(
                f"{knob}={budget} holds no record: one takes {unit} bytes"
                + (" and the bank needs a spare one." if spare else ".")
            )
    return dataclasses.replace(spec, **counts)


def _set(spec: CacheSpec, **values):
    for name, value in values.items():
        object.__setattr__(spec, name, value)


def _formats(formats: str | Formats, num_layers: int, knob: str) -> Formats:
    if isinstance(formats, str):
        return parse_formats(formats, num_layers)
    if len(formats) != num_layers:
        raise ValueError(f"{knob} names {len(formats)} layers, but num_layers={num_layers}.")
    return tuple((get_codec(k).name, get_codec(v).name) for k, v in formats)


def _check_ranges(spec: CacheSpec):
    least = {
        "num_layers": 1, "num_kv_heads": 1, "num_pages": 1, "max_rows": 1, "max_pages": 1,
        "num_nodes": 2, "num_leases": spec.max_rows, "num_cold_slots": 0, "num_host_pages": 0,
        "num_snapshots": 0, "num_host_snapshots": 0, "index_pages": 0,
    }  # fmt: skip
    for name, minimum in least.items():
        if getattr(spec, name) < minimum:
            raise ValueError(f"{name}={getattr(spec, name)} is below {minimum}.")
    if spec.page_size < 16 or spec.page_size & (spec.page_size - 1):
        raise ValueError(f"page_size={spec.page_size} is not a power of two of at least 16.")
    if spec.head_dim not in (64, 128, 256):
        raise ValueError(f"head_dim={spec.head_dim} is not 64, 128 or 256.")
    for name in ("num_pages", "num_cold_slots", "num_host_pages", "num_nodes"):
        if getattr(spec, name) >= 2**30:
            raise ValueError(f"{name}={getattr(spec, name)} does not fit below 2**30.")


def _check_consistency(spec: CacheSpec):
    if spec.policy not in ("none", "window", "host"):
        raise ValueError(f"policy={spec.policy!r} is not 'none', 'window' or 'host'.")
    if (spec.policy == "none") != (spec.num_cold_slots == 0):
        raise ValueError(
            f"policy={spec.policy!r} with num_cold_slots={spec.num_cold_slots}: "
            "cold slots need policy 'window' or 'host', and these need cold slots."
        )
    if spec.keep_tokens is not None:
        if spec.policy == "none":
            raise ValueError(f"keep_tokens={spec.keep_tokens}, but policy='none' has no slots.")
        if spec.keep_tokens < spec.page_size:
            raise ValueError(
                f"keep_tokens={spec.keep_tokens} is below page_size={spec.page_size}: "
                "the page being written must stay hot."
            )
    if (spec.num_snapshots or spec.num_host_snapshots) and not spec.snapshot_leaves:
        raise ValueError(
            f"num_snapshots={spec.num_snapshots}, num_host_snapshots={spec.num_host_snapshots}, "
            "but snapshot_leaves is empty."
        )
    if spec.index_pages > spec.num_pages:
        raise ValueError(f"index_pages={spec.index_pages} exceeds num_pages={spec.num_pages}.")
    names = [leaf.name for leaf in spec.snapshot_leaves]
    if len(set(names)) < len(names):
        raise ValueError(f"snapshot_leaves repeat a name: {names}.")


def _check_codecs(spec: CacheSpec):
    if spec.policy == "none" or spec.force_codecs:
        return
    hot, cold = spec.hot_layout, spec.cold_layout
    for (layer, kv), size in hot.plane_bytes.items():
        names = spec.hot_formats[layer][kv], spec.cold_formats[layer][kv]
        where = f"layer {layer} {'KV'[kv]}"
        if cold.plane_bytes[layer, kv] >= size:
            raise ValueError(
                f"cold_formats {names[1]!r} does not shrink hot_formats {names[0]!r} at {where}: "
                f"{cold.plane_bytes[layer, kv]} against {size} bytes. force_codecs=True allows it."
            )
        if not is_byte_stable(*map(get_codec, names)):
            raise ValueError(
                f"cold_formats {names[1]!r} after hot_formats {names[0]!r} at {where}: a restored "
                "page would not pack to the same bytes again. force_codecs=True allows it."
            )
