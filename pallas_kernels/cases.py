"""Real-world shapes, and what a call of an op at one of them is: for tests and benchmarks."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.page_layout import PageLayout


class ModelShape(NamedTuple):
    """The attention layers of one model, and how its pages are stored.

    Attributes:
      name: of the model, or of the class of models.
      num_layers: attention layers alone.
      num_kv_heads: heads of K and of V.
      head_dim: channels per head.
      page_size: tokens per page.
    """

    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int = 64


# Attention layers, KV heads and head size are those of the models' published configurations.
QWEN3_NEXT_80B: Final = ModelShape("qwen3-next-80b", 12, 2, 256)
QWEN3_5_27B: Final = ModelShape("qwen3.5-27b", 16, 4, 256)
WIDE_128: Final = ModelShape("8-heads-of-128", 8, 8, 128)
WIDE_64: Final = ModelShape("8-heads-of-64", 8, 8, 64)
MODELS: Final = (QWEN3_NEXT_80B, QWEN3_5_27B, WIDE_128, WIDE_64)


class Case(NamedTuple):
    """One op at one shape.

    Attributes:
      op: name of the op.
      name: of the shape, the formats and the direction.
      call: takes `args`, arrays or tracers, and `implementation=`; whatever it updates comes first
        in its result, in the order of the arguments.
      args: pytrees of `jax.ShapeDtypeStruct`.
      ids: (position in `args`, n) of every list of ids; no id of [0, n) twice.
      host: positions in `args` of what lives in pinned host memory.
      donated: positions in `args` of what is updated in place.
      moved_bytes: read plus written, once each: what the floor is computed from.
      make: draws the integer arguments, the last of `args`, where `ids` cannot describe them.
    """

    op: str
    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    ids: tuple[tuple[int, int], ...]
    host: tuple[int, ...]
    donated: tuple[int, ...]
    moved_bytes: int
    make: Callable[[np.random.Generator], tuple[np.ndarray, ...]] | None = None


def layout_of(model: ModelShape, codec: str) -> PageLayout:
    """The layout of a model's pages, all of one codec."""
    formats = ((codec, codec),) * model.num_layers
    return PageLayout.of(formats, model.num_kv_heads, model.page_size, model.head_dim)


def pool_of(layout: PageLayout, num_pages: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The leaves of a pool, abstract."""
    return tuple(jax.ShapeDtypeStruct((num_pages, *f.shape), f.dtype) for f in layout.fields)


def bank_of(num_slots: int, num_bytes: int) -> jax.ShapeDtypeStruct:
    """A bank of records and its trash slot, abstract."""
    return jax.ShapeDtypeStruct((num_slots + 1, num_bytes), jnp.uint8)


def ids_of(number: int) -> jax.ShapeDtypeStruct:
    """A list of ids, abstract."""
    return jax.ShapeDtypeStruct((number,), jnp.int32)
