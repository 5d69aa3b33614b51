"""Loads: the same seed makes the same one, rates are met on average, traces keep their times and shared prefixes."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest

from headrace.bench.arrivals import Recorded, random_load, read_trace, recorded_load
from headrace.core.errors import ConfigError


def load(count=200, *, rate=10.0, burstiness=1.0, seed=0, prefix_len=0):
    return random_load(
        count, input_len=5, output_len=7, prefix_len=prefix_len, rate=rate, burstiness=burstiness, seed=seed
    )


def variation(planned):
    gaps = [b.at - a.at for a, b in pairwise(planned)]
    mean = sum(gaps) / len(gaps)
    return mean, (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean


def test_random_arrivals_have_the_rate_and_the_burstiness_that_was_asked():
    mean, spread = variation(load(4000))
    assert mean == pytest.approx(0.1, rel=0.1) and spread == pytest.approx(1.0, rel=0.1)
    mean, spread = variation(load(4000, burstiness=0.25))
    assert mean == pytest.approx(0.1, rel=0.15) and spread == pytest.approx(2.0, rel=0.15)
    assert {one.at for one in load(rate=float("inf"))} == {0.0}


def test_the_same_seed_makes_the_same_load_of_the_asked_lengths():
    assert load(seed=3) == load(seed=3) != load(seed=4)
    assert all(len(one.prompt.split()) == 5 and one.output_len == 7 for one in load())
    shared = load(prefix_len=3)
    assert len({tuple(one.prompt.split()[:3]) for one in shared}) == 1
    assert len({one.prompt for one in shared}) > 100


def test_a_trace_keeps_its_times_lengths_and_shared_beginnings():
    trace = [Recorded(10.0, 1030, 500, (1, 2, 3)), Recorded(12.0, 1040, 2, (1, 2, 9)), Recorded(16.0, 600, 64)]
    first, second, third = recorded_load(trace, speed=2.0, scale=32, seed=0)
    assert [first.at, second.at, third.at] == [0.0, 1.0, 3.0]
    assert [len(one.prompt.split()) for one in (first, second, third)] == [33, 33, 19]
    assert [first.output_len, second.output_len, third.output_len] == [15, 1, 2]
    assert first.prompt.split()[:32] == second.prompt.split()[:32]
    assert recorded_load(trace, speed=2.0, scale=32, seed=5)[0] == first


def test_both_formats_are_read_in_order_of_time(tmp_path):
    rows = [
        {"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [4, 5]},
        {"timestamp": 0, "input_length": 10, "output_length": 6, "hash_ids": [4]},
    ]
    mooncake = tmp_path / "trace.jsonl.gz"
    mooncake.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    assert read_trace(mooncake) == [Recorded(0.0, 10, 6, (4,)), Recorded(3.0, 700, 5, (4, 5))]
    assert len(read_trace(mooncake, 1)) == 1
    azure = tmp_path / "trace.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,9"
    )
    first, second = read_trace(azure)
    assert (first.input_len, first.output_len, second.input_len) == (374, 44, 396)
    assert second.at - first.at == pytest.approx(4.314579)


def test_the_recorded_traces_are_read(data_folder):
    for name in ("mooncake_conversation.jsonl.gz", "azure_2023_conv.csv.gz"):
        assert len(read_trace(data_folder / "traces" / name, 50)) == 50


@pytest.mark.parametrize("text", ["{", '{"timestamp": 1}\n', "[]\n", ""])
def test_what_is_no_trace_is_refused(tmp_path, text):
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.jsonl"):
        read_trace(tmp_path / "bad.jsonl")
