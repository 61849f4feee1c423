"""The op by the kernels of `requantize.triton`: the way out of the Pallas-Triton lowering.

There is one launch per pair of formats. A bank in host memory is read directly, and written by way
of a few records on the device.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, UInt8

from pallas_kernels.banks import is_host
from pallas_kernels.codecs import Codec, Encoded, bits, e2m1, fp8_e4m3, int8_g64
from pallas_kernels.codecs.bf16 import Bf16
from pallas_kernels.codecs.four_bit import FourBit
from pallas_kernels.codecs.int4_g16 import Int4G16
from pallas_kernels.page_copy.pairs import Pairs
from pallas_kernels.page_layout import PageLayout, Payload
from pallas_kernels.requantize import triton as kernels
from pallas_kernels.requantize.staged import pack_to_host

PROGRAMS: Final = 132 * 64
PROGRAMS_FROM_HOST: Final = 132
TILE: Final = 2048  # values of one tile; a power of two
NUM_WARPS: Final = 4


class _Format(NamedTuple):
    """A codec at a head size, as kernels know it.

    Attributes:
      family: "bf16", "fp8", "int8", "e2m1" or "int4".
      dim: channels.
      group: channels under one scale; all of them where there is none.
      code_bytes, scale_bytes: per token of one head.
      max_bits: bit pattern of the largest magnitude that is not past the codec.
      search: whether each group takes the better of two scales.
    """

    family: str
    dim: int
    group: int
    code_bytes: int
    scale_bytes: int
    max_bits: int
    search: bool


class _Cut(NamedTuple):
    """How the planes of one pair of formats lie, and are cut into tiles.

    Attributes:
      rows: token rows of a tile; a power of two that divides `plane_rows`.
      plane_rows: token rows of a plane, all heads.
      planes: of this pair of formats.
      pool_planes: planes of the pool's format in all.
      codes_at, scales_at: byte of a record where those of the record's format begin.
      record_bytes: of a whole record.
    """

    rows: int
    plane_rows: int
    planes: int
    pool_planes: int
    codes_at: int
    scales_at: int
    record_bytes: int


_FAMILIES: Final = {
    Bf16: "bf16",
    fp8_e4m3.Fp8E4m3: "fp8",
    int8_g64.Int8G64: "int8",
    e2m1.E2m1: "e2m1",
    Int4G16: "int4",
}


def _format_of(codec: Codec, dim: int) -> _Format:
    """What a kernel has to know of a codec.

    Raises:
      NotImplementedError: no kernel knows it.
    """
    if type(codec) not in _FAMILIES:
        raise NotImplementedError(f"no Triton kernel of {codec.name}.")
    code_bytes = codec.code_width(dim) * jnp.dtype(codec.code_dtype).itemsize
    return _Format(
        family=_FAMILIES[type(codec)],
        dim=dim,
        group=dim // max(1, codec.scale_width(dim)),
        code_bytes=code_bytes,
        scale_bytes=codec.bytes_per_token(dim) - code_bytes,
        max_bits=int(np.float32(_limit(codec)).view(np.int32)),
        search=isinstance(codec, e2m1.E2m1) and codec.search,
    )


def _limit(codec: Codec) -> float:
    match codec:
        case FourBit():
            return codec.max_code_value * bits.E4M3_MAX
        case int8_g64.Int8G64():
            return int8_g64.MAX_MAGNITUDE
        case fp8_e4m3.Fp8E4m3():
            return fp8_e4m3.MAX_MAGNITUDE
    return math.inf


class _Launch(NamedTuple):
    """What is done with one pair of formats.

    Attributes:
      group: of the pool, in the order of its payload.
      planes: per plane of the pair, its position in the pool's group and in the record's.
      statics: of the kernel, by name.
    """

    group: int
    planes: np.ndarray
    statics: dict[str, Any]


def _launches(pool: PageLayout, record: PageLayout) -> Iterator[_Launch]:
    """Yields the pairs of formats that occur."""
    _check_alignment(record)
    dim, plane_rows = pool.head_dim, pool.num_kv_heads * pool.page_size
    for number, hot in enumerate(pool.groups):
        for cold in record.groups:
            both = [where for where in hot.planes if where in cold.planes]
            if not both:
                continue
            first = record.plane_fields[cold.planes[0]]
            cut = _Cut(
                rows=math.gcd(TILE // dim, plane_rows),
                plane_rows=plane_rows,
                planes=len(both),
                pool_planes=len(hot.planes),
                codes_at=first.codes_offset,
                scales_at=first.scales_offset,
                record_bytes=record.record_bytes,
            )
            formats = [_format_of(group.codec, dim) for group in (hot, cold)]
            planes = [(hot.planes.index(where), cold.planes.index(where)) for where in both]
            statics = {"POOL": formats[0], "RECORD": formats[1], "CUT": cut}
            yield _Launch(number, np.asarray(planes, np.int32), statics)


def _check_alignment(record: PageLayout) -> None:
    for field in record.fields:
        size = field.dtype.itemsize
        if field.offset % size or record.record_bytes % size:
            raise NotImplementedError(
                f"{field.dtype} at byte {field.offset} of records of {record.record_bytes} bytes "
                "is not aligned, as these kernels need it."
            )


def pack(
    pool: Payload, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, source: PageLayout,
    target: PageLayout,
) -> tuple[UInt8[Array, "slots bytes"], Int32[Array, "n"]]:  # fmt: skip
    if is_host(bank):
        pack_some = functools.partial(pack, pool, source=source, target=target)
        return pack_to_host(pack_some, bank, pairs)
    flags = pairs.flags
    for launch in _launches(source, target):
        leaves = _leaves(pool[launch.group])
        bank, flags = _call(
            kernels.requantize_pack, launch, pairs, [pairs.places, *leaves, bank, flags], PROGRAMS
        )
    return bank, flags


def restore(
    pool: Payload, bank: UInt8[Array, "slots bytes"], pairs: Pairs, *, source: PageLayout,
    target: PageLayout,
) -> Payload:  # fmt: skip
    programs = PROGRAMS_FROM_HOST if is_host(bank) else PROGRAMS
    new = list(pool)
    for launch in _launches(source, target):
        old = new[launch.group]
        leaves = _leaves(old)
        codes, scales = _call(kernels.requantize_restore, launch, pairs, [bank, *leaves], programs)
        new[launch.group] = Encoded(codes, None if old.scales is None else scales)
    return tuple(new)


def _leaves(encoded: Encoded) -> list[Array]:
    """Codes and scales; a stand-in where there are none, which no kernel touches."""
    return [encoded.codes, jnp.zeros(1, jnp.uint8) if encoded.scales is None else encoded.scales]


def _call(kernel, launch: _Launch, pairs: Pairs, operands: list[Array], programs: int) -> Any:
    """Runs a kernel, which updates its last two operands in place."""
    operands = [*pairs.operands(), jnp.asarray(launch.planes), *operands]
    last = len(operands) - 2
    cut = launch.statics["CUT"]
    pieces = pairs.sources.shape[0] * cut.planes * cut.plane_rows // cut.rows
    return kernels.triton_call(
        *operands,
        kernel=kernel,
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands[last:]],
        input_output_aliases={last: 0, last + 1: 1},
        grid=(min(programs, pieces),),
        num_warps=NUM_WARPS,
        num_stages=1,
        enable_fp_fusion=False,
        **launch.statics,
    )
