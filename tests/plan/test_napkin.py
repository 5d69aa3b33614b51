"""The napkin: each of our figures again by hand, and its report through the front door."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import cli
from headrace.core.hardware import known_hardware
from headrace.models.published import published_model
from headrace.plan.million_qps import SOURCE, smallest_fleet
from headrace.plan.napkin import million_qps

PARAMETERS = 70_553_706_496
KEPT = 2 * 80 * 8 * 128 * 2
COUNTED = 2 * 80 * 64 * 128 * 2


@pytest.mark.parametrize(
    ("claim", "theirs", "right", "verdict"),
    [
        ("1.4 million a second", 1.4e6, 1.4e6 * 3, "unclear"),
        ("KV cache of 1,000 tokens", 1000 * COUNTED / 2**30, 1000 * KEPT / 2**30, "wrong"),  # 2.44 against 0.305
        ("Weights in 16 bits", 140, 2 * PARAMETERS / 1e9, "right"),
        ("Weights on one GPU", 35, 2 * PARAMETERS / 8 / 1e9, "wrong"),
        ("Room for each request", 1000 * COUNTED / 1e6, 400 * KEPT / 1e6, "wrong"),
        ("Requests at once on a node", 150, 3113, "wrong"),
        ("200 tokens in 3 s", 15, 1e3 * (2 * PARAMETERS + 147 * 1000 * COUNTED) / 8 / 2.039e12, "wrong"),
        ("Nodes:", 28_000, 1.4e6 / (150 / 3), "right"),
        ("GPUs that arithmetic", 220_000, 1.4e6 * 400 * 2 * PARAMETERS / 312e12, "wrong"),
        ("KV moved from prefill", 3400, 1.4e6 * 200 * KEPT / 1e12, "wrong"),  # 92 TB/s
        ("The same, for each GPU", 3.4e6 / 220_000, 1.4e6 * 200 * KEPT / 220_000 / 1e9, "wrong"),
        ("Static batching", 0.3, None, "unclear"),
        ("FP8 or INT8 KV", 0.75, 0.5, "wrong"),
        ("Tokens of a verified step", 0.7 + 0.49 + 0.343 + 0.2401, 1 + 0.7 + 0.49 + 0.343 + 0.2401, "wrong"),
        ("Layers of Llama-3.1-405B", None, 126, "unclear"),
        ("cpu_offload_gb", 1e3 * 400 * KEPT / 8 / 32e9, 1e3 * 10e9 / 32e9, "wrong"),
    ],
)
def test_a_line_by_hand(claim: str, theirs: float | None, right: float | None, verdict: str) -> None:
    (line,) = [line for line in million_qps() if line.claim.startswith(claim)]
    assert line.theirs == (None if theirs is None else pytest.approx(theirs))
    assert line.right == (None if right is None else pytest.approx(right))
    assert line.verdict == verdict


def test_lines_of_the_latency_model_say_what_the_napkin_denies() -> None:
    lines = {line.claim: line for line in million_qps()}
    stall = lines["A long prompt among streams shows in TTFT"]
    assert stall.right is not None and stall.theirs is not None and stall.right > 10 * stall.theirs
    guess = lines["Speculation raises throughput"]
    assert guess.right is not None and guess.theirs is not None and guess.right < 1 < guess.theirs
    request = lines["A request takes 3 s"]
    assert request.right is not None and request.right > 3


def test_a_looser_limit_needs_fewer_gpus_but_never_fewer_than_arithmetic() -> None:
    spec, gpu = published_model(SOURCE.model), known_hardware(SOURCE.gpu)
    fleets = [smallest_fleet(spec, gpu, SOURCE, limit)[0] for limit in (0.03, 0.05, 0.1, 0.3)]
    assert fleets == sorted(fleets, reverse=True)
    assert fleets[-1] > 1.4e6 * 400 * 2 * PARAMETERS / 312e12


def test_the_report_has_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in found:
        assert cli.run(["plan", "--example", "million-qps", "--json", str(file)]) == 0
    assert found[0].read_bytes() == found[1].read_bytes()
    rows = json.loads(found[0].read_text())["rows"]
    assert len(rows) >= 14
    assert all(set(row) == {"claim", "theirs", "right", "unit", "factor", "why", "verdict"} for row in rows)
    assert all(row["factor"] == row["theirs"] / row["right"] for row in rows if row["factor"] is not None)
    printed = capsys.readouterr().out
    assert all(row["claim"] in printed for row in rows)


def test_an_unknown_example_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "--example", "million-qp"]) == 2
    assert "no example 'million-qp'; did you mean million-qps?" in capsys.readouterr().err
