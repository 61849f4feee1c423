"""Requantize by jax-triton: on a GPU against the codecs and the others, elsewhere what it refuses.

On a GPU: `JAX_PLATFORMS=cuda,cpu pytest tests/pallas_kernels/test_requantize_triton.py`.
"""

import functools
import importlib.util
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import dispatch, requantize
from pallas_kernels.codecs import HEAD_DIMS
from pallas_kernels.page_copy.pairs import existing
from pallas_kernels.requantize import api
from pallas_kernels.requantize.api import pack, restore
from tests.pallas_kernels.kernel_inputs import (
    assert_same_bytes,
    in_host,
    is_in_host,
    on_h200,
    that_exist,
)
from tests.pallas_kernels.test_requantize import (
    BACK_IDS,
    DOUBTFUL,
    DOUBTFUL_IDS,
    DOUBTFUL_SLOTS,
    MIXED,
    NARROW,
    NONE,
    PAGE_IDS,
    PAGES,
    SLOT_IDS,
    SLOTS,
    WIDE,
    Way,
    assert_packs,
    nans_like,
    planes_of,
    poisoned,
    pool_of,
    record_of,
    transcoded,
    with_a_nan,
    with_an_infinity,
)

HOT = ("bf16", "fp8_e4m3", "int8_g64", "nvfp4_g16", "e2m1_g64", "int4_g16")
COLD = ("nvfp4_g16", "nvfp4_g16+search", "e2m1_g64", "e2m1_g64+search", "int4_g16")
# The last two are of those that a spec has to be forced to.
FORMATS = (*itertools.product(HOT, COLD), ("int8_g64", "bf16"), ("bf16", "fp8_e4m3"))
FOURS = tuple(FORMATS[i : i + 4] for i in range(0, len(FORMATS), 4))
OTHERS = ("pallas", "reference")


def lacking() -> str:
    """What keeps the kernels from running here; empty if nothing does."""
    if dispatch.platform() != "gpu":
        return "needs a GPU, and JAX_PLATFORMS=cuda,cpu"
    if importlib.util.find_spec("jax_triton") is None:
        return "needs the extra tiercache[triton]"
    return ""


on_gpu = pytest.mark.skipif(bool(lacking()), reason=lacking() or "never")
off_gpu = pytest.mark.skipif(dispatch.platform() == "gpu", reason="needs a machine without a GPU")


def way_of(formats, dim: int) -> Way:
    """Four pairs of formats as two layers, K and V."""
    (a, b), (c, d) = (tuple(zip(*formats[i : i + 2], strict=True)) for i in (0, 2))
    return Way((a, c), (b, d), dim)


def jitted(op, host: bool = False, **static):
    """An op that donates its bank or its pool, which stays where it is."""
    if op not in (pack, api.PACK["triton"]):
        return jax.jit(functools.partial(op, **static), donate_argnums=0)
    bank = in_host(0).sharding if host else None
    step = functools.partial(op, **static)
    return jax.jit(step, donate_argnums=1, out_shardings=(bank, None) if host else None)


def bank_of(way: Way, seed: int) -> tuple[np.ndarray, list[dict]]:
    """A full bank, and the planes of each of its records."""
    records = planes_of(seed, way.cold, way.dim, SLOTS + 1)
    return np.stack([record_of(way.layouts["target"], planes) for planes in records]), records


def poisoned_pool(way: Way):
    pool = pool_of(way.layouts["source"], planes_of(3, way.hot, way.dim, PAGES))
    return jax.tree.map(nans_like, pool)


def assert_restores(way: Way, function) -> None:
    bank, records = bank_of(way, 2)
    for page_ids in (BACK_IDS, NONE):
        pairs = existing(jnp.array(SLOT_IDS), SLOTS, jnp.array(page_ids), PAGES)
        pool = poisoned_pool(way)
        want = jax.tree.map(np.array, pool)
        for slot, page in that_exist(SLOT_IDS, SLOTS, page_ids, PAGES):
            planes = transcoded(records[slot], way.cold, way.hot)
            new = jax.tree.leaves(pool_of(way.layouts["source"], [planes]))
            for leaf, value in zip(jax.tree.leaves(want), new, strict=True):
                leaf[page] = np.asarray(value)[0]
        pool = jax.tree.map(jnp.asarray, pool)
        assert_same_bytes(function(pool, jnp.asarray(bank), pairs), want)


@on_gpu
@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("formats", FOURS, ids=range(len(FOURS)))
def test_every_pair_of_formats_has_the_bytes_of_the_codecs(formats, dim):
    way = way_of(formats, dim)
    assert_packs(way, jitted(api.PACK["triton"], **way.layouts), host=False)
    assert_restores(way, jitted(api.RESTORE["triton"], **way.layouts))


@on_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("way", "host"), [(MIXED, False), (NARROW, True), (WIDE, False)], ids=["128", "64", "256"]
)
def test_all_implementations_give_the_same_bytes(way, host, monkeypatch):
    if host:
        staged = "pallas_kernels.requantize.staged.STAGED_PAGES"
        monkeypatch.setattr(staged, 3)  # four pairs, so two turns
    put = in_host if host else jnp.asarray
    pool = pool_of(way.layouts["source"], planes_of(1, way.hot, way.dim, PAGES))
    size = way.layouts["target"].record_bytes
    full, _ = bank_of(way, 2)
    found = {}
    for name in ("triton", *OTHERS):
        static = {**way.layouts, "implementation": name}
        ids = jnp.array(PAGE_IDS), jnp.array(SLOT_IDS)
        packed = jitted(pack, host, **static)(pool, put(poisoned(size)), *ids)
        assert is_in_host(packed[0]) == host
        back = jnp.array(BACK_IDS), jnp.array(SLOT_IDS)
        old = jax.tree.map(jnp.asarray, poisoned_pool(way))
        found[name] = jax.device_get((packed, jitted(restore, **static)(old, put(full), *back)))
    for name in OTHERS:
        assert_same_bytes(found["triton"], found[name])


@on_gpu
@pytest.mark.parametrize("host", [False, True], ids=["device", "host"])
def test_one_value_that_is_not_finite_is_told_of_its_page_alone(host):
    layouts, pages = MIXED.layouts, planes_of(4, MIXED.hot, MIXED.dim, PAGES)
    pages[0], pages[2] = with_a_nan(pages[0]), with_an_infinity(pages[2])
    pool, bank = pool_of(layouts["source"], pages), poisoned(layouts["target"].record_bytes)
    step = jitted(pack, host, **layouts, implementation="triton")
    ids = jnp.array(DOUBTFUL_IDS), jnp.array(DOUBTFUL_SLOTS)
    bank, finite = step(pool, (in_host if host else jnp.asarray)(bank), *ids)
    assert finite.tolist() == DOUBTFUL
    bank = np.asarray(bank)
    for slot, page in ((1, 3), (3, 4)):
        planes = transcoded(pages[page], MIXED.hot, MIXED.cold)
        assert_same_bytes(bank[slot], record_of(layouts["target"], planes))
    np.testing.assert_array_equal(bank[4:], 0xFF)


@on_gpu
@pytest.mark.parametrize("host", [False, True], ids=["device", "host"])
def test_what_is_donated_is_updated_where_it_is(host):
    put = in_host if host else jnp.asarray
    pool = pool_of(WIDE.layouts["source"], planes_of(5, WIDE.hot, WIDE.dim, PAGES))
    static = {**WIDE.layouts, "implementation": "triton"}
    ids = jnp.array(PAGE_IDS), jnp.array(SLOT_IDS)
    bank = put(poisoned(WIDE.layouts["target"].record_bytes))
    before = bank.unsafe_buffer_pointer()
    bank, _ = jitted(pack, host, **static)(pool, bank, *ids)
    assert bank.unsafe_buffer_pointer() == before
    before = pool[0].codes.unsafe_buffer_pointer()
    pool = jitted(restore, **static)(pool, bank, jnp.array(BACK_IDS), ids[1])
    assert pool[0].codes.unsafe_buffer_pointer() == before


def test_it_is_taken_by_its_name_alone():
    for table in (api.PACK, api.RESTORE):
        assert list(table) == ["pallas", "reference", "triton"]  # the reference serves anywhere


def trace(op) -> None:
    pool = pool_of(WIDE.layouts["source"], planes_of(7, WIDE.hot, WIDE.dim, 1))
    bank = jnp.zeros((2, WIDE.layouts["target"].record_bytes), jnp.uint8)
    ids = jnp.zeros(1, jnp.int32)
    step = functools.partial(op, **WIDE.layouts, implementation="triton")
    jax.eval_shape(step, pool, bank, ids, ids)


@off_gpu
@pytest.mark.parametrize("op", [pack, restore])
def test_off_a_gpu_it_refuses(op):
    with pytest.raises(NotImplementedError, match="requantize runs on GPUs, not on a cpu"):
        trace(op)


@pytest.mark.parametrize("op", [pack, restore])
def test_without_the_extra_it_names_it(op, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_triton", None)  # an import of it now fails
    for name in ("triton", "triton_calls"):
        monkeypatch.delitem(sys.modules, f"{requantize.__name__}.{name}", raising=False)
        monkeypatch.delattr(requantize, name, raising=False)
    named = r"the extra tiercache\[triton\]"
    with on_h200(), pytest.raises(NotImplementedError, match=named):
        trace(op)
