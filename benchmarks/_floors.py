"""What the machine can do at best, measured in the same run: the floors of all other numbers."""

import time
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import _arrays, _cases, _report, _torch
from pallas_kernels.cases import Case

GIB: Final = 2**30


class Floors(NamedTuple):
    """Bytes a second.

    Attributes:
      copy: within device memory, read plus written; by whatever copies fastest.
      to_host, from_host: one big copy between device and pinned host memory.
      rows: the measurements, to be reported.
    """

    copy: float
    to_host: float
    from_host: float
    rows: tuple[dict[str, Any], ...]

    def us(self, case: Case) -> float:
        """The least microseconds that a case can take."""
        crossing = _cases.bus(case)
        if crossing is None:
            return case.moved_bytes / self.copy * 1e6
        way, size = crossing
        return size / (self.to_host if way == "to host" else self.from_host) * 1e6


def measure(*, tiny: bool, repeats: int = 5) -> Floors:
    """Measures all three."""
    size = 2**22 if tiny else 2 * GIB
    rows = [_xla_copy(size, repeats)]
    try:
        rows.append(_torch_copy(size, repeats))
    except Exception as error:  # no torch, or none that sees this device: XLA's copy is the floor
        _report.progress(f"no floor by torch: {_report.reason(error)}")
    copy = max(row["bytes_per_s"] for row in rows)
    there, back = _bus(2**22 if tiny else GIB, repeats)
    rows += [there, back]
    return Floors(copy, there["bytes_per_s"], back["bytes_per_s"], tuple(rows))


def _row(spec: str, implementation: str, moved: int, times: list[float]) -> dict[str, Any]:
    median = _report.median(times)
    _report.progress(f"{spec} by {implementation}: {moved / median / 1e9:.1f} GB/s")
    return {
        "op": "floor", "spec": spec, "implementation": implementation,
        "median_us": round(median * 1e6, 2), "floor_us": round(median * 1e6, 2),
        "floor_ratio": 1.0, "bytes": moved, "bytes_per_s": moved / median, "n": len(times),
    }  # fmt: skip


def _seconds(call, number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        out = call()
    jax.block_until_ready(out)
    return (time.perf_counter() - start) / number


def _xla_copy(size: int, repeats: int) -> dict[str, Any]:
    """Elementwise, in place: what XLA reads and writes anyway."""
    flip = jax.jit(lambda x: x ^ 1, donate_argnums=0)
    x = jax.random.bits(jax.random.key(0), (size // 4,), jnp.uint32)
    state = [flip(x)]

    def call():
        state[0] = flip(state[0])
        return state[0]

    times = [_seconds(call, 10) for _ in range(repeats)]
    return _row("copy within the device", "xla", 2 * size, times)


def _torch_copy(size: int, repeats: int) -> dict[str, Any]:
    torch = _torch.imported()
    source = torch.randint(0, 2**31 - 1, (size // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    times = []
    for turn in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            target.copy_(source)
        torch.cuda.synchronize()
        if turn:
            times.append((time.perf_counter() - start) / 10)
    del source, target
    torch.cuda.empty_cache()
    return _row("copy within the device", "torch", 2 * size, times)


def _bus(size: int, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """One big array to pinned host memory, and back."""
    host, device = (_arrays.memory(host=h) for h in (True, False))
    x = jax.block_until_ready(jax.random.bits(jax.random.key(1), (size,), jnp.uint8))
    there = jax.block_until_ready(jax.device_put(x, host))
    jax.block_until_ready(jax.device_put(there, device))
    ways = {"to host": (x, host), "from host": (there, device)}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, (array, where) in ways.items():
            times[way].append(_seconds(lambda a=array, w=where: jax.device_put(a, w), 1))
    first, second = (_row(f"one copy {way}", "device_put", size, t) for way, t in times.items())
    return first, second
