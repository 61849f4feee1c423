"""What is said of the kernels together, measured: not one op at one shape.

- `both_directions`: records to host memory and others from it in one step, by several ways to ask
  for both at once, beside each direction alone.
- `prefix_restore`: a prefix of 32,768 tokens from 4-bit records in host memory into bf16 pages,
  with one snapshot of the recurrent state; alone, and while matrix products keep the device busy.
- planes of 9 KB, scattered, as cases of `page_copy`.
"""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compute_on import compute_on

from benchmarks import _arrays, _cases, _floors, _measure, _report, _timing, _torch
from pallas_kernels import cases, page_copy
from pallas_kernels.banks import default_device, num_slots
from pallas_kernels.cases import Case
from pallas_kernels.page_copy import pallas, reference
from pallas_kernels.page_copy.pairs import existing

HOST: Final = jax.memory.Space.Host
DEVICE: Final = jax.memory.Space.Device
RECORDS: Final = "qwen3.5-27b nvfp4_g16"
PLANE: Final = 9216  # bytes: 64 tokens of 256 channels in 4 bits, and their scales
NUM_PLANES: Final = 4096
# What is independent becomes branches of one CUDA graph, also where there is little of it.
CONCURRENT: Final = {
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    "xla_gpu_graph_min_graph_size": 1,
}


class Way(NamedTuple):
    """How one jitted call is asked to do two things at once.

    Attributes:
      streams: of stores and of loads; None is the main one.
      options: of the compiler.
    """

    streams: tuple[int | None, int | None] = (None, None)
    options: dict[str, Any] | None = None


ONE_PROGRAM: Final = {
    "one jit": Way(),
    "one jit, stores on a stream": Way((1, None)),
    "one jit, each on a stream": Way((1, 2)),
    "one jit, a concurrent graph": Way(options=CONCURRENT),
}


def planes() -> tuple[Case, Case]:
    """Single planes between a pool and a host bank: the smallest records that anybody moves."""
    pool = (jax.ShapeDtypeStruct((2 * NUM_PLANES, PLANE), jnp.uint8),)
    bank, ids = cases.bank_of(4 * NUM_PLANES, PLANE), cases.ids_of(NUM_PLANES)
    sides = ((2, 2 * NUM_PLANES), (3, 4 * NUM_PLANES))
    name = f"{NUM_PLANES} planes of {PLANE} bytes"
    moved, args = 2 * NUM_PLANES * PLANE, (pool, bank, ids, ids)
    to_host = Case(
        "page_copy", f"{name} to host", page_copy.store_records, args, sides, (1,), (1,), moved
    )
    from_host = Case(
        "page_copy", f"{name} from host", page_copy.load_records, args, sides, (1,), (0,), moved
    )
    return to_host, from_host


def _case(op: str, name: str, *, tiny: bool) -> Case:
    (case,) = (c for c in _cases.discover() if (c.op, c.name) == (op, name))
    return _cases.sized(case, tiny=tiny)


def _args(case: Case) -> tuple[Any, dict[int, Any]]:
    """(what is updated, the rest), to be timed."""
    rng = np.random.default_rng(0)
    rest = _cases.fixed_args(case, rng) | _cases.id_lists(case, rng, sentinels=False)
    return _cases.updated_args(case), rest


def both_directions(run: Any, floors: _floors.Floors) -> None:
    """Times each direction alone, and both at once by every way that works."""
    tiny, name = run.args.tiny, "reference" if run.args.tiny else "pallas"
    both = [_case("page_copy", f"{RECORDS} {way}", tiny=tiny) for way in ("to host", "from host")]
    chains = [_timing.Chain(*_args(case)) for case in both]
    calls = [
        chain.call_of(_timing.Program(case, name).compile())
        for case, chain in zip(both, chains, strict=True)
    ]
    right = [call()[0][0] for call in calls]
    ways: dict[str, Callable[[], Any]] = {
        "to host alone": calls[0],
        "from host alone": calls[1],
        "one after the other": lambda: [call() for call in calls],
        "two threads": lambda: _in_threads(calls),
        "two device_puts": _device_puts(both[0]),
    }
    floor = max(floors.us(case) for case in both)
    row = _measure.row_of(both[0], "", floor) | {"op": "both_directions", "spec": RECORDS}
    row |= {"bus_bytes": 2 * row["bus_bytes"], "bytes": sum(case.moved_bytes for case in both)}
    found: dict[str, dict[str, Any]] = {}
    for way, asked in ONE_PROGRAM.items():
        try:
            program = _one_program(both, name, asked)
            fresh = [_cases.updated_args(case)[0] for case in both]
            out = program(*fresh, *(chain.rest for chain in chains))
            wrong = _arrays.num_differing(out, right)
            found[way] = {"equal": not wrong, "num_differing": wrong}
            ways[way] = _joined(program, chains)
        except Exception as error:
            run.add(row | {"implementation": way, "unable": _report.reason(error)})
    del right
    times = _timing.alternate({way: (call, 1) for way, call in ways.items()}, run.args.repeats)
    one = max(times["to host alone"].median, times["from host alone"].median)
    for way, each in times.items():
        ratio = {"ratio_to_one": round(each.median / one, 3)}
        ratio |= {"note": f"{each.median / one:.2f} of one direction"} | found.get(way, {})
        run.add(row | {"implementation": way} | _timing.summary(each, floor) | ratio)


def _in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """Both called at once; what has to be waited for."""
    out: list[Any] = [None, None]

    def work(number):
        out[number] = calls[number]()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def _device_puts(case: Case) -> Callable[[], Any]:
    """As many bytes as contiguous arrays, each way: what the bus does at best."""
    number, size = case.args[2].shape[0], case.args[1].shape[1]
    host, device = (_arrays.memory(host=h) for h in (True, False))
    here = _arrays.random(jax.ShapeDtypeStruct((number, size), jnp.uint8))
    there = jax.device_put(here, host)
    return lambda: (jax.device_put(here, host), jax.device_put(there, device))


def _one_program(both: list[Case], name: str, way: Way) -> Any:
    """One jitted call that does both."""
    kernels = reference if name == "reference" else pallas

    def on(stream, call, space):
        call = functools.partial(call, axis=0)
        if stream is None:
            return call
        # Of the kernel alone: the compiler loses track of streams in calls within calls.
        return compute_on(compute_type=f"gpu_stream:{stream}", out_memory_spaces=space)(call)

    def step(bank, pool, store_rest, load_rest):
        source, item_ids, slot_ids = (store_rest[i] for i in (0, 2, 3))
        there = existing(item_ids, source[0].shape[0], slot_ids, num_slots(bank))
        full, item_ids, slot_ids = (load_rest[i] for i in (1, 2, 3))
        back = existing(slot_ids, num_slots(full), item_ids, pool[0].shape[0])
        bank = on(way.streams[0], kernels.store_records, HOST)(source, bank, there)
        return bank, on(way.streams[1], kernels.load_records, DEVICE)(pool, full, back)

    args = [_cases.abstract_args(case) for case in both]
    rests = [
        {i: x for i, x in enumerate(arg) if i not in case.donated}
        for case, arg in zip(both, args, strict=True)
    ]
    shardings = (_arrays.memory(host=True), _arrays.memory(host=False))
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=shardings)
    return jitted.lower(args[0][1], args[1][0], *rests).compile(compiler_options=options_of(way))


def options_of(way: Way) -> dict[str, Any] | None:
    """Those of the compiler for GPUs; another has none of them."""
    return way.options if default_device().platform == "gpu" else None


def _joined(program: Any, chains: list[_timing.Chain]) -> Callable[[], Any]:
    """A call of both on the states of both chains."""

    def call():
        first, second = chains
        bank, pool = program(first.state[0], second.state[0], first.rest, second.rest)
        first.state, second.state = (bank,), (pool,)
        return bank, pool

    return call


class _Prefix:
    """A prefix and a snapshot in host memory, restored by one jitted call."""

    def __init__(self, *, tiny: bool, implementation: str):
        self.cases = (
            _case("requantize_restore", "qwen3.5-27b nvfp4_g16 -> bf16 (host)", tiny=tiny),
            _case("page_copy", "1 snapshots of qwen3.5-27b restore from host", tiny=tiny),
        )
        given = [_args(case) for case in self.cases]
        self.state, self.rest = ([x[i] for x in given] for i in range(2))
        programs = [_timing.Program(case, implementation) for case in self.cases]

        def step(states, rests):
            pairs = zip(programs, states, rests, strict=True)
            return [program.step(state, rest)[0] for program, state, rest in pairs]

        jitted = jax.jit(step, donate_argnums=0, out_shardings=_arrays.memory(host=False))
        self.compiled = jitted.lower(self.state, self.rest).compile()

    @property
    def bus_bytes(self) -> int:
        return sum(crossing[1] for case in self.cases if (crossing := _cases.bus(case)))

    def __call__(self) -> Any:
        self.state = self.compiled(self.state, self.rest)
        return self.state


def prefix_restore(run: Any, floors: _floors.Floors) -> None:
    """Times the restore alone, and beside matrix products where torch can enqueue them."""
    tiny = run.args.tiny
    prefix = _Prefix(tiny=tiny, implementation="reference" if tiny else "pallas")
    floor = prefix.bus_bytes / floors.from_host * 1e6
    times = _timing.alternate({"alone": (prefix, 1)}, 2 * run.args.repeats)["alone"]
    base = {
        "op": "prefix_restore", "spec": "32,768 tokens and a snapshot of qwen3.5-27b",
        "bus_bytes": prefix.bus_bytes, "bytes": prefix.bus_bytes,
    }  # fmt: skip

    def add(name, times, **more):
        speed = prefix.bus_bytes / times.median / 1e3
        more |= {"gb_per_s": round(speed, 2), "note": more.get("note", f"{speed:.1f} GB/s")}
        run.add(base | {"implementation": name} | _timing.summary(times, floor) | more)

    add("alone", times)
    try:
        products = _torch.Products(size=8192, number=200)
    except Exception as error:
        run.add(
            base | {"implementation": "beside products", "median_us": None, "floor_us": floor,
                    "floor_ratio": None, "unable": _report.reason(error)}
        )  # fmt: skip
        return
    alone = products.finish(products.start())
    begun, beside = products.start(), []
    while not begun.is_done():
        start = time.perf_counter_ns()
        jax.block_until_ready(prefix())
        beside.append((time.perf_counter_ns() - start) / 1e3)
    busy = products.finish(begun)
    # The last one outlasts the products.
    times = _timing.Times(tuple(sorted(beside[:-1] or beside)))
    add(
        "beside products", times, product_us_alone=round(alone, 1),
        product_us_beside=round(busy, 1), restores=len(beside),
        note=f"a product {alone:.0f} us alone, {busy:.0f} beside",
    )  # fmt: skip
