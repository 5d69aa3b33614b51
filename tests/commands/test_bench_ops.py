"""headrace bench ops and doctor --measure, through the front door."""

from __future__ import annotations

import json
from pathlib import Path

from headrace import cli


def test_bench_ops_holds_every_op_against_the_machine(default_model: Path, tmp_path, capsys):
    file = tmp_path / "ops.json"
    flags = ["--batch", "2", "--context", "8", "--prompt", "4", "--tries", "1", "--json", str(file)]
    assert cli.run(["bench", "ops", str(default_model), "--max-model-len", "64", *flags]) == 0
    report = json.loads(file.read_text())
    assert report["machine"]["int8_per_s"] > 0
    for step in ("decode 1", "decode 2", "prompt 4"):
        named = report[step]
        assert {"qkv q4", "gate_up q4", "down q4", "embedding q8", "attention", "rms_norm"} <= named.keys()
        assert named["down q4"]["gop_per_s"] > 0
        assert named["rms_norm"].keys() == {"time_ms"}
    assert "decode 1.attention.time_ms" in capsys.readouterr().out


def test_doctor_measures_when_asked(default_model: Path, tmp_path):
    file = tmp_path / "doctor.json"
    flags = ["--max-model-len", "64", "--num-kv-blocks", "16", "--max-num-seqs", "2", "--threads", "1"]
    assert cli.run(["doctor", str(default_model), *flags, "--measure", "--json", str(file)]) == 0
    ceilings = json.loads(file.read_text())["ceilings"]
    assert ceilings["threads"] == 1
    assert ceilings["read_bytes_per_s"] > 0
