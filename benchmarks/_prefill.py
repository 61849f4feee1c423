"""What the mirror costs within a prefill chunk, not as an op by itself.

A chunk of 2,048 tokens goes through the feed-forward products of a few layers of Qwen3.5-27B, and
after each its K and V go into the pool, with the mirror to host memory or without it. A real chunk
has four layers of products, and those of attention, for every mirror, so this is its worst case.
"""

import functools
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _arrays, _cases, _claims, _floors, _timing
from pallas_kernels.append_quantized import append_quantized, mirror_tokens
from pallas_kernels.cases import Case
from pallas_kernels.codecs import Encoded, get_codec

CASE: Final = "qwen3.5-27b int8_g64 prefill (host)"
CODEC: Final = "int8_g64"
HIDDEN, INNER, LAYERS = 5120, 17408, 4  # of the model's published configuration, but for LAYERS


class Shape(NamedTuple):
    """Widths of the products, and how many layers have them."""

    hidden: int
    inner: int
    layers: int


def prefill_chunk(run: Any, floors: _floors.Floors) -> None:
    """Times the chunk without the mirror and with it, in order and as a concurrent graph."""
    tiny = run.args.tiny
    (case,) = (c for c in _cases.discover() if (c.op, c.name) == ("mirror_tokens", CASE))
    case = _cases.sized(case, tiny=tiny)
    shape = Shape(case.args[0].codes.shape[2] * case.args[0].codes.shape[4], 256, 2)
    shape = shape if tiny else Shape(HIDDEN, INNER, LAYERS)
    chunk = _Chunk(case, shape, "reference" if tiny else "pallas")
    ways = {
        f"{mirror}{order}": (mirror == "with the mirror", way)
        for mirror in ("without the mirror", "with the mirror")
        for order, way in (
            ("", _claims.Way()),
            (", a concurrent graph", _claims.Way(options=_claims.CONCURRENT)),
        )
    }
    calls = {name: chunk.call_of(*asked) for name, asked in ways.items()}
    banks = {name: call() for name, call in calls.items()}
    ordered, concurrent = (banks[name] for name, (mirrored, _) in ways.items() if mirrored)
    wrong = _arrays.num_differing(ordered, concurrent)
    times = _timing.alternate({name: (call, 1) for name, call in calls.items()}, run.args.repeats)
    without = times["without the mirror"].median
    floor = floors.us(case) * shape.layers
    for name, each in times.items():
        run.add(
            {
                "op": "prefill_chunk", "spec": f"2,048 tokens, {shape.layers} layers, {CODEC}",
                "implementation": name, "ratio_to_without": round(each.median / without, 3),
                "note": f"{each.median / without:.3f} of no mirror",
            }
            | _timing.summary(each, floor)
            | ({"equal": not wrong, "num_differing": wrong} if "with the" in name else {})
        )  # fmt: skip


class _Chunk:
    """The arrays of a chunk, and calls that work on them."""

    def __init__(self, case: Case, shape: Shape, implementation: Any):
        self.case, self.shape, self.implementation = case, shape, implementation
        rng = np.random.default_rng(0)
        fixed = _cases.fixed_args(case, rng)
        self.places = [x for _, x in sorted(_cases.id_lists(case, rng, sentinels=False).items())]
        self.pool = fixed[0]
        tokens = self.places[0].shape[1]
        sizes = [(shape.hidden, shape.inner)] * 2 + [(shape.inner, shape.hidden)]
        keys = jax.random.split(jax.random.key(0), 4)
        self.x = jax.random.normal(keys[0], (tokens, shape.hidden), jnp.bfloat16)
        self.weights = [
            jax.random.normal(key, size, jnp.bfloat16) * size[0] ** -0.5
            for key, size in zip(keys[1:], sizes, strict=True)
        ]

    def call_of(self, mirrored: bool, way: _claims.Way) -> Any:
        """A call that works on what the call before left, and returns the bank."""
        (bank,) = _cases.updated_args(self.case)
        state = [jax.tree.map(jnp.copy, self.pool), bank]
        shardings = (_arrays.memory(host=False), _arrays.memory(host=True), None)
        step = functools.partial(self._step, mirrored=mirrored)
        jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=shardings)
        rest = (self.x, self.weights, self.places)
        program = jitted.lower(*state, *rest).compile(compiler_options=_claims.options_of(way))

        def call():
            *state[:], out = program(*state, *rest)
            jax.block_until_ready(out)
            return state[1]

        return call

    def _step(self, pool: Encoded, bank, x, weights, places, *, mirrored: bool):
        heads, dim = pool.codes.shape[2], pool.codes.shape[4]
        static = {key: value for key, value in self.case.call.keywords.items() if key != "planes"}
        for layer in range(self.shape.layers):
            gate, up, down = weights
            x = x + (jax.nn.silu(x @ gate) * (x @ up)) @ down
            x = (x * jax.lax.rsqrt(jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True))).astype(
                jnp.bfloat16
            )
            rows = x[None, :, : heads * dim].reshape(1, -1, heads, dim)
            planes = (2 * layer, 2 * layer + 1)
            pool = append_quantized(
                pool, (rows, -rows), *places[:2], planes=planes, codec=get_codec(CODEC),
                implementation=self.implementation,
            )  # fmt: skip
            if mirrored:
                bank = mirror_tokens(
                    pool, bank, *places, planes=planes, implementation=self.implementation, **static
                )
        return pool, bank, x
