"""A replay serves at least what plain LRU over hashed blocks serves, and never more than a cache without end."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from headrace import cli
from headrace.bench.replay import endless_hit_rate, load_trace, lru_hit_rate, measure_replay
from headrace.core.errors import ConfigError

TRACES = ("mooncake_conversation", "mooncake_synthetic")


def written(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def conversations(count, turns, seed=0):
    """Conversations in turn, each turn with the one before it as its prefix."""
    draw, rows, fresh = random.Random(seed), [], iter(range(10**6))
    open_ones = [[next(fresh)] for _ in range(count)]
    for _ in range(count * turns):
        hashes = draw.choice(open_ones)
        hashes += [next(fresh) for _ in range(draw.randrange(1, 4))]
        # The last block is not full, so its hash is no other's.
        length = 512 * len(hashes) + draw.randrange(1, 512)
        rows.append({"timestamp": 0, "input_length": length, "output_length": 40, "hash_ids": [*hashes, next(fresh)]})
    return rows


def test_lengths_are_scaled_and_prefixes_are_not(tmp_path):
    rows = [
        {"timestamp": 0, "input_length": 1030, "output_length": 64, "hash_ids": [5, 6, 7]},
        {"timestamp": 0, "input_length": 1536, "output_length": 1, "hash_ids": [5, 6, 8]},
    ]
    trace = load_trace(written(tmp_path / "t.jsonl", rows), 32)
    first, second = trace.visits
    assert (first.prompt_len, first.output_len) == (16 + 16 + 1, 2)
    assert (second.prompt_len, second.output_len) == (48, 1)
    assert len(first.prompt(16)) == 33 and first.prompt(16)[:32] == second.prompt(16)[:32]
    assert first.prompt(16)[32] != second.prompt(16)[32]
    assert endless_hit_rate(trace) == pytest.approx(32 / (33 + 48))


@pytest.mark.parametrize("concurrent", [1, 3])
def test_at_least_lru_and_at_most_everything(tmp_path, concurrent):
    trace = load_trace(written(tmp_path / "t.jsonl", conversations(8, 8)), 32)
    told = []
    report = measure_replay(trace, (0.2, 0.4, 0.7, 1.0), concurrent, told.append)
    assert sum(told) == len(trace.visits) * len(report["pools"])
    assert len(report["pools"]) > 1
    for pool in report["pools"].values():
        assert pool["hit_rate"] <= report["endless_hit_rate"]
        if concurrent == 1:
            assert pool["hit_rate"] >= pool["lru_hit_rate"]
    if concurrent == 1:
        assert list(report["pools"].values())[-1]["hit_rate"] == report["endless_hit_rate"]


@pytest.mark.parametrize("name", TRACES)
def test_the_beginning_of_a_recorded_trace(name, data_folder):
    trace = load_trace(data_folder / "traces" / f"{name}.jsonl.gz", 32, limit=400)
    report = measure_replay(trace, (0.05, 0.2), 1, lambda done: None)
    for pool in report["pools"].values():
        assert pool["lru_hit_rate"] <= pool["hit_rate"] <= report["endless_hit_rate"]


@pytest.mark.parametrize(("name", "bound"), [(TRACES[0], 0.374), (TRACES[1], 0.651)])
def test_the_bounds_of_the_recorded_traces(name, bound, data_folder):
    trace = load_trace(data_folder / "traces" / f"{name}.jsonl.gz", 1)
    assert endless_hit_rate(trace) == pytest.approx(bound, abs=5e-4)
    assert lru_hit_rate(trace, 20_000) < bound


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}', "hash_ids"),
        ('{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}', "1 hash_ids for 513 tokens"),
        ("", "no requests"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused(tmp_path, line, says):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(f"{line}\n".encode() if line else b""))
    with pytest.raises(ConfigError, match=says):
        load_trace(path, 32)


@pytest.mark.parametrize(("flags", "says"), [(["--scale", "3"], "scale"), (["--pool", "0"], "pool")])
def test_settings_that_cannot_be_are_refused(tmp_path, flags, says, capsys):
    path = written(tmp_path / "t.jsonl", conversations(2, 2))
    assert cli.run(["bench", "replay", "--trace", str(path), *flags]) == 2
    assert says in capsys.readouterr().err


def test_the_command_writes_its_report(tmp_path, capsys):
    path, file = written(tmp_path / "t.jsonl", conversations(3, 3)), tmp_path / "report.json"
    assert cli.run(["bench", "replay", "--trace", str(path), "--pool", "1", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert report["requests"] == 9 and len(report["pools"]) == 1
    assert "endless_hit_rate" in capsys.readouterr().out
