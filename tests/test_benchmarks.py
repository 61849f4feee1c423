"""The benchmark of the kernels: what it calls equal, what it counts, and one small run of it."""

import argparse
import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import _arrays, _cases, _floors, _measure, _table, _timing, _tune, kernels
from pallas_kernels import cases, requantize
from pallas_kernels.banks import num_slots, read_record, write_record
from pallas_kernels.cases import Case
from pallas_kernels.page_layout import empty_payload

SLOTS, SIZE = 6, 32
FLOORS = _floors.Floors(copy=1e9, to_host=1e9, from_host=1e9, rows=())


def named(op: str, name: str) -> Case:
    (case,) = (c for c in _cases.discover() if (c.op, c.name) == (op, name))
    return case


def toy(*, is_wrong: bool, host: bool = True) -> Case:
    """Adds one to records of a bank: a kernel that is right, or one that forgets the last one."""

    def call(bank, slot_ids, *, implementation):
        number = slot_ids.shape[0] - (is_wrong and implementation == "pallas")

        def body(i, bank):
            is_there = (slot_ids[i] >= 0) & (slot_ids[i] < num_slots(bank))
            record = read_record(bank, slot_ids[i]) + is_there.astype(jnp.uint8)
            return write_record(bank, slot_ids[i], record)

        return jax.lax.fori_loop(0, number, body, bank)

    args = (cases.bank_of(SLOTS, SIZE), cases.ids_of(SLOTS - 1))
    where = (0,) if host else ()
    return Case("toy", "one", call, args, ((1, SLOTS),), where, (0,), 2 * (SLOTS - 1) * SIZE)


@pytest.fixture
def run(tmp_path):
    return kernels.Run(
        argparse.Namespace(out=tmp_path / "rows.jsonl", repeats=3, seconds=60, op=None, k="")
    )


def measured(case: Case, run) -> dict[str, dict]:
    (built,) = _measure.build([case], FLOORS)
    run.guarded(case.op, case.name, lambda: _measure.measure(case, built, FLOORS.us(case), run))
    return {row["implementation"]: row for row in run.rows}


@pytest.mark.parametrize("host", [True, False])
def test_equal_bytes_are_called_equal_and_timed(run, host):
    rows = measured(toy(is_wrong=False, host=host), run)
    assert set(rows) == {"pallas", "reference"}
    for row in rows.values():
        assert row["equal"] and row["n"] == 3
        assert row["calls"] > 1  # too short to be timed one by one
        assert row["floor_us"] == pytest.approx(0.16 if host else 0.32)
        # Times are rounded to hundredths of a microsecond, the ratio is not made from those.
        assert row["floor_us"] / row["floor_ratio"] == pytest.approx(row["median_us"], abs=0.006)
        low, high = row["quartiles_us"]
        assert low <= row["median_us"] <= high


def test_other_bytes_are_counted_and_written_down(run):
    rows = measured(toy(is_wrong=True), run)
    # The sentinels leave one record or two untouched; the last id is one that exists.
    assert rows["pallas"]["equal"] is False
    assert rows["pallas"]["num_differing"] == SIZE
    kept = [json.loads(line) for line in run.args.out.read_text().splitlines()]
    wanted = {"op", "spec", "implementation", "median_us", "floor_us", "floor_ratio", "device"}
    assert all(
        wanted | {"command", "jax", "bytes", "n", "quartiles_us"} <= set(row) for row in kept
    )
    assert kernels.has_failed(run.rows)


def test_a_failing_case_becomes_a_row_and_a_late_one_is_skipped(run):
    def fail():
        raise ValueError("of no use")

    run.guarded("op", "a", fail)
    run.args.seconds = -1
    run.guarded("op", "b", fail)
    first, second = run.rows
    assert first["error"] == "ValueError: of no use" and second["skipped"]
    assert kernels.has_failed([first]) and not kernels.has_failed([second])
    assert not kernels.has_failed([{"unable": "NotImplementedError: no GPU"}])
    assert "of no use" in _table.tables(run.rows)


def test_a_loop_is_as_many_steps():
    case = toy(is_wrong=False)
    rest = _cases.id_lists(case, np.random.default_rng(0), sentinels=False)
    once, thrice = (_timing.Program(case, "reference", n).compile() for n in (1, 3))
    state = _cases.updated_args(case)
    for _ in range(3):
        state, _ = once(state, rest)
    looped, _ = thrice(_cases.updated_args(case), rest)
    assert _arrays.num_differing(state, looped) == 0
    np.testing.assert_array_equal(np.asarray(looped[0])[:-1].max(axis=1).max(), 255)
    assert set(np.asarray(looped[0])[:-1].ravel()) == {2, 255}


def test_ids_are_distinct_and_those_of_one_pool_are_apart():
    case = named("page_copy", "qwen3.5-27b bf16 within the pool")
    sources, targets = _cases.id_lists(case, np.random.default_rng(0), sentinels=False).values()
    both = np.concatenate([sources, targets])
    assert len(set(both)) == len(both) == 128
    assert both.max() < 1024


def test_sentinels_stand_at_other_places_of_each_list():
    case = named("page_copy", "8-heads-of-64 int8_g64 to host")
    items, slots = _cases.id_lists(case, np.random.default_rng(0), sentinels=True).values()
    nowhere = [(np.asarray(ids) < 0) | (np.asarray(ids) >= 2048) for ids in (items, slots)]
    assert all(0 < x.sum() < 5 for x in nowhere)
    assert not (nowhere[0] & nowhere[1]).any()


@pytest.mark.parametrize(
    ("op", "name", "way", "size"),
    [
        ("page_copy", "qwen3.5-27b nvfp4_g16 to host", "to host", 512 * 1_179_648),
        ("page_copy", "qwen3.5-27b nvfp4_g16 from host", "from host", 512 * 1_179_648),
        ("requantize_pack", "qwen3.5-27b bf16 -> nvfp4_g16 (host)", "to host", 128 * 1_179_648),
    ],
)
def test_records_cross_the_bus_once(op, name, way, size):
    assert _cases.bus(named(op, name)) == (way, size)
    assert _cases.bus(named("page_copy", "qwen3.5-27b nvfp4_g16 to device")) is None


def test_a_shrunk_case_is_the_same_call():
    case = _cases.shrunk(named("requantize_restore", "qwen3.5-27b nvfp4_g16 -> bf16"))
    (pool,), bank, page_ids, slot_ids = case.args
    assert pool.codes.shape == (8, 32, 4, 64, 256)
    assert bank.shape == (9, 1_179_648)
    assert page_ids.shape == slot_ids.shape == (4,)
    assert case.moved_bytes == 4 * (1_179_648 + 4 * 2**20)


def test_a_host_bank_is_capped_and_its_ids_with_it():
    full = named("page_copy", "qwen3.5-27b bf16 to host")
    case = _cases.capped(full)
    assert case.args[1].shape == (1020, 4 * 2**20)
    assert case.ids == ((2, 1024), (3, 1019))
    assert case.args[2].shape == (512,) and case.moved_bytes == full.moved_bytes
    assert _cases.capped(named("page_copy", "qwen3.5-27b bf16 to device")).ids[1] == (3, 2048)


def test_random_values_are_finite_and_of_many_sizes():
    layout = cases.layout_of(cases.ModelShape("small", 1, 1, 64, 16), "int8_g64")
    pool = jax.eval_shape(lambda: empty_payload(layout, 4))
    call = functools.partial(requantize.pack, source=layout, target=layout)
    case = Case("requantize_pack", "small", call, (pool,), (), (), (), 0)
    ((codes, scales),) = _cases.fixed_args(case, np.random.default_rng(0))[0]
    assert np.isfinite(np.asarray(scales)).all()
    assert len(np.unique(np.asarray(codes))) > 200
    assert np.max(np.asarray(scales)) > 50 * np.min(np.asarray(scales))


def test_a_table_has_one_line_a_case_and_of_candidates_the_best():
    row = {"op": "o", "spec": "s", "floor_us": 1.0, "floor_ratio": 0.5, "single_us": 9.0}
    rows = [row | {"implementation": "pallas", "median_us": 2.0, "equal": True}]
    rows += [row | {"implementation": "reference", "median_us": 40.0, "equal": True}]
    rows += [row | {"implementation": "torch", "median_us": 7.0}]
    header, _, line = _table.tables(rows).splitlines()
    assert header.split()[0] == "o"
    assert line.split() == ["s", "1.0", "2.0", "0.500", "9.0", "40.0", "torch", "7"]
    for row in rows:
        row["equal"] = False
    assert "DIFFERS" in _table.tables(rows)
    tried = [rows[0] | {"spec": name, "tuning": {}, "best": name == "b"} for name in "abc"]
    assert [line.split()[0] for line in _table.tables(tried).splitlines()[2:]] == ["b"]


def test_every_search_names_a_case():
    known = {(case.op, case.name) for case in _cases.discover()}
    assert {search.case for search in _tune.SEARCHES} <= known


def test_a_small_run_ends_with_a_table(tmp_path, monkeypatch, capsys):
    out = tmp_path / "kernels.jsonl"
    only = ["--op", "page_copy", "-k", "8-heads-of-64 int8_g64 from device"]
    command = ["kernels", "--tiny", *only, "--repeats", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    assert kernels.main() == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["op"] for row in rows] == ["floor"] * 3 + ["page_copy"] * 2
    assert rows[-1]["implementation"] == "reference" and rows[-1]["median_us"] > 0
    assert "NotImplementedError" in rows[-2]["unable"]
    assert "8-heads-of-64 int8_g64 from device" in capsys.readouterr().out
