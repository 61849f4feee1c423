"""What `paged_attention` reads K or V from."""

import dataclasses

import jax
from jaxtyping import Array, Shaped, UInt8

from pallas_kernels.codecs import Codec, Encoded


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HotPlane:
    """One plane of a page pool.

    Attributes:
      pool: codes and scales, [page, plane, head, token, width].
      plane: which plane; static.
      codec: the pool's format; static.
    """

    pool: Encoded
    plane: int = dataclasses.field(metadata={"static": True})
    codec: Codec = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ColdPlane:
    """One plane of a bank of records, in device or pinned host memory.

    Attributes:
      bank: [slot + 1, byte]; the last slot is the trash slot.
      codes_offset, scales_offset: bytes from a record's start to the plane's codes,
        [head, token, width], and to its scales; static.
      codec: the plane's format; static.
    """

    bank: UInt8[Array, "slots bytes"]
    codes_offset: int = dataclasses.field(metadata={"static": True})
    scales_offset: int = dataclasses.field(metadata={"static": True})
    codec: Codec = dataclasses.field(metadata={"static": True})


def gather_hot(plane: HotPlane, page_ids: Shaped[Array, "..."]) -> Encoded:
    """The plane of some pages, [..., head, token, width]; zeros for an id past the pool."""
    return jax.tree.map(
        lambda leaf: leaf.at[page_ids, plane.plane].get(mode="fill", fill_value=0), plane.pool
    )
