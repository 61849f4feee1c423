"""How an implementation of a case is compiled and timed.

A program takes what it updates as one donated argument and returns it, so each call works on what
the call before left. A call takes about 100 us to dispatch. `single` times calls that are waited
for one by one, with that; `steady` is without: calls that take long are dispatched in a row and
waited for once, short ones run many times inside one jitted loop.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks import _arrays, _cases
from pallas_kernels.cases import Case

CALL_US: Final = 20_000  # a timed call takes at least this long
SHORT_US: Final = 13_000  # below, dispatch would show
MOST_TURNS: Final = 1_000
SLOW_US: Final = 200_000  # above, no more repeats than the fewest
FEWEST: Final = 3


class Times(NamedTuple):
    """Microseconds a call, sorted."""

    each: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.each)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.each) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.each, n=4, method="inclusive")
        return low, high


class Program:
    """One implementation of a case, as a step that updates a state.

    Attributes:
      implementation: its name.
      turns: calls inside one jitted loop.
    """

    def __init__(self, case: Case, implementation: str, turns: int = 1):
        self.case, self.implementation, self.turns = case, implementation, turns
        self.lists = _cases.list_positions(case)
        self.compiled: Any = None

    def compile(self) -> "Program":
        """Compiles for arrays that `_cases` makes, before there are any."""
        args = _cases.abstract_args(self.case)
        state = tuple(args[i] for i in self.case.donated)
        rest = {i: arg for i, arg in enumerate(args) if i not in self.case.donated}
        extra = jax.eval_shape(self.step, state, rest)[1]
        updated = tuple(_arrays.memory(host=i in self.case.host) for i in self.case.donated)
        shardings = (updated, jax.tree.map(lambda _: _arrays.memory(host=False), extra))
        step = functools.partial(self._loop, extra) if self.turns > 1 else self.step
        jitted = jax.jit(step, donate_argnums=0, out_shardings=shardings)
        self.compiled = jitted.lower(state, rest).compile()
        return self

    def __call__(self, state: Any, rest: dict[int, Any]) -> tuple[Any, Any]:
        """(what was updated, what else is returned)."""
        return self.compiled(state, rest)

    def step(self, state: Any, rest: dict[int, Any]) -> tuple[Any, Any]:
        """What is compiled, once."""
        given = dict(zip(self.case.donated, state, strict=True)) | rest
        args = [given[i] for i in range(len(self.case.args))]
        out = self.case.call(*args, implementation=self.implementation)
        if len(state) == 1 and _alike(out, state[0]):
            return (out,), ()
        return tuple(out[: len(state)]), tuple(out[len(state) :])

    def _loop(self, extra: Any, state: Any, rest: dict[int, Any]) -> tuple[Any, Any]:
        """`turns` steps. Ids are new to each turn, so that what follows from them is too."""

        def body(i, carry):
            ids = {k: v for k, v in rest.items() if k in self.lists}
            ids, _ = lax.optimization_barrier((ids, i))
            return self.step(carry[0], rest | ids)

        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), extra)
        return lax.fori_loop(0, self.turns, body, (state, nothing))


def _alike(a: Any, b: Any) -> bool:
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all((x.shape, x.dtype) == (y.shape, y.dtype) for x, y in pairs)


def turns_for(us: float) -> int:
    """Turns of a loop that takes `CALL_US`, if one takes `us`."""
    return max(1, min(MOST_TURNS, round(CALL_US / max(us, 1.0))))


def row_us(call: Callable[[], Any], number: int) -> float:
    """Microseconds a call, of `number` dispatched in a row and waited for once."""
    start = time.perf_counter_ns()
    out = None
    for _ in range(number):
        out = call()
    jax.block_until_ready(out)
    return (time.perf_counter_ns() - start) / 1e3 / number


def alternate(calls: dict[Any, tuple[Callable[[], Any], int]], repeats: int) -> dict[Any, Times]:
    """Times each of `calls` in turn, so that a busy moment of the machine falls on all alike.

    Args:
      calls: name -> (a call, how many of it make a row).
      repeats: rounds; slow calls sit out most of them.
    """
    for call, _ in calls.values():
        jax.block_until_ready(call())
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for turn in range(repeats):
        for name, (call, number) in calls.items():
            if turn < FEWEST or sum(times[name]) * number < FEWEST * SLOW_US:
                times[name].append(row_us(call, number))
    return {name: Times(tuple(sorted(each))) for name, each in times.items()}


def summary(times: Times, floor: float, turns: int = 1) -> dict[str, Any]:
    """What a row of the report says of times of `turns` calls each."""
    low, high = times.quartiles
    return {
        "median_us": round(times.median / turns, 2),
        "quartiles_us": [round(low / turns, 2), round(high / turns, 2)],
        "floor_us": round(floor, 2),
        "floor_ratio": round(floor * turns / times.median, 4),
        "n": len(times.each),
    }


class Chain:
    """Programs of one case that take turns in updating one state."""

    def __init__(self, state: Any, rest: dict[int, Any]):
        self.state, self.rest = state, rest

    def call_of(self, program: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[], Any]:
        """A call of one of them; it returns what has to be waited for."""

        def call():
            self.state, extra = program(self.state, self.rest)
            return self.state, extra

        return call
