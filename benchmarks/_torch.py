"""What torch does beside the kernels, and with the same work; where it is installed."""

import importlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from benchmarks import _timing

E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
GROUP: Final = 16  # channels under one scale


def imported() -> Any:
    """torch, on a GPU.

    Raises:
      RuntimeError: if there is none.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise RuntimeError(f"no torch: {error}") from error
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
    return torch


def seconds_by_events(call: Callable[[], Any], number: int) -> float:
    """Seconds a call, of `number` in a row, on the device's clock."""
    torch = imported()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(number):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3 / number


def times_of(call: Callable[[], Any], floor: float, repeats: int) -> _timing.Times:
    """Microseconds a call, in rows that take a few milliseconds."""
    imported()
    for _ in range(3):
        call()
    number = _timing.turns_for(max(floor, seconds_by_events(call, 3) * 1e6))
    return _timing.Times(
        tuple(sorted(seconds_by_events(call, number) * 1e6 for _ in range(repeats)))
    )


class Started:
    """Products that were enqueued: when they began and end."""

    def __init__(self, first: Any, last: Any):
        self.first, self.last = first, last

    def is_done(self) -> bool:
        return self.last.query()


class Products:
    """Matrix products on a stream of their own, as many as keep the device busy for a while.

    Attributes:
      size: of the square matrices, in bfloat16.
      number: products.
    """

    def __init__(self, size: int, number: int):
        self.torch = torch = imported()
        self.number, self.stream = number, torch.cuda.Stream()
        shape = (size, size)
        self.a, self.b, self.c = (
            torch.randn(shape, device="cuda").to(torch.bfloat16) for _ in range(3)
        )
        torch.cuda.synchronize()
        self.finish(self.start(3))

    def start(self, number: int | None = None) -> Started:
        """Enqueues them, and waits for nothing."""
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(self.stream):
            first.record()
            for _ in range(number or self.number):
                self.torch.matmul(self.a, self.b, out=self.c)
            last.record()
        return Started(first, last)

    def finish(self, started: Started) -> float:
        """Waits; microseconds a product."""
        started.last.synchronize()
        return started.first.elapsed_time(started.last) * 1e3 / self.number


class Restore:
    """`requantize.restore` of nvfp4_g16 into bf16, in plain torch: gather, decode, scatter.

    Attributes:
      pool: bf16, [page, plane, head, token, channel].
      num_wrong: values of the restored pages that are not those of the pool it was given.
    """

    def __init__(self, pool: Any, bank: Any, page_ids: Any, slot_ids: Any):
        self.torch = torch = imported()
        self.shape = pool.shape[1:]
        self.pool = torch.full(pool.shape, float("nan"), dtype=torch.bfloat16, device="cuda")
        self.bank = torch.from_numpy(np.array(bank)).cuda()
        self.page_ids, self.slot_ids = (
            torch.from_numpy(np.array(ids)).long().cuda() for ids in (page_ids, slot_ids)
        )
        values = (*E2M1, *(-x for x in E2M1))
        self.table = torch.tensor(values, dtype=torch.bfloat16, device="cuda")
        self.num_codes = int(np.prod(self.shape)) // 2
        restored = self()[self.page_ids].view(torch.int16).cpu().numpy()
        right = np.asarray(pool)[np.asarray(page_ids)].view(np.int16)
        self.num_wrong = int(np.sum(restored != right))

    def parts(self) -> tuple[Any, Any]:
        """Codes and scales of the records, [page, plane, head, token, bytes]."""
        records = self.bank.index_select(0, self.slot_ids)
        lead = (records.shape[0], *self.shape[:-1])
        codes = records[:, : self.num_codes].reshape(*lead, -1)
        return codes, records[:, self.num_codes :].reshape(*lead, -1)

    def __call__(self) -> Any:
        codes, scales = self.parts()
        nibbles = self.torch.cat([codes & 0xF, codes >> 4], dim=-1)
        self.pool.index_copy_(0, self.page_ids, self._decoded(nibbles, scales))
        return self.pool

    def _decoded(self, nibbles: Any, scales: Any) -> Any:
        """Values of nibbles, a scale for each `GROUP` of them."""
        values = self.table[nibbles.int()].reshape(*nibbles.shape[:-1], -1, GROUP)
        factors = scales.view(self.torch.float8_e4m3fn).to(self.torch.bfloat16)
        return (values * factors[..., None]).reshape(nibbles.shape)

    def num_differing_rows(self, codes: Any, scales: Any, out: Any) -> int:
        """Values of `out` that are not its rows of these parts, two channels a byte in order."""
        size = out.numel()
        some = codes.reshape(-1)[: size // 2]
        nibbles = self.torch.stack([some & 0xF, some >> 4], dim=-1).reshape(1, -1)
        decoded = self._decoded(nibbles, scales.reshape(1, -1)[:, : size // GROUP])
        return int((decoded.reshape(-1) != out.reshape(-1)).sum())
