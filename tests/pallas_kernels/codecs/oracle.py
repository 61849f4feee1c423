"""The codecs once more, in NumPy and by other means: float64 division and ml_dtypes rounding.

`encode` and `decode` take the codec's name. Nothing here is shared with the library. A cast of
float64 to an ml_dtypes type rounds to float32 on the way; no quotient of a float32 by a scale is
near enough to a tie, and not on it, for that to matter.
"""

from typing import Final

import ml_dtypes
import numpy as np

TINY: Final = 2.0**-9
E2M1_VALUES: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
# First amax, in units of 2**-9, with a scale of 2, 3, .. 8 units. "+" is the next float32 up.
STARTS: Final = {
    6: ("7+", "15+", "21", "27+", "33", "39+", "45"),
    4: ("7+", "10.5", "14", "18+", "22", "26+", "30"),
    7: ("7.5", "16.5", "22.5", "29", "35.5", "45.5+", "52.5"),
}
FAMILIES: Final = {"nvfp4_g16": (16, 6), "e2m1_g64": (64, 6), "int4_g16": (16, 7)}


def encode(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Codes and scales of x[..., token, dim]."""
    if name == "bf16":
        return x.astype(ml_dtypes.bfloat16), None
    x = np.where(np.isnan(x), 0.0, x.astype(np.float64))
    if name == "fp8_e4m3":
        return _encode_fp8(x)
    if name == "int8_g64":
        return _encode_int8(x)
    base, _, flag = name.partition("+")
    group, divisor = FAMILIES[base]
    return _encode_four_bit(x, group, divisor, flag == "search")


def decode(name: str, codes: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """Float32 values of what `encode` gives."""
    if scales is None:
        return codes.astype(np.float32)
    if name == "fp8_e4m3":
        return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales
    if name == "int8_g64":
        return codes.astype(np.float32) * np.repeat(scales.astype(np.float32), 64, axis=-1)
    group, divisor = FAMILIES[name.partition("+")[0]]
    nibbles = np.concatenate([codes & 15, codes >> 4], axis=-1)
    values = np.where(nibbles & 8, -1.0, 1.0) * _lattice(divisor)[nibbles & 7]
    scale = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return (values * np.repeat(scale, group, axis=-1)).astype(np.float32)


def _encode_fp8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = np.where(np.abs(x) < 2.0**-126, 0.0, np.clip(x, -1.875 * 2.0**127, 1.875 * 2.0**127))
    amax = np.abs(x).max(-1, keepdims=True)
    mantissa, exponent = np.frexp(amax)  # amax = mantissa * 2**exponent, mantissa in [1/2, 1)
    exponent = np.where(mantissa * 512 <= 464, exponent - 9, exponent - 8)
    scale = np.ldexp(1.0, np.maximum(np.where(amax > 0, exponent, -117), -117))
    codes = np.clip(x / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    codes = np.where(codes == 0x80, 0, codes).astype(np.uint8)
    return codes, np.where(codes.any(-1, keepdims=True), scale, 0.0).astype(np.float32)


def _encode_int8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    groups = np.clip(x, -127 * 65504, 127 * 65504).reshape(*x.shape[:-1], -1, 64)
    amax = np.abs(groups).max(-1).astype(np.float32)
    scale = (amax * np.float32(1 / 127)).astype(np.float16)
    divisor = np.where(scale > 0, scale.astype(np.float64), np.inf)[..., None]
    codes = np.clip(np.rint(groups / divisor), -127, 127).astype(np.int8)
    return codes.reshape(x.shape), scale


def _lattice(divisor: int) -> np.ndarray:
    return np.arange(8.0) if divisor == 7 else E2M1_VALUES


def _scale(amax: np.ndarray, divisor: int) -> np.ndarray:
    rounded = np.minimum(amax / divisor, 448).astype(ml_dtypes.float8_e4m3fn)
    starts = np.array([float(start.rstrip("+")) * TINY for start in STARTS[divisor]])
    open_ended = [start.endswith("+") for start in STARTS[divisor]]
    starts = np.where(open_ended, np.nextafter(starts.astype(np.float32), np.float32(1)), starts)
    units = 1 + np.searchsorted(starts, amax, side="right")
    return np.where(units < 8, units * TINY, rounded.astype(np.float64))


def _codes(magnitude: np.ndarray, scale: np.ndarray, divisor: int) -> np.ndarray:
    quotient = magnitude / scale[..., None]
    if divisor == 7:
        return np.minimum(np.rint(quotient), 7).astype(np.uint8)
    return np.minimum(quotient, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 7


def _error(magnitude: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Squares of errors truncated to 2**-13 of the power of two at or below amax."""
    _, exponent = np.frexp(magnitude.max(-1, keepdims=True))
    error = np.abs(magnitude - E2M1_VALUES[_codes(magnitude, scale, 6)] * scale[..., None])
    units = np.minimum(np.floor(np.ldexp(error, 14 - exponent)), 5792)
    return np.square(units.astype(np.int64)).sum(-1)


def _search(magnitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the better of two scales stores, and its scale: amax/4 of that if it stores the same."""
    amax = magnitude.max(-1)
    by_six, by_four = _scale(amax, 6), _scale(amax, 4)
    better = np.where(_error(magnitude, by_four) < _error(magnitude, by_six), by_four, by_six)
    stored = E2M1_VALUES[_codes(magnitude, better, 6)] * better[..., None]
    again = _scale(stored.max(-1), 4)
    is_exact = np.isin(stored / again[..., None], E2M1_VALUES).all(-1)
    return stored, np.where(is_exact, again, better)


def _encode_four_bit(
    x: np.ndarray, group: int, divisor: int, search: bool
) -> tuple[np.ndarray, np.ndarray]:
    limit = _lattice(divisor)[-1] * 448
    groups = np.clip(x, -limit, limit).reshape(*x.shape[:-1], -1, group)
    magnitude = np.abs(groups)
    scale = _scale(magnitude.max(-1), divisor)
    if search:
        magnitude, scale = _search(magnitude)
    codes = _codes(magnitude, scale, divisor)
    scale = np.where(codes.any(-1), scale, 0.0)
    codes = np.where((groups < 0) & (codes > 0), codes + 8, codes).reshape(x.shape)
    low, high = np.split(codes.astype(np.uint8), 2, axis=-1)
    return low | (high << 4), scale.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
