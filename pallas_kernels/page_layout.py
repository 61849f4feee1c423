"""How one page lies in memory: as typed leaves in the pool, and as one byte record elsewhere.

A page holds a *plane* for every (layer, K or V). Planes of one storage format are stacked, so the
pool has two leaves per format in use (codes and scales) however many layers there are. A record is
the same leaves as bytes, one after the other: host pages and cold slots are rows of such records.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, UInt8

from pallas_kernels.codecs import Codec, Encoded, get_codec, is_finite

K, V = 0, 1

# One entry per format in use. In the pool the leaves are [page, plane, head, token, width]; one
# page is the same without the page axis.
Payload = tuple[Encoded, ...]


class Field(NamedTuple):
    """One leaf of a page: its shape without the page axis, its dtype, its offset in the record."""

    shape: tuple[int, ...]
    dtype: jnp.dtype
    offset: int  # bytes from the record's start

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class PlaneField(NamedTuple):
    """Where one plane lies in a record. Both parts are contiguous, [head, token, width]."""

    codec: Codec
    codes_offset: int  # bytes
    scales_offset: int  # bytes; 0 where the codec has no scales


@dataclasses.dataclass(frozen=True)
class Group:
    """The planes that share one codec.

    Attributes:
      codec: the storage format.
      planes: (layer, `K` or `V`) of each plane, in the order of the plane axis.
    """

    codec: Codec
    planes: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class PageLayout:
    """The layout of a page under per-layer formats. Hashable: a static argument.

    Attributes:
      groups: one per codec in use, in order of first use by (layer, K before V).
      num_kv_heads: heads per plane.
      page_size: tokens per page.
      head_dim: channels per head.
    """

    groups: tuple[Group, ...]
    num_kv_heads: int
    page_size: int
    head_dim: int

    @classmethod
    def of(
        cls, formats: tuple[tuple[str, str], ...], num_kv_heads: int, page_size: int, head_dim: int
    ) -> "PageLayout":
        """The layout of `formats`: (K codec name, V codec name) per layer."""
        planes: dict[str, list[tuple[int, int]]] = {}
        for layer, names in enumerate(formats):
            for kv, name in enumerate(names):
                planes.setdefault(name, []).append((layer, kv))
        groups = tuple(Group(get_codec(name), tuple(where)) for name, where in planes.items())
        return cls(groups, num_kv_heads, page_size, head_dim)

    @property
    def num_layers(self) -> int:
        return 1 + max(layer for group in self.groups for layer, _ in group.planes)

    @functools.cached_property
    def fields(self) -> tuple[Field, ...]:
        """Every leaf of a page, in the order of `jax.tree.leaves` of a payload."""
        fields, offset = [], 0
        for group in self.groups:
            stack = (len(group.planes), self.num_kv_heads, self.page_size)
            codec = group.codec
            shapes = [((*stack, codec.code_width(self.head_dim)), codec.code_dtype)]
            if codec.scale_dtype is not None:
                shapes.append(((*stack, codec.scale_width(self.head_dim)), codec.scale_dtype))
            for shape, dtype in shapes:
                fields.append(Field(shape, jnp.dtype(dtype), offset))
                offset += fields[-1].num_bytes
        return tuple(fields)

    @property
    def record_bytes(self) -> int:
        """Bytes of one page: codes and scales of every layer, K and V, and head."""
        return sum(field.num_bytes for field in self.fields)

    @functools.cached_property
    def plane_bytes(self) -> dict[tuple[int, int], int]:
        """Bytes of each (layer, K or V): all heads of one page."""
        per_head = {
            where: group.codec.bytes_per_token(self.head_dim)
            for group in self.groups
            for where in group.planes
        }
        return {w: b * self.num_kv_heads * self.page_size for w, b in per_head.items()}

    def find(self, layer: int, kv: int) -> tuple[int, int]:
        """(group, position on its plane axis) of a plane."""
        for number, group in enumerate(self.groups):
            if (layer, kv) in group.planes:
                return number, group.planes.index((layer, kv))
        raise ValueError(f"layer={layer} is not in [0, {self.num_layers}).")

    @functools.cached_property
    def plane_fields(self) -> dict[tuple[int, int], PlaneField]:
        """Where each (layer, K or V) lies in a record."""
        found, fields = {}, iter(self.fields)
        for group in self.groups:
            codes = next(fields)
            scales = next(fields) if group.codec.scale_dtype is not None else None
            count = len(group.planes)
            for position, where in enumerate(group.planes):
                found[where] = PlaneField(
                    group.codec,
                    codes.offset + position * codes.num_bytes // count,
                    scales.offset + position * scales.num_bytes // count if scales else 0,
                )
        return found


def empty_payload(layout: PageLayout, *lead: int) -> Payload:
    """A payload of zeros with leading axes `lead`; zeros decode to zeros in every codec."""
    leaves = [jnp.zeros((*lead, *field.shape), field.dtype) for field in layout.fields]
    return unflatten(layout, leaves)


def unflatten(layout: PageLayout, leaves: list[Array]) -> Payload:
    """A payload from its leaves, in the order of `layout.fields`."""
    rest = iter(leaves)
    return tuple(
        Encoded(next(rest), next(rest) if group.codec.scale_dtype is not None else None)
        for group in layout.groups
    )


def read_page(payload: Payload, page_id: Int32[Array, ""]) -> Payload:
    """One page of a pool. `page_id` must exist: out of range reads the nearest page."""
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, page_id, 0, keepdims=False), payload)


def write_page(payload: Payload, page_id: Int32[Array, ""], page: Payload) -> Payload:
    """Replaces one page of a pool. `page_id` must exist: out of range hits the nearest page."""
    return jax.tree.map(
        lambda x, new: lax.dynamic_update_index_in_dim(x, new, page_id, 0), payload, page
    )


def to_bytes(x: Array) -> UInt8[Array, "bytes"]:
    """The little-endian bytes of an array, flat."""
    if x.dtype != jnp.uint8:
        x = lax.bitcast_convert_type(x, jnp.uint8)
    return x.reshape(-1)


def from_bytes(data: UInt8[Array, "bytes"], shape: tuple[int, ...], dtype) -> Array:
    """The array whose little-endian bytes are `data`."""
    dtype = jnp.dtype(dtype)
    if dtype == jnp.uint8:
        return data.reshape(shape)
    if dtype.itemsize > 1:
        data = data.reshape(-1, dtype.itemsize)
    return lax.bitcast_convert_type(data, dtype).reshape(shape)


def page_to_record(page: Payload) -> UInt8[Array, "bytes"]:
    """Every leaf of one page as one byte record."""
    return jnp.concatenate([to_bytes(leaf) for leaf in jax.tree.leaves(page)])


def record_to_page(layout: PageLayout, record: UInt8[Array, "bytes"]) -> Payload:
    """The page that `page_to_record` made the record of."""
    leaves = [
        from_bytes(lax.slice_in_dim(record, f.offset, f.offset + f.num_bytes), f.shape, f.dtype)
        for f in layout.fields
    ]
    return unflatten(layout, leaves)


def transcode_page(
    page: Payload, source: PageLayout, target: PageLayout
) -> tuple[Payload, Bool[Array, ""]]:
    """Re-encodes every plane of a page, and says whether every value of it is finite.

    Args:
      page: leaves [plane, head, token, width] in the formats of `source`.
      source: the layout that the page is in.
      target: the layout to encode to; the same geometry.

    Returns:
      The page under `target`, and its validity over all layers, K and V, and heads.
    """
    planes: dict[tuple[int, int], Float32[Array, "head token dim"]] = {}
    for group, encoded in zip(source.groups, page, strict=True):
        decoded = group.codec.decode(encoded)
        planes |= {where: decoded[i] for i, where in enumerate(group.planes)}
    stacks = [jnp.stack([planes[where] for where in group.planes]) for group in target.groups]
    finite = jnp.stack([jnp.all(is_finite(stack)) for stack in stacks])
    encoded = tuple(
        group.codec.encode(stack) for group, stack in zip(target.groups, stacks, strict=True)
    )
    return encoded, jnp.all(finite)
