"""A small model behind an engine, compiled once for all tests that serve it."""

import functools

import jax
import numpy as np

import tiercache as tc
from models import decode as loops
from models.engine import Config, Engine, Request
from models.hybrid_gdn import recurrent_leaves
from tests.models.conftest import build

MODEL = {"num_hidden_layers": 4, "head_dim": 64}  # two attention layers, two recurrent ones
PAGE = 16


@functools.cache
def model():
    return build(**MODEL)


def spec_of(**changes) -> tc.CacheSpec:
    config, _, _ = model()
    values = dict(
        num_layers=config.num_attention_layers,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        page_size=PAGE,
        num_pages=21,
        max_rows=3,
        max_pages=12,
        snapshot_leaves=tuple(
            tc.SnapshotLeaf(name, shape, str(dtype))
            for name, shape, dtype in recurrent_leaves(config)
        ),
        num_host_pages=40,
        num_snapshots=7,
        num_host_snapshots=9,
    )
    return tc.CacheSpec(**{**values, **changes})


SPEC = spec_of()
CONFIG = Config(chunk=64, decode_steps=32)


@functools.cache
def _engine(spec: tc.CacheSpec, config: Config) -> Engine:
    _, apply, params = model()
    return Engine(apply, params, spec, config)


def engine(spec: tc.CacheSpec = SPEC, config: Config = CONFIG, *, seed: int = 0) -> Engine:
    """An engine without a past; its compiled functions are those of the one before."""
    found = _engine(spec, config)
    found.cache, found.rows = tc.init_state(spec), loops.init_rows(spec, seed=seed)
    found.reports, found._requests = {}, {}
    return found


def request(length: int, seed: int = 0, *, like: Request | None = None, shared=0, **options):
    """A random prompt, whose first `shared` tokens are those of another."""
    tokens = np.random.default_rng([7, seed]).integers(0, 61, length)
    if like is not None:
        tokens[:shared] = like.tokens[:shared]
    return Request(tuple(tokens.tolist()), **{"max_new": 12, **options})


def num_free(state: tc.CacheState) -> dict[str, int]:
    """Free ids of every space."""
    return {
        "pages": int(np.sum(np.asarray(state.pages.refs) == 0)),
        "slots": int(np.sum(np.asarray(state.cold.refs) == 0)),
        "snapshots": int(np.sum(np.asarray(state.snapshots.owner) == -1)),
        "pins": int(np.sum(np.asarray(state.index.pins))),
    }


@functools.cache
def _check(spec: tc.CacheSpec):
    return jax.jit(functools.partial(tc.check, spec=spec))


def sound(engine: Engine):
    """Asserts every invariant."""
    found = jax.device_get(_check(engine.spec)(engine.cache))
    assert all(found.values()), [name for name, ok in found.items() if not ok]
