"""Pages to records of another format and back: kernel and reference against NumPy codecs."""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.codecs import Encoded
from pallas_kernels.page_copy.pairs import existing
from pallas_kernels.page_layout import PageLayout, Payload
from pallas_kernels.requantize import arg_specs, pallas, reference, staged
from pallas_kernels.requantize.api import pack, restore
from tests.pallas_kernels.codecs import oracle
from tests.pallas_kernels.codecs.contents import KINDS, contents
from tests.pallas_kernels.kernel_inputs import (
    SENTINEL,
    as_bytes,
    assert_same_bytes,
    in_host,
    is_in_host,
    lowered_for_h200,
    that_exist,
    unchecked,
)

HEADS, TOKENS, PAGES, SLOTS = 2, 16, 5, 6
PLANES = tuple(itertools.product(range(2), (0, 1)))  # layer, K or V

# Sentinels of every kind on either side, and four pairs that exist, for two programs.
PAGE_IDS = (3, -1, 0, SENTINEL, 4, PAGES, 1, 2, 0)
SLOT_IDS = (2, 1, 0, 3, SLOTS, 4, SENTINEL, 5, 4)
NONE = (SENTINEL,) * len(PAGE_IDS)
BACK_IDS = (1, -1, 4, 3, SENTINEL, 0, 2, PAGES, -1)  # the same towards the pool, no page twice


class Way(NamedTuple):
    """Formats of two layers, (K, V) each, in the pool and in records."""

    hot: tuple[tuple[str, str], ...]
    cold: tuple[tuple[str, str], ...]
    dim: int

    @property
    def layouts(self) -> dict[str, PageLayout]:
        return {
            "source": PageLayout.of(self.hot, HEADS, TOKENS, self.dim),
            "target": PageLayout.of(self.cold, HEADS, TOKENS, self.dim),
        }

    @functools.cache  # noqa: B019
    def jitted(self, name: str, implementation: str):
        """An implementation, interpreted if it is the kernel; compiled once for all tests."""
        function = getattr(reference, name)
        if implementation == "pallas":
            tuning = pallas.Tuning(programs=2, rows=16, num_warps=4)
            function = functools.partial(getattr(pallas, name), tuning=tuning, interpret=True)
        return jax.jit(functools.partial(function, **self.layouts))


# No two planes go the same way, and codecs of one, two and four bytes per scale are on both sides.
MIXED = Way(
    (("bf16", "int8_g64"), ("fp8_e4m3", "nvfp4_g16")),
    (("nvfp4_g16", "int4_g16"), ("e2m1_g64", "int8_g64")),
    128,
)
NARROW = Way(
    (("bf16", "int8_g64"), ("bf16", "fp8_e4m3")),
    (("e2m1_g64+search", "bf16"), ("e2m1_g64+search", "bf16")),
    64,
)
each = pytest.mark.parametrize("implementation", ["pallas", "reference"])
WIDE = Way((("bf16", "bf16"),) * 2, (("nvfp4_g16", "nvfp4_g16"),) * 2, 256)


def planes_of(seed: int, formats, dim: int, number: int) -> list[dict]:
    """Per item, the (codes, scales) of each plane: no two alike."""
    kinds = itertools.cycle(KINDS)
    return [
        {
            (layer, kv): oracle.encode(
                formats[layer][kv],
                contents(seed + 10 * i + 2 * layer + kv, next(kinds), (HEADS, TOKENS, dim)),
            )
            for layer, kv in PLANES
        }
        for i in range(number)
    ]


def transcoded(planes: dict, old, new) -> dict:
    """The planes of one item in other formats."""
    return {
        (layer, kv): oracle.encode(new[layer][kv], oracle.decode(old[layer][kv], *stored))
        for (layer, kv), stored in planes.items()
    }


def pool_of(layout: PageLayout, pages: list[dict]) -> Payload:
    """A pool of those pages."""

    def stack(group, part):
        rows = [np.stack([page[where][part] for where in group.planes]) for page in pages]
        return jnp.asarray(np.stack(rows))

    return tuple(
        Encoded(stack(g, 0), None if g.codec.scale_dtype is None else stack(g, 1))
        for g in layout.groups
    )


def record_of(layout: PageLayout, planes: dict) -> np.ndarray:
    """The record of one page."""
    record = np.zeros(layout.record_bytes, np.uint8)
    for where, field in layout.plane_fields.items():
        parts = zip(planes[where], (field.codes_offset, field.scales_offset), strict=True)
        for values, offset in parts:
            if values is not None:
                data = as_bytes(values).reshape(-1)
                record[offset : offset + data.size] = data
    return record


def poisoned(size: int) -> np.ndarray:
    return np.full((SLOTS + 1, size), 0xFF, np.uint8)


def nans_like(x) -> np.ndarray:
    size = x.shape[-1] * x.dtype.itemsize
    return np.full((*x.shape[:-1], size), 0xFF, np.uint8).view(x.dtype)


def assert_packs(way: Way, function, host: bool) -> None:
    layouts, pages = way.layouts, planes_of(1, way.hot, way.dim, PAGES)
    pool = pool_of(layouts["source"], pages)
    put = in_host if host else jnp.asarray
    for page_ids in (PAGE_IDS, NONE):
        exist = that_exist(page_ids, PAGES, SLOT_IDS, SLOTS)
        want = poisoned(layouts["target"].record_bytes)
        for page, slot in exist:
            want[slot] = record_of(layouts["target"], transcoded(pages[page], way.hot, way.cold))
        pairs = existing(jnp.array(page_ids), PAGES, jnp.array(SLOT_IDS), SLOTS)
        bank, finite = function(pool, put(poisoned(want.shape[1])), pairs)
        assert_same_bytes(bank, want)
        assert is_in_host(bank) == host
        assert finite.shape == (len(page_ids),) and finite[: len(exist)].all()


@each
@pytest.mark.parametrize("way", [MIXED, WIDE], ids=["mixed", "wide"])
def test_records_are_decoded_and_encoded_pages_and_nothing_else_is_written(way, implementation):
    assert_packs(way, way.jitted("pack", implementation), host=False)


@each
def test_a_host_bank_is_written_by_way_of_a_few_records_on_the_device(implementation, monkeypatch):
    monkeypatch.setattr(staged, "STAGED_PAGES", 3)  # four pairs, so two turns
    assert_packs(NARROW, NARROW.jitted("pack", implementation), host=True)


@each
@pytest.mark.parametrize(("way", "put"), [(MIXED, jnp.asarray), (NARROW, in_host)])
def test_pages_come_back_from_records_and_nothing_else_is_written(way, put, implementation):
    layouts, records = way.layouts, planes_of(2, way.cold, way.dim, SLOTS + 1)
    bank = np.stack([record_of(layouts["target"], planes) for planes in records])
    old = planes_of(3, way.hot, way.dim, PAGES)
    poison = jax.tree.map(nans_like, pool_of(layouts["source"], old))
    for page_ids in (BACK_IDS, NONE):
        pairs = existing(jnp.array(SLOT_IDS), SLOTS, jnp.array(page_ids), PAGES)
        want = jax.tree.map(np.array, poison)
        for slot, page in that_exist(SLOT_IDS, SLOTS, page_ids, PAGES):
            planes = transcoded(records[slot], way.cold, way.hot)
            new = pool_of(layouts["source"], [planes])
            for leaf, value in zip(jax.tree.leaves(want), jax.tree.leaves(new), strict=True):
                leaf[page] = np.asarray(value)[0]
        got = way.jitted("restore", implementation)(poison, put(bank), pairs)
        assert_same_bytes(got, want)


def with_a_nan(planes: dict) -> dict:
    """One NaN in the last channel of the last token, of the one layer whose K is fp8."""
    codes, scales = planes[1, 0][0].copy(), np.ones_like(planes[1, 0][1])
    codes[1, TOKENS - 1, -1] = 0x7F
    return planes | {(1, 0): (codes, scales)}


def with_an_infinity(planes: dict) -> dict:
    """One infinity in the one plane that is bfloat16."""
    codes = planes[0, 0][0].copy()
    codes[0, 3, 5] = np.inf
    return planes | {(0, 0): (codes, None)}


# Pages 0 and 2 are not finite; the list is as long as the others, so nothing compiles again.
DOUBTFUL_IDS, DOUBTFUL_SLOTS = (-1, 0, 3, 2, 4, *NONE[:4]), (5, 0, 1, 2, 3, *range(4))
DOUBTFUL = [True, False, True, False, True] + [True] * 4


@each
def test_one_value_that_is_not_finite_is_told_of_its_page_alone(implementation):
    layouts, pages = MIXED.layouts, planes_of(4, MIXED.hot, MIXED.dim, PAGES)
    pages[0], pages[2] = with_a_nan(pages[0]), with_an_infinity(pages[2])
    pool, bank = pool_of(layouts["source"], pages), poisoned(layouts["target"].record_bytes)
    pairs = existing(jnp.array(DOUBTFUL_IDS), PAGES, jnp.array(DOUBTFUL_SLOTS), SLOTS)
    bank, flags = MIXED.jitted("pack", implementation)(pool, jnp.asarray(bank), pairs)
    assert flags.tolist() == DOUBTFUL
    for slot, page in ((1, 3), (3, 4)):
        planes = transcoded(pages[page], MIXED.hot, MIXED.cold)
        assert_same_bytes(bank[slot], record_of(layouts["target"], planes))
    np.testing.assert_array_equal(np.asarray(bank)[4:], 0xFF)


def test_off_a_gpu_the_reference_serves():
    layouts = WIDE.layouts
    pages, slots = planes_of(5, WIDE.hot, WIDE.dim, 3), planes_of(6, WIDE.cold, WIDE.dim, 3)
    pages[1] = with_an_infinity(pages[1])
    pool = pool_of(layouts["source"], pages)
    bank = jnp.stack([jnp.asarray(record_of(layouts["target"], planes)) for planes in slots])
    ids = jnp.array([-1, 1, 2, SENTINEL]), jnp.array([0, 0, 1, 1])
    new = jax.jit(functools.partial(restore, **layouts))(pool, bank, *ids)
    want = [*pages[:1], *(transcoded(planes, WIDE.cold, WIDE.hot) for planes in slots[:2])]
    assert_same_bytes(new, pool_of(layouts["source"], want))
    packed, finite = jax.jit(functools.partial(pack, **layouts))(pool, bank, *ids)
    assert finite.tolist() == [True, False, True, True]  # where each pair stood
    planes = transcoded(pages[2], WIDE.hot, WIDE.cold)
    assert_same_bytes(packed[1], record_of(layouts["target"], planes))
    assert_same_bytes(packed[2], bank[2])
    none = jnp.zeros(0, jnp.int32)
    assert_same_bytes(restore(pool, bank, none, none, **layouts), pool)
    same, finite = pack(pool, bank, none, none, **layouts)
    assert_same_bytes(same, bank)
    assert finite.shape == (0,)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("op", ["requantize_pack", "requantize_restore"])
def test_kernels_lower_for_a_gpu(op):
    case = next(case for case in arg_specs.CASES if case.op == op)
    assert "triton" in lowered_for_h200(case)


@pytest.mark.parametrize("op", [pack, restore])
def test_what_cannot_be_served_says_why(op):
    layouts, ids = WIDE.layouts, jnp.zeros(1, jnp.int32)
    pool = pool_of(layouts["source"], planes_of(7, WIDE.hot, WIDE.dim, 1))
    size = layouts["target"].record_bytes
    bank = jnp.zeros((2, size), jnp.uint8)
    with pytest.raises(
        NotImplementedError, match="kernel of requantize runs on GPUs, not on a cpu"
    ):
        op(pool, bank, ids, ids, **layouts, implementation="pallas")
    with unchecked(), pytest.raises(ValueError, match="'fastest' .*'pallas', 'reference'"):
        op(pool, bank, ids, ids, **layouts, implementation="fastest")
    with pytest.raises(ValueError, match=f"records of {size} bytes .* {size + 4}"):
        op(pool, jnp.zeros((2, size + 4), jnp.uint8), ids, ids, **layouts)
    other = PageLayout.of(WIDE.cold, HEADS, 2 * TOKENS, WIDE.dim)
    with pytest.raises(ValueError, match=r"\(2, 2, 16, 256\) are not \(2, 2, 32, 256\)"):
        op(pool, bank, ids, ids, source=layouts["source"], target=other)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("formats", "instructions"),
    [
        ("bf16 -> nvfp4_g16", ("fma.rn.bf16x2", "min.u16x2", "prmt.b32")),
        ("int8_g64 -> e2m1_g64", ("vabsdiff4.u32.s32.s32", "fma.rn.sat.f32", "max.u16x2")),
        ("e2m1_g64 -> int8_g64", ("prmt.b32", "fma.rn.f32", "rcp.approx.ftz.f32")),
    ],
)
def test_a_compiled_kernel_has_the_instructions_and_not_what_they_mean(formats, instructions):
    """Without them the bytes would be the same, by many times the instructions."""
    (case,) = (c for c in arg_specs.CASES if c.name == f"qwen3.5-27b {formats}")
    text = lowered_for_h200(case)
    assert [name for name in instructions if name not in text] == []
