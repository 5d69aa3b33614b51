"""headrace plan --list: what is known, with sizes, limits, and the date of each price."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import cli
from headrace.core.hardware import KNOWN
from headrace.models.published import CONFIGS


def test_models_and_gpus_are_listed_with_what_a_plan_knows_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "known.json"
    assert cli.run(["plan", "--list", "--json", str(file)]) == 0
    known = json.loads(file.read_text())
    assert list(known["models"]) == list(CONFIGS) and list(known["gpus"]) == list(KNOWN)
    llama = known["models"]["llama-3-70b"]
    assert llama["weight_bytes"]["bf16"] == 2 * llama["parameters"] == 2 * 70_553_706_496
    assert llama["kv_bytes_per_token"] == {"bf16": 320 * 1024, "fp8": 160 * 1024}
    assert known["models"]["mixtral-8x7b"]["active_parameters"] == 12_879_925_248
    h100, b200 = known["gpus"]["h100"], known["gpus"]["b200"]
    assert h100["memory_bytes"] == 80 * 2**30 and h100["price_per_hour_usd"] > 0 and h100["priced"]
    assert h100["kernels_measured"] and not b200["kernels_measured"]
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*CONFIGS, *KNOWN))
    assert "320.0 KiB" in printed and "2025-10" in printed
