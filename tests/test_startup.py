"""What a start must not wait for."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "zmq", "asyncio", "logging", "uvicorn", "starlette", "jinja2", "tokenizers", "urllib.request")


def loaded_by(code: str) -> list[str]:
    """Which heavy modules a new interpreter has after running this."""
    shown = f"{code}; import sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split()


def test_the_engine_is_started_before_anything_heavy_is_loaded():
    assert loaded_by("import headrace.cli, headrace.commands.serve, headrace.serving") == []
