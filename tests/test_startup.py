"""What a start must not wait for."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import psutil

HEAVY = (
    "numpy",
    "prometheus_client",
    "headrace.policy.scheduler",
    "zmq",
    "asyncio",
    "logging",
    "uvicorn",
    "jinja2",
    "tokenizers",
)


def loaded_by(code: str) -> list[str]:
    """Which heavy modules a new interpreter has after running this."""
    shown = f"{code}; import sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split()


def test_the_engine_is_started_before_anything_heavy_is_loaded():
    assert loaded_by("import headrace.cli, headrace.commands.serve, headrace.serving") == []


def test_an_engine_loads_no_tokenizer_and_no_template_before_somebody_needs_them():
    assert not {"jinja2", "tokenizers", "asyncio"} & set(loaded_by("import headrace.engine_child"))


def test_a_command_that_is_refused_leaves_no_engine_behind(tmp_path):
    """It was started before the flags were read, in a session of its own."""
    mark = {"HEADRACE_TEST_MARK": str(uuid.uuid4())}
    command = [sys.executable, "-m", "headrace", "serve", "--port", "70000"]
    with (tmp_path / "log").open("wb") as log:
        status = subprocess.run(command, stderr=log, check=False, env={**os.environ, **mark}).returncode
    left = [p for p in psutil.process_iter(["environ"]) if mark.items() <= (p.info["environ"] or {}).items()]
    assert (status, left) == (2, [])
    assert (tmp_path / "log").read_text(encoding="utf-8").count("\n") == 1, "the refusal, and nothing of the engine's"


def test_an_engine_that_is_given_nothing_ends():
    command = [sys.executable, "-m", "headrace.engine_child"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_process_that_speaks_http_loads_no_arrays_no_scheduler_and_no_metrics_library():
    loaded = loaded_by("import headrace.api_process, headrace.api_child")
    assert "uvicorn" in loaded
    assert not {"numpy", "headrace.policy.scheduler", "prometheus_client"} & set(loaded)
