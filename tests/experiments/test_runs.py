"""Both experiments from end to end, as small as they can be."""

import dataclasses
import json

import pytest

from experiments import scenario
from experiments.churn import ChurnOptions
from experiments.churn import run as run_churn
from experiments.flush import run as run_flush
from experiments.scenario import Options
from experiments.setup import CHURN, FLUSH, make_lab
from models.hybrid_gdn import tiny

FIELDS = {
    "arm", "prompt_tokens", "cached_tokens", "resumable_tokens", "kv_tokens", "ttft_s", "match_s",
    "restore_s", "prefill_s", "outputs_equal", "logit_kl", "tokens_equal", "restored_pages",
    "bytes_moved", "counters", "evictions", "tombstones", "residency", "spec", "device", "jax",
    "command", "preset",
}  # fmt: skip
SMALL = {
    "conversation_tokens": 330, "answer_tokens": 64, "follow_tokens": 70, "measured_tokens": 8,
    "num_others": 3, "other_tokens": 130, "other_answer": 2, "num_pages": 10, "num_snapshots": 2,
    "num_host_pages": 48, "num_host_snapshots": 16, "num_cold_slots": 48, "max_pages": 8,
    "chunk": 128,
}  # fmt: skip


@pytest.fixture
def small_lab(monkeypatch, quick_compiles):
    """A model of two layers, one of each kind, in place of the preset's."""
    model = tiny(num_hidden_layers=2, full_attention_interval=2)
    monkeypatch.setattr(
        scenario, "make_lab", lambda *args, **kwargs: make_lab(*args, **kwargs, model=model)
    )
    monkeypatch.setitem(CHURN, "cpu", dataclasses.replace(CHURN["cpu"], **SMALL))
    monkeypatch.setitem(
        FLUSH, "cpu", dataclasses.replace(CHURN["cpu"], num_others=2, other_tokens=400)
    )


def read(folder, name):
    assert (folder / f"{name}.png").stat().st_size > 10_000
    lines = (folder / f"{name}.jsonl").read_text().splitlines()
    return {one["arm"]: one for one in map(json.loads, lines)}


@pytest.mark.slow
def test_churn_resumes_all_with_tiers_and_nothing_without(small_lab, tmp_path):
    assert run_churn(ChurnOptions(out=tmp_path)) == 0
    arms = read(tmp_path, "churn")
    assert set(arms) == {"cold", "off", "on", "lossy"}
    assert all(set(one) >= FIELDS for one in arms.values())
    # 330 + 63 tokens were fed: six whole pages, the last one decoded.
    assert arms["on"]["cached_tokens"] == arms["on"]["resumable_tokens"] == 384
    assert arms["on"]["logits_bit_equal_to_never_moved"]
    assert (arms["cold"]["cached_tokens"], arms["off"]["cached_tokens"]) == (0, 0)
    assert arms["off"]["kv_tokens"] > 0
    assert arms["off"]["outputs_equal"] and arms["on"]["outputs_equal"]
    assert all(0 < error < 0.2 for error in arms["lossy"]["attention_error"])
    assert (
        arms["off"]["bytes_moved"]["device_to_host"]
        == 0
        < (arms["on"]["bytes_moved"]["host_to_device"])
    )


@pytest.mark.slow
def test_flush_brings_every_byte_back(small_lab, tmp_path):
    assert run_flush(Options(out=tmp_path, lossy=False, write="through")) == 0
    arms = read(tmp_path, "flush")
    assert set(arms) == {"cold", "off", "on"}
    on = arms["on"]
    assert on["bytes_equal"] and on["bytes_compared"] > 6 * on["spec"]["bytes_per_page"]
    assert on["pages_left_on_device"] == 0
    assert on["restored_pages"] == {"device": 0, "host": 6, "cold": 0}
    assert on["cached_tokens"] == 384
    assert on["outputs_equal"]
