"""Hypothesis strategies: caches, what is written into them, prompts, and sequences of verbs."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from tiercache.codecs import get_codec, is_byte_stable
from tiercache.prefix import Namespace
from tiercache.spec import CacheSpec, SnapshotLeaf, bytes_per_page, bytes_per_snapshot
from tiercache.testing.calls import NUM_SYMBOLS
from tiercache.testing.driver import LIMIT, Step, allowed_steps

HOT = ("bf16", "fp8_e4m3", "int8_g64", "nvfp4_g16")
COLD = ("nvfp4_g16", "e2m1_g64", "int4_g16")
LEAF_SETS = (
    (),
    (SnapshotLeaf("delta", (2, 2, 4), "float32"),),
    (SnapshotLeaf("conv", (2, 3, 5), "bfloat16"), SnapshotLeaf("delta", (2, 2, 4), "float32")),
)


def gqa_groups() -> st.SearchStrategy[int]:
    """Query heads per head of K and V; 6 is no power of two."""
    return st.sampled_from([1, 2, 3, 4, 6, 8, 16])


@st.composite
def formats(draw, num_layers: int, *, has_cold: bool = True):
    """(hot, cold) formats per layer and K or V; with cold slots every plane shrinks in them, and
    comes back byte-stable."""
    hot, cold = [], []
    for _ in range(num_layers):
        choices = _format_pairs() if has_cold else [(name, COLD[0]) for name in HOT]
        pairs = [draw(st.sampled_from(choices)) for _ in "KV"]
        hot.append(tuple(pair[0] for pair in pairs))
        cold.append(tuple(pair[1] for pair in pairs))
    return tuple(hot), tuple(cold)


def _format_pairs() -> list[tuple[str, str]]:
    return [
        (hot, cold)
        for hot in HOT
        for cold in COLD
        if get_codec(cold).bytes_per_token(64) < get_codec(hot).bytes_per_token(64)
        and is_byte_stable(get_codec(hot), get_codec(cold))
    ]


@st.composite
def specs(draw, *, max_layers: int = 3, max_heads: int = 4) -> CacheSpec:
    """Specs with tiny pools, every tier on or off, any geometry and any formats per layer.

    Each spec is another compile: draw few, and contents by the hundred.
    """
    num_layers = draw(st.integers(1, max_layers))
    policy = draw(st.sampled_from(["none", "window", "host"]))
    hot, cold = draw(formats(num_layers, has_cold=policy != "none"))
    leaves = draw(st.sampled_from(LEAF_SETS))
    page_size, max_rows = draw(st.sampled_from([16, 32, 64])), draw(st.integers(2, 4))
    num_pages = draw(st.integers(3, 12))
    few = st.integers(0, 5)
    keep = None if policy == "none" else draw(st.sampled_from([None, 1, 2]))
    return CacheSpec(
        num_layers=num_layers,
        num_kv_heads=draw(st.integers(1, max_heads)),
        head_dim=draw(st.sampled_from([64, 128, 256])),
        page_size=page_size,
        num_pages=num_pages,
        max_rows=max_rows,
        max_pages=draw(st.integers(2, 6)),
        snapshot_leaves=leaves,
        hot_formats=hot,
        cold_formats=cold,
        num_cold_slots=0 if policy == "none" else draw(st.integers(1, 5)),
        num_host_pages=draw(few),
        num_snapshots=draw(few) if leaves else 0,
        num_host_snapshots=draw(few) if leaves else 0,
        index_pages=draw(st.integers(1, num_pages)),
        num_leases=max_rows + draw(st.integers(1, 3)),
        policy=policy,
        keep_tokens=None if keep is None else keep * page_size,
    )


@st.composite
def budgets(draw, spec: CacheSpec) -> dict[str, int]:
    """Budgets in bytes for `with_budgets`: a few records each, and any number of bytes over."""
    page, snapshot = bytes_per_page(spec, "device"), bytes_per_snapshot(spec)
    units = {"device_bytes": page, "host_bytes": page}
    if spec.policy != "none":
        units["cold_bytes"] = bytes_per_page(spec, "cold")
    if spec.needs_snapshot:
        units |= {"device_snapshot_bytes": snapshot, "host_snapshot_bytes": snapshot}
    return {
        name: draw(st.integers(2, 6)) * unit + draw(st.integers(0, unit - 1))
        for name, unit in units.items()
    }


class PageContents(NamedTuple):
    """K and V of one page of one layer, float32 [head, token, dim] each, never equal."""

    k: np.ndarray
    v: np.ndarray


KINDS = (
    "normal", "spikes", "zeros", "denormals", "subnormals", "limits", "negative zeros", "constant",
)  # fmt: skip


@st.composite
def page_contents(
    draw, num_kv_heads: int, page_size: int, head_dim: int, *, kinds: tuple[str, ...] = KINDS
) -> PageContents:
    """Pages of the kinds that break codecs: see `KINDS`.

    `limits` are values at and around +-448 and the largest of float16; `negative zeros` are -0, or
    round to it in a codec that takes no care; `denormals` are below the least normal float32;
    `subnormals` have subnormal codes of E4M3 beside a large value in half of the tokens, and
    subnormal scales in the others.
    """
    kind = draw(st.sampled_from(kinds))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (2, num_kv_heads, page_size, head_dim)
    normal = rng.standard_normal(shape, np.float32)
    spike = rng.random(shape) < 1 / 64
    is_even = (np.arange(page_size) % 2 == 0)[:, None]
    k, v = {
        "normal": lambda: normal,
        "spikes": lambda: np.where(spike, 1000 * normal, normal),
        "zeros": lambda: np.where(spike, normal, 0),
        "denormals": lambda: normal * np.float32(1e-39),
        "subnormals": lambda: np.where(
            is_even, np.where(np.arange(head_dim) % 16 == 0, 448, normal / 128), normal / 512
        ),
        "limits": lambda: np.where(spike, rng.choice([-448, 448, 449, 65504, -65520], shape), 0),
        "negative zeros": lambda: np.where(
            spike, 30, np.where(is_even, -1e-3 * np.abs(normal), -0.0)
        ),
        "constant": lambda: normal[..., :1, :1] + 0 * normal,
    }[kind]().astype(np.float32)
    return PageContents(k, v + (v == k).all())


def sequence_constant(row: int, layer: int, position: int, kv: int) -> float:
    """A number that belongs to one token of one sequence alone, exact in bfloat16 from codecs on.

    For leak tests: fill with it, and whatever else is read belongs to somebody else. Distinct for 8
    rows, 4 layers, 8 positions modulo 8 and K or V.
    """
    number = ((row % 8 * 4 + layer % 4) * 8 + position % 8) * 2 + kv % 2
    return float(2.0 ** (number // 128) * (1 + number % 128 / 128))


def symbols(max_pages: int = 8) -> st.SearchStrategy[list[int]]:
    """A prompt by one symbol a page. A shorter list goes on with 0: prompts begin alike."""
    common = st.sampled_from([0, 0, 0, *range(1, NUM_SYMBOLS)])
    return st.lists(common, max_size=max_pages)


@st.composite
def prompts(draw, page_size: int, max_pages: int, *, number: int = 4) -> list[np.ndarray]:
    """Prompts of int32 tokens that share whole pages, parts of pages or nothing, and branch."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    longest = page_size * max_pages
    found: list[np.ndarray] = []
    for _ in range(number):
        tokens = rng.integers(0, 1000, draw(st.integers(1, longest)), dtype=np.int32)
        if found:
            other = found[draw(st.integers(0, len(found) - 1))]
            shared = draw(st.sampled_from([0, 1, page_size - 1, page_size, page_size + 1, longest]))
            shared = min(shared * draw(st.integers(1, 3)), len(tokens), len(other))
            tokens[:shared] = other[:shared]
        found.append(tokens)
    return found


def namespaces() -> st.SearchStrategy[Namespace]:
    """Few, so that they are met again, and such that joined they would be equal."""
    names = st.sampled_from(["", "a", "b", "ab"])
    return st.builds(Namespace, tenant=names, adapter=names, weights=names, codec=names)


class RequestDrawn(NamedTuple):
    """One request of a trace: prompt tokens, how many to generate, whose it is."""

    tokens: np.ndarray
    max_new: int
    namespace: Namespace


@st.composite
def request_traces(draw, spec: CacheSpec, *, max_requests: int = 8) -> list[RequestDrawn]:
    """Requests in order of arrival, that fit the spec: some repeat, some go on where one ended."""
    room = spec.max_pages - 1
    known = draw(prompts(spec.page_size, room, number=4))
    owners = draw(st.lists(namespaces(), min_size=1, max_size=2))
    found = []
    for _ in range(draw(st.integers(1, max_requests))):
        tokens = draw(st.sampled_from(known))
        new = draw(st.integers(1, spec.page_size))
        found.append(RequestDrawn(tokens, new, draw(st.sampled_from(owners))))
    return found


@st.composite
def steps(draw, spec: CacheSpec) -> Step:
    """One step of a `Driver`: which verbs, on what."""
    pages = draw(symbols(spec.max_pages))
    a, b, c = (draw(st.integers(0, LIMIT - 1)) for _ in range(3))
    name = draw(st.sampled_from(sorted(set(allowed_steps(spec)))))
    return Step(name, a, b, c, (*pages, *[0] * (spec.max_pages - len(pages))))


def verb_sequences(spec: CacheSpec, *, max_steps: int = 30) -> st.SearchStrategy[list[Step]]:
    """Steps for `Driver.run`, all verbs of the spec among them."""
    return st.lists(steps(spec), max_size=max_steps)
