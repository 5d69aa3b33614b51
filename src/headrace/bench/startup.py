"""How long from the command to the first answer of /health: a server is started as a user would start it, and ended."""

import contextlib
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.core.errors import EngineError

POLL_S = 0.005


@contextlib.contextmanager
def running_server(settings_file: Path, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`headrace serve` with these settings as a child process, ended on the way out."""
    command = [sys.executable, "-m", "headrace", "serve", "--config", str(settings_file), "--port", str(port)]
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(timeout=15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def measure_startup(settings_file: Path, log: Path, *, timeout_s: float = 300.0) -> float:
    """Milliseconds from starting the command to the first 200 of /health. Raises EngineError with what the server
    wrote if it ends or takes longer than timeout_s."""
    port = free_port()
    begun = time.perf_counter()
    with running_server(settings_file, port, log) as child:
        while time.perf_counter() - begun < timeout_s:
            if child.poll() is not None:
                raise EngineError(f"the server ended while starting: {_tail(log)}")
            if answers(port):
                return 1e3 * (time.perf_counter() - begun)
            time.sleep(POLL_S)
    raise EngineError(f"the server was not ready after {timeout_s:.0f} s: {_tail(log)}")


def answers(port: int) -> bool:
    """Whether /health on this machine's port says 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(log: Path) -> str:
    return " / ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]) or "it wrote nothing"
