"""headrace simulate: the report's keys, the same bytes for the same seed, and errors that say which limit is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import cli

TRACE = [
    {"timestamp": 700 * k, "input_length": 900 + k, "output_length": 5 + k, "hash_ids": [k % 2, 10 + k]}
    for k in range(12)
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in TRACE))
    return path


def simulate(trace: Path, *flags: str, model: str = "llama-3-8b", gpu: str = "h100") -> int:
    return cli.run(["simulate", "--trace", str(trace), "--model", model, "--gpu", gpu, *flags])


def test_the_report_has_its_keys(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    flags = ("--replicas", "2", "--router", "prefix", "--slo-ttft-ms", "500", "--slo-tpot-ms", "50")
    assert simulate(trace, *flags, "--json", str(file)) == 0
    shown = capsys.readouterr()
    assert "ttft_ms.p50" in shown.out and "requests" in shown.err
    report = json.loads(file.read_text())
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert 0 < report[name]["p50"] <= report[name]["p90"] <= report[name]["p99"]
    assert report["requests"] == report["finished"] == 12
    assert report["block_size"] == 512
    assert 0 < report["prefix_hit_rate"] < 1
    assert 0 < report["goodput"] <= report["requests_per_s"] * 1.000001
    assert report["max_stall_ms"] >= report["itl_ms"]["p99"]
    assert len(report["replicas"]) == 2 and report["wall_s"] > 0


def test_the_same_seed_writes_the_same_bytes(trace: Path, tmp_path: Path) -> None:
    texts = []
    for name in ("one.json", "other.json"):
        file = tmp_path / name
        flags = ("--replicas", "3", "--router", "two-choices", "--seed", "7", "--rate-multiplier", "20")
        assert simulate(trace, *flags, "--json", str(file)) == 0
        lines = file.read_text().splitlines()
        assert sum('"wall_s"' in line for line in lines) == 1
        texts.append([line for line in lines if '"wall_s"' not in line])
    assert texts[0] == texts[1]


def test_arrivals_come_as_much_faster_as_asked(trace: Path, tmp_path: Path) -> None:
    spans = []
    for speed in ("1", "4"):
        file = tmp_path / f"{speed}.json"
        assert simulate(trace, "--rate-multiplier", speed, "--json", str(file)) == 0
        spans.append(json.loads(file.read_text())["duration_s"])
    assert spans[0] > 7.7 > 4 > spans[1] > 7.7 / 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "llama-3-8c"}, "the nearest is llama-3-8b"),
        ({"gpu": "h1000"}, "the nearest is h100"),
        ({"model": "llama-3-70b"}, "2 would hold them"),
        ({"model": "deepseek-v3", "flags": ("--tensor-parallel-size", "8")}, "no 8 of one node hold them"),
        ({"flags": ("--router", "prefixes")}, "router must be one of round-robin, "),
        ({"flags": ("--precision", "fp7")}, "precision must be one of bf16, fp8"),
        ({"flags": ("--replicas", "0")}, "replicas must be at least 1"),
        ({"flags": ("--rate-multiplier", "0")}, "rate_multiplier must be above 0"),
        ({"flags": ("--max-num-seqs", "300", "--max-num-batched-tokens", "200")}, "max_num_batched_tokens (200)"),
        ({"flags": ("--gpu-memory-utilization", "1.5")}, "gpu_memory_utilization must be above 0"),
        ({"flags": ("--workload", "chat")}, "either"),
        ({"flags": ("--fail", "dies:7@1")}, "fail names replica 7"),
        ({"flags": ("--startup-s", "-1")}, "startup_s must be finite"),
        ({"flags": ("--kv-events-delay-ms", "3")}, "kv_events_delay_ms goes with router prefix"),
        ({"flags": ("--slo-ttft-ms", "-1")}, "slo_ttft_ms must be above 0, got -1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    changes: dict[str, object], says: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = changes.pop("flags", ())
    assert simulate(trace, *flags, **changes) == 2  # type: ignore[arg-type,misc]
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and says in shown


def test_a_torn_trace_is_refused_with_its_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = trace.read_text()
    trace.write_text(text[: len(text) - 20])
    assert simulate(trace) == 2
    assert "line 12" in capsys.readouterr().err
