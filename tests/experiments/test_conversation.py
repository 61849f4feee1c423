"""Texts are the same every time, and what must be distinct is."""

import json

import pytest

from experiments.conversation import churn_script, flush_script

SIZES = {"num_tokens": 9000, "num_follow": 150}


def test_a_conversation_is_the_same_every_time_and_has_the_sizes_asked_for():
    one, two = (churn_script(None, **SIZES, num_others=3, other_tokens=120) for _ in range(2))
    assert one == two
    assert (len(one.first), len(one.follow)) == (9000, 150)
    assert [len(other.tokens) for other in one.others] == [120] * 3
    assert all(0 <= token < 256 for token in one.first)
    assert bytes(one.first).endswith(b"[assistant]\n")


def test_a_shorter_conversation_is_the_start_of_a_longer_one():
    short, long = (
        churn_script(None, num_tokens=n, num_follow=150, num_others=0, other_tokens=0)
        for n in (5000, 9000)
    )
    ending = len("\n\n[assistant]\n")
    assert short.first[:-ending] == long.first[: len(short.first) - ending]


def test_requests_in_between_share_no_page_with_anything():
    churn = churn_script(None, **SIZES, num_others=8, other_tokens=120)
    flush = flush_script(None, **SIZES, other_tokens=20_000)
    for script in (churn, flush):
        pages = {tokens[:64] for tokens in (script.first, *(o.tokens for o in script.others))}
        assert len(pages) == 1 + len(script.others)


def write_trace(path, inputs, session="s"):
    lines = [
        {"input": text, "output": f"answer {i} " * 9, "session_id": session, "timestamp": i}
        for i, text in enumerate(inputs)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_trace_gives_the_longest_history_that_fits_and_what_came_next(tmp_path):
    base = "fix the bug. "
    inputs = [base, base + "a" * 400, base + "b" * 9, base + "a" * 400 + "ls" * 30]
    trace = write_trace(tmp_path / "trace.jsonl", inputs[::-1])
    script = churn_script(trace, num_tokens=420, num_follow=50, num_others=2, other_tokens=100)
    assert bytes(script.first).decode() == inputs[1]
    assert bytes(script.follow) == (b"ls" * 30)[:50]
    assert b"answer 3" in bytes(script.others[0].tokens)
    assert script.source == "trace.jsonl"


def test_a_trace_whose_requests_are_all_too_long_is_cut(tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", ["x" * 900])
    script = churn_script(trace, num_tokens=600, num_follow=50, num_others=1, other_tokens=100)
    assert (len(script.first), len(script.follow)) == (600, 50)


@pytest.mark.parametrize("inputs", [[], ["only this"]])
def test_a_trace_without_a_conversation_is_refused(tmp_path, inputs):
    trace = write_trace(tmp_path / "trace.jsonl", inputs)
    with pytest.raises(ValueError, match="agent_trace"):
        churn_script(trace, num_tokens=64, num_follow=50, num_others=1, other_tokens=100)
