"""The engine's process, by what its parent gives it to read."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from headrace.core.config import Config
from headrace.engine.meeting_folder import FAILURE_NAME
from headrace.engine_process import SETTINGS_AT_FAULT, Start, installed_package


def test_it_does_not_start_for_a_server_of_another_installation(tmp_path):
    start = Start(Config(), str(tmp_path), 1, f"{installed_package()} before")
    command = [sys.executable, "-m", "headrace.engine_child"]
    done = subprocess.run(command, input=msgspec.msgpack.encode(start), timeout=60, check=False)
    assert done.returncode == SETTINGS_AT_FAULT
    assert "restart the server" in (tmp_path / FAILURE_NAME).read_text()
