"""What is drawn is valid, and of every kind that it is said to be."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiercache as tc
from tests.pallas_kernels.codecs import oracle
from tiercache.testing import strategies
from tiercache.testing.calls import signature
from tiercache.testing.specs import WINDOW


def seen_over(strategy, see, examples: int = 150) -> collections.Counter:
    """How often `see` gave each value over many draws."""
    counts = collections.Counter()

    @settings(max_examples=examples)
    @given(strategy)
    def run(value):
        counts.update(see(value))

    run()
    return counts


def test_specs_are_valid_and_reach_every_kind():
    def see(spec):
        yield from [spec.head_dim, f"heads {spec.num_kv_heads}", f"page {spec.page_size}"]
        yield from [spec.policy, f"leaves {len(spec.snapshot_leaves)}"]
        yield from {name for pair in spec.hot_formats for name in pair}
        yield from {f"cold {name}" for pair in spec.cold_formats for name in pair}
        yield "host pages" if spec.num_host_pages else "no host pages"
        assert len(signature(spec)) >= 14

    seen = seen_over(strategies.specs(), see)
    wanted = [
        64,
        128,
        256,
        "none",
        "window",
        "host",
        "host pages",
        "no host pages",
        *strategies.HOT,
    ]
    wanted += [f"heads {n}" for n in (1, 2, 3, 4)] + [f"page {n}" for n in (16, 32, 64)]
    wanted += [f"cold {name}" for name in strategies.COLD] + [f"leaves {n}" for n in (0, 1, 2)]
    assert not set(wanted) - set(seen)


@given(data=st.data())
def test_budgets_bound_what_is_allocated(data):
    spec = data.draw(strategies.specs(max_layers=1, max_heads=2))
    budgets = data.draw(strategies.budgets(spec))
    sized = tc.tier_bytes(tc.with_budgets(spec, **budgets))
    places = {
        "device_bytes": "device_pages", "host_bytes": "host_pages", "cold_bytes": "cold_slots",
        "device_snapshot_bytes": "device_snapshots", "host_snapshot_bytes": "host_snapshots",
    }  # fmt: skip
    assert all(0 < sized[places[name]] <= budget for name, budget in budgets.items())


@pytest.mark.parametrize("kind", strategies.KINDS)
def test_contents_are_of_their_kind(kind):
    @settings(max_examples=10)
    @given(strategies.page_contents(2, 16, 64, kinds=(kind,)))
    def run(page):
        k, v = page
        assert k.dtype == v.dtype == np.float32 and k.shape == v.shape == (2, 16, 64)
        assert not np.array_equal(k, v) and np.isfinite(k).all() and np.isfinite(v).all()
        if kind == "denormals":
            assert np.all(np.abs(k) < np.finfo(np.float32).tiny)
        if kind == "limits":
            assert {-448, 448} & set(np.abs(k).ravel().tolist())
        if kind == "negative zeros":
            codes, _ = oracle.encode("nvfp4_g16", k)
            assert np.any(k < 0) and not np.any((codes & 15) == 8)
            assert np.any((k == 0) & np.signbit(k))
        if kind == "subnormals":
            codes, _ = oracle.encode("fp8_e4m3", k)
            _, scales = oracle.encode("nvfp4_g16", k)
            for e4m3 in (codes, scales.view(np.uint8)):
                assert np.any((e4m3 & 0x78 == 0) & (e4m3 & 7 != 0))

    run()


def test_the_constants_of_sequences_are_all_unlike_and_exact_in_bfloat16():
    values = {
        strategies.sequence_constant(row, layer, position, kv)
        for row in range(8) for layer in range(4) for position in range(8) for kv in range(2)
    }  # fmt: skip
    assert len(values) == 8 * 4 * 8 * 2
    codes, _ = oracle.encode("bf16", np.array(sorted(values), np.float32))
    assert codes.astype(np.float64).tolist() == sorted(values)


def test_prompts_share_parts_of_pages_whole_pages_and_nothing():
    def see(prompts):
        for n, tokens in enumerate(prompts):
            assert tokens.dtype == np.int32 and 1 <= len(tokens) <= 64
            for other in prompts[:n]:
                size = min(len(tokens), len(other))
                unlike = tokens[:size] != other[:size]
                shared = int(np.argmax(unlike)) if unlike.any() else size
                yield "none" if not shared else "whole" if shared % 16 == 0 else "part"

    seen = seen_over(strategies.prompts(16, 4), see, 50)
    assert set(seen) == {"none", "whole", "part"}


@given(one=strategies.namespaces(), two=strategies.namespaces())
def test_namespaces_are_the_same_only_if_all_their_parts_are(one, two):
    assert np.array_equal(one.lanes(), two.lanes()) == (one == two)


def test_namespaces_are_met_again_and_some_would_be_equal_if_joined():
    def see(pair):
        one, two = pair
        joined = ["".join((x.tenant, x.adapter, x.weights, x.codec)) for x in pair]
        yield "again" if one == two else "joined" if joined[0] == joined[1] else "other"

    pairs = st.tuples(strategies.namespaces(), strategies.namespaces())
    assert set(seen_over(pairs, see, 300)) == {"again", "joined", "other"}


def test_traces_of_requests_fit_and_come_again():
    def see(trace):
        for request in trace:
            assert len(request.tokens) + request.max_new <= WINDOW.max_tokens
        prompts = [request.tokens.tobytes() for request in trace]
        yield "again" if len(set(prompts)) < len(prompts) else "new"
        yield len({request.namespace for request in trace})

    assert set(seen_over(strategies.request_traces(WINDOW), see, 60)) >= {"again", "new", 1, 2}


def test_sequences_reach_every_step_and_groups_every_size():
    seen = seen_over(strategies.verb_sequences(WINDOW), lambda steps: [s.name for s in steps])
    assert len(seen) == 25
    assert set(seen_over(strategies.gqa_groups(), lambda n: [n])) == {1, 2, 3, 4, 6, 8, 16}
