"""The kernels of the op in Triton, for jax-triton to call; the one place that imports the two.

A tile is some token rows of one plane, in float32, [row, group, channel]. A row's codes are bytes
that lie next to each other, in the pool and in a record, and so are its scales: the same code reads
and writes both, and every codec can be on either side. `pallas_kernels.tiles.quotients` says why a
product with a reciprocal in two parts, and a rounding by the adder, are exact here.

Triton compiles functions from their source, so nothing may wrap them: hence `no_type_check`.
"""

from typing import Any, cast, no_type_check

import triton
import triton.language as tl  # pyright: ignore[reportMissingImports]
from jax_triton import triton_call  # pyright: ignore[reportMissingImports]

from pallas_kernels.codecs import bits, e2m1, fp8_e4m3, int8_g64

__all__ = ["requantize_pack", "requantize_restore", "triton_call"]

jit = cast(Any, triton).jit  # type checkers take the package for this file

# What the compiled functions see of the world has to be marked as constant.
_MAGNITUDE = tl.constexpr(bits.MAGNITUDE_MASK)
_INF = tl.constexpr(bits.INF_BITS)
_E4M3_MAX = tl.constexpr(bits.E4M3_MAX)
_TO_INTEGER = tl.constexpr(2.0**23)  # added to x in [0, 2**22], it rounds it, ties to even
_TO_SIGNED = tl.constexpr(1.5 * 2.0**23)  # the same from -2**21 on
_BASE = tl.constexpr(0x4B000000)  # the bits of 2**23
_MAX_ERROR = tl.constexpr(e2m1.MAX_ERROR)
_BY_INT8_CODES = tl.constexpr(1.0 / int8_g64.MAX_CODE)
_FP8_MIN_EXPONENT = tl.constexpr(127 + fp8_e4m3.MIN_EXPONENT)
_NORMAL = tl.constexpr(1 << 23)  # the bits of the smallest normal float32
_BIAS = tl.constexpr(120 << 3)  # by which E4M3 codes are less than the top bits of a float32
_TINY = tl.constexpr(bits.E4M3_TINY)
_TINIES = tl.constexpr(1 / bits.E4M3_TINY)  # the smallest E4M3 values that make 1


@jit
@no_type_check
def _bits(x):
    return x.to(tl.int32, bitcast=True)


@jit
@no_type_check
def _float(pattern):
    return pattern.to(tl.float32, bitcast=True)


@jit
@no_type_check
def _e4m3(code):
    """The value of each E4M3 code in [0, 255]."""
    low = code & 0x7F
    tiny = _bits(low.to(tl.float32) * _TINY)
    normal = tl.where(low == 0x7F, 0x7FC00000, (low + _BIAS) << 20)
    return _float(tl.where(low < 8, tiny, normal) | ((code & 0x80) << 24))


@jit
@no_type_check
def _e2m1(nibble):
    """The value of each nibble, times 2**-14: it is the top of a float16."""
    pattern = ((nibble << 9) & 0x0E00) | ((nibble << 12) & 0x8000)
    return pattern.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@jit
@no_type_check
def _integer(x):
    """x in [0, 2**22] to the nearest integer, ties to even."""
    return _bits(x + _TO_INTEGER) - _BASE


@jit
@no_type_check
def _top_e4m3(pattern):
    """E4M3 codes from bits of float32: nearest, ties to even, if that is 8 or more."""
    return ((pattern + 0x7FFFF + ((pattern >> 20) & 1)) >> 20) - _BIAS


@jit
@no_type_check
def _to_e4m3(x):
    """As `bits.round_to_e4m3`."""
    x = tl.minimum(x, _E4M3_MAX)
    return tl.where(x < 2.0**-6, _integer(x * _TINIES), _top_e4m3(_bits(x)))


@jit
@no_type_check
def _quotient(x, scale):
    """x / scale, one per [row, group], as exact as in `tiles.quotients`."""
    inverse = 1.0 / scale
    high = _float(_bits(inverse) & -(1 << 18))
    low = (1.0 - scale * high) * inverse
    return tl.fma(x, high[:, :, None], x * low[:, :, None])


@jit
@no_type_check
def _scale_code(amax, DIVISOR: tl.constexpr):
    """E4M3 codes of the scales that `BY_SIX`, `BY_FOUR` and `BY_SEVEN` give to amax <= 7 * 448."""
    tinies = amax * _TINIES
    above = 1 + (tinies > 7.0).to(tl.int32)
    if DIVISOR == 6:
        q = amax * (42 / 256) + amax * (1 / 6 - 42 / 256)
        units = tl.maximum(_integer(q * _TINIES), above)
    elif DIVISOR == 4:
        q = amax * 0.25
        above += (tinies >= 10.5).to(tl.int32)
        units = tl.where(tinies < 14.0, above, _integer(q * _TINIES))
    else:
        q = amax * (36 / 256) + amax * (1 / 7 - 36 / 256)
        above = 1 + (tinies >= 7.5).to(tl.int32) + (tinies >= 16.5).to(tl.int32)
        above += (tinies >= 22.5).to(tl.int32) + (tinies >= 29.0).to(tl.int32)
        above += (tinies >= 35.5).to(tl.int32)
        units = tl.where(tinies < 45.5, above, _integer(q * _TINIES))
    normal = tl.minimum(tl.maximum(_top_e4m3(_bits(q)), 8), 126)
    return tl.where(units < 8, units, normal)


@jit
@no_type_check
def _e2m1_code(value, scale):
    """The least of three roundings: in steps of 1/2 from code 0, of 1 from 2, of 2 from 4."""
    q = _quotient(value, scale)
    halves, twos = tl.fma(q, 2.0, _TO_INTEGER), tl.fma(q, 0.5, _TO_INTEGER + 4.0)
    least = tl.minimum(tl.minimum(halves, q + (_TO_INTEGER + 2.0)), twos)
    return _bits(tl.minimum(least, _TO_INTEGER + 7.0)) - _BASE


@jit
@no_type_check
def _error(value, code, scale, amax):
    """As `e2m1.squared_error`."""
    unit = _float((267 - tl.maximum(_bits(amax) >> 23, 110)) << 23)
    stored = _e2m1(code) * (scale * 2.0**14)[:, :, None]
    error = tl.minimum(tl.abs(value - stored) * unit[:, :, None], _MAX_ERROR).to(tl.int32)
    return tl.sum(error * error, axis=2)


@jit
@no_type_check
def _encode_e2m1(value, amax, SEARCH: tl.constexpr):
    """(magnitude codes, E4M3 codes of scales), as `E2m1.encode_groups`."""
    scale_code = _scale_code(amax, 6)
    scale = _e4m3(scale_code)
    code = _e2m1_code(value, scale)
    if SEARCH:
        other_scale_code = _scale_code(amax, 4)
        other_scale = _e4m3(other_scale_code)
        other = _e2m1_code(value, other_scale)
        better = _error(value, other, other_scale, amax) < _error(value, code, scale, amax)
        # A group of the codes 0, 3, 5 and 7 alone, if 3/2 of its scale is an E4M3 value.
        raised = _to_e4m3(1.5 * scale)
        also = (tl.min((0xA9 >> code) & 1, axis=2) == 1) & (_e4m3(raised) == 1.5 * scale)
        code = tl.where(also[:, :, None], tl.maximum(code - 1, 0), code)
        code = tl.where(better[:, :, None], other, code)
        scale_code = tl.where(better, other_scale_code, tl.where(also, raised, scale_code))
    return code, scale_code


@jit
@no_type_check
def _encode_int8(x, amax):
    """(codes as bytes, float16 scales), as `Int8G64.encode`."""
    stored = (amax * _BY_INT8_CODES).to(tl.float16)
    scale = stored.to(tl.float32)
    q = _quotient(x, tl.where(scale > 0, scale, 1.0))
    q = tl.maximum(tl.minimum(q, 127.0), -127.0)
    return _bits(q + _TO_SIGNED) & 0xFF, stored


@jit
@no_type_check
def _encode_fp8(x, magnitude, amax):
    """(codes, float32 scales), as `Fp8E4m3.encode`."""
    magnitude = tl.where(_bits(magnitude) >= _NORMAL, magnitude, 0.0)
    amax = tl.where(_bits(amax) >= _NORMAL, amax, 0.0)
    top = _bits(amax)
    exponent = (top >> 23) - 8 + ((top & 0x7FFFFF) > 0x680000).to(tl.int32)
    exponent = tl.maximum(exponent, _FP8_MIN_EXPONENT)
    inverse = _float((254 - exponent) << 23)
    code = _to_e4m3(magnitude * inverse[:, :, None])
    scale = tl.where(_to_e4m3(amax * inverse) > 0, exponent << 23, 0)
    return tl.where(code > 0, code | ((_bits(x) >> 24) & 0x80), 0), _float(scale)


@jit
@no_type_check
def _encode_four_bit(x, magnitude, amax, FORMAT: tl.constexpr):
    """(nibbles, E4M3 codes of scales), as `FourBit.encode`."""
    if FORMAT.family == "e2m1":
        code, scale_code = _encode_e2m1(magnitude, amax, FORMAT.search)
        zero_up_to = 2.0**-11
    else:
        scale_code = _scale_code(amax, 7)
        code = tl.minimum(_integer(_quotient(magnitude, _e4m3(scale_code))), 7)
        zero_up_to = 2.0**-10
    # Up to there the scale is the smallest, 2**-9, and all codes are 0.
    scale_code = tl.where(amax > zero_up_to, scale_code, 0)
    return tl.where(code > 0, code | ((_bits(x) >> 28) & 8), 0), scale_code


@jit
@no_type_check
def _places(start, DTYPE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Of [ROWS, WIDTH] values that lie one after the other."""
    start = start.to(tl.pointer_type(DTYPE))
    return start + tl.arange(0, ROWS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]


@jit
@no_type_check
def _read(codes, scales, FORMAT: tl.constexpr, ROWS: tl.constexpr):
    """The values of a tile, from where its bytes begin."""
    DIM: tl.constexpr = FORMAT.dim
    GROUPS: tl.constexpr = DIM // FORMAT.group
    if FORMAT.family == "bf16":
        x = tl.load(_places(codes, tl.bfloat16, ROWS, DIM)).to(tl.float32)
        scale = tl.full((ROWS, GROUPS), 1.0, tl.float32)
    elif FORMAT.family == "fp8":
        x = _e4m3(tl.load(_places(codes, tl.uint8, ROWS, DIM)).to(tl.int32))
        scale = tl.load(_places(scales, tl.float32, ROWS, GROUPS))
    elif FORMAT.family == "int8":
        x = tl.load(_places(codes, tl.int8, ROWS, DIM)).to(tl.float32)
        scale = tl.load(_places(scales, tl.float16, ROWS, GROUPS)).to(tl.float32)
    else:
        byte = tl.load(_places(codes, tl.uint8, ROWS, DIM // 2))
        nibble = tl.join(byte & 15, byte >> 4).permute(0, 2, 1).reshape(ROWS, DIM).to(tl.int32)
        scale = _e4m3(tl.load(_places(scales, tl.uint8, ROWS, GROUPS)).to(tl.int32))
        if FORMAT.family == "e2m1":
            x = _e2m1(nibble)
            scale = scale * 2.0**14
        else:
            magnitude = (nibble & 7).to(tl.float32)
            x = tl.where(nibble < 8, magnitude, -magnitude)
    x = x.reshape(ROWS, GROUPS, FORMAT.group)
    if FORMAT.family != "bf16":
        x = x * scale[:, :, None]
    return x


@jit
@no_type_check
def _write(codes, scales, x, FORMAT: tl.constexpr, ROWS: tl.constexpr):
    """Stores a tile; returns whether every value of it is finite."""
    DIM: tl.constexpr = FORMAT.dim
    GROUPS: tl.constexpr = DIM // FORMAT.group
    x = x.reshape(ROWS, GROUPS, FORMAT.group)
    # The largest bit pattern: unlike the largest value, it is past infinity's if one is a NaN.
    magnitude = _bits(x) & _MAGNITUDE
    peak = tl.max(magnitude, axis=2)
    magnitude = _float(tl.minimum(magnitude, FORMAT.max_bits))
    amax = _float(tl.minimum(peak, FORMAT.max_bits))
    if FORMAT.family == "bf16":
        rounded = x.to(tl.bfloat16).reshape(ROWS, DIM)
        tl.store(_places(codes, tl.bfloat16, ROWS, DIM), rounded)
    elif FORMAT.family == "fp8":
        code, scale = _encode_fp8(x, magnitude, amax)
        tl.store(_places(codes, tl.uint8, ROWS, DIM), code.to(tl.uint8).reshape(ROWS, DIM))
        tl.store(_places(scales, tl.float32, ROWS, GROUPS), scale)
    elif FORMAT.family == "int8":
        code, scale = _encode_int8(x, amax)
        tl.store(_places(codes, tl.uint8, ROWS, DIM), code.to(tl.uint8).reshape(ROWS, DIM))
        tl.store(_places(scales, tl.float16, ROWS, GROUPS), scale)
    else:
        code, scale = _encode_four_bit(x, magnitude, amax, FORMAT)
        halves = code.to(tl.uint8).reshape(ROWS, 2, DIM // 2).permute(0, 2, 1)
        low, high = halves.split()
        tl.store(_places(codes, tl.uint8, ROWS, DIM // 2), low | (high << 4))
        tl.store(_places(scales, tl.uint8, ROWS, GROUPS), scale.to(tl.uint8))
    return tl.max(tl.max(peak, axis=1), axis=0) < _INF


@jit
@no_type_check
def _piece(work, planes, CUT: tl.constexpr):
    """(pair of ids, first row in a page of the pool, first row in a record) of a piece of work."""
    TILES: tl.constexpr = CUT.plane_rows // CUT.rows
    plane = planes + 2 * (work // TILES % CUT.planes)
    row = work % TILES * CUT.rows
    in_pool = tl.load(plane) * CUT.plane_rows + row
    return work // (TILES * CUT.planes), in_pool, tl.load(plane + 1) * CUT.plane_rows + row


@jit
@no_type_check
def _in_pool(codes, scales, page, row, FORMAT: tl.constexpr, CUT: tl.constexpr):
    """Where a row's codes and scales begin."""
    first = page.to(tl.int64) * CUT.pool_planes * CUT.plane_rows + row
    codes = codes.to(tl.pointer_type(tl.uint8)) + first * FORMAT.code_bytes
    return codes, scales.to(tl.pointer_type(tl.uint8)) + first * FORMAT.scale_bytes


@jit
@no_type_check
def _in_record(bank, slot, row, FORMAT: tl.constexpr, CUT: tl.constexpr):
    """The same in a bank."""
    record = bank + slot.to(tl.int64) * CUT.record_bytes
    codes = record + CUT.codes_at + row * FORMAT.code_bytes
    return codes, record + CUT.scales_at + row * FORMAT.scale_bytes


@jit
@no_type_check
def requantize_pack(
    number, sources, targets, planes, places, codes, scales, bank, flags, new_bank, new_flags,
    POOL: tl.constexpr, RECORD: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    total = tl.load(number) * (CUT.planes * CUT.plane_rows // CUT.rows)
    for work in range(tl.program_id(0), total, tl.num_programs(0)):
        pair, in_pool, in_record = _piece(work, planes, CUT)
        page, slot = tl.load(sources + pair), tl.load(targets + pair)
        old_codes, old_scales = _in_pool(codes, scales, page, in_pool, POOL, CUT)
        x = _read(old_codes, old_scales, POOL, CUT.rows)
        new_codes, new_scales = _in_record(new_bank, slot, in_record, RECORD, CUT)
        is_finite = _write(new_codes, new_scales, x, RECORD, CUT.rows)
        tl.store(new_flags + tl.load(places + pair), 0, mask=is_finite == 0)


@jit
@no_type_check
def requantize_restore(
    number, sources, targets, planes, bank, codes, scales, new_codes, new_scales,
    POOL: tl.constexpr, RECORD: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    total = tl.load(number) * (CUT.planes * CUT.plane_rows // CUT.rows)
    for work in range(tl.program_id(0), total, tl.num_programs(0)):
        pair, in_pool, in_record = _piece(work, planes, CUT)
        slot, page = tl.load(sources + pair), tl.load(targets + pair)
        old_codes, old_scales = _in_record(bank, slot, in_record, RECORD, CUT)
        x = _read(old_codes, old_scales, RECORD, CUT.rows)
        into = _in_pool(new_codes, new_scales, page, in_pool, POOL, CUT)
        _write(into[0], into[1], x, POOL, CUT.rows)
