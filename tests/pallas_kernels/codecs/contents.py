"""Rows that codecs get wrong: ties, cuts between scales, spikes, zeros, denormals, saturation."""

import ml_dtypes
import numpy as np

KINDS = ("gaussian", "spikes", "special", "denormal", "ties", "int8 ties", "scale cuts")
E4M3_VALUES = np.arange(1, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
SPECIAL = np.array(
    [0.0, -0.0, 448, -448, 2688, 3136, 1e30, -3e38, 1e-40, -1e-45, 2.0**-9, 3e-5, 65504, 9e6],
    np.float32,
)


def ulps_around(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float32)
    return np.stack([np.nextafter(x, np.float32(0)), x, np.nextafter(x, np.float32(np.inf))], -1)


def near_ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values within an ulp of half-integer and E2M1 cuts times an E4M3 scale, one scale a row."""
    scale = rng.choice(E4M3_VALUES, (*shape[:-1], 1))
    cut = rng.choice([0.25, 0.5, 0.75, 1.25, 1.5, 1.75, 2.5, 3.5, 4.5, 5, 5.5, 6, 6.5, 7], shape)
    return np.take_along_axis(ulps_around(cut * scale), rng.integers(0, 3, (*shape, 1)), -1)[..., 0]


def near_scale_cuts(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Rows whose largest value is within an ulp of a cut between two scales."""
    mids = (E4M3_VALUES[1:] + E4M3_VALUES[:-1]) / 2
    tiny = np.arange(1, 120) / 2 * 2.0**-9
    cuts = ulps_around(np.concatenate([4 * mids, 6 * mids, 7 * mids, tiny])).reshape(-1)
    amax = rng.choice(cuts, (*shape[:-1], shape[-1] // 16, 1))
    groups = rng.uniform(-1, 1, (*shape[:-1], shape[-1] // 16, 16)).astype(np.float32) * amax
    groups[..., 3] = amax[..., 0]
    return groups.reshape(shape)


def near_int8_ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Half-integers within an ulp, times a float16 scale; every 64th value is 127 of it."""
    scale = rng.integers(1024, 2048, (*shape[:-1], 1)) * np.exp2(rng.integers(-24, -4))
    x = ulps_around((rng.integers(0, 127, shape) + 0.5) * scale)
    x = np.take_along_axis(x, rng.integers(0, 3, (*shape, 1)), -1)[..., 0]
    x[..., ::64] = 127 * scale
    return x


def contents(seed: int, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "ties":
        x = near_ties(rng, shape)
    elif kind == "int8 ties":
        x = near_int8_ties(rng, shape)
    elif kind == "scale cuts":
        x = near_scale_cuts(rng, shape)
    else:
        x = rng.standard_normal(shape) * np.exp2(rng.integers(-30, 20, (*shape[:-1], 1)))
    if kind == "denormal":
        x = rng.standard_normal(shape) * np.exp2(rng.integers(-130, -100, (*shape[:-1], 1)))
    if kind == "spikes":
        x = np.where(rng.random(shape) < 0.02, x * 1000, x)
    if kind == "special":
        x = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), x)
    x = np.where(rng.random((*shape[:-1], 1)) < 0.1, 0.0, x)
    return (x * rng.choice([-1.0, 1.0], shape)).astype(np.float32)
