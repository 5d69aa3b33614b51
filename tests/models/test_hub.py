"""The hub's client talks here to a small hub of our own, in a process that knows no other."""

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.models_for_tests import make_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WANTED = {"config.json": b"{}", "model.safetensors": b"x" * 100, "tokenizer.json": b"{}", "chat_template.jinja": b"t"}
OTHERS = {"pytorch_model.bin": b"no", "README.md": b"no", "original/consolidated.pth": b"no", "m-Q8_0.gguf": b"GGUF"}


class SmallHub(http.server.ThreadingHTTPServer):
    """Serves one repository, org/name, with a branch v2; org/gated is gated. `seen` has (path, token) of requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, str | None]] = []
        self.parts: list[tuple[str, int]] = []


class _Handler(http.server.BaseHTTPRequestHandler):
    server: SmallHub

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.server.seen.append((path, self.headers.get("authorization")))
        content = _answer(path)
        if content is None:
            gated = "gated" in path
            self.send_response(403 if gated else 404)
            self.send_header("X-Error-Code", _error_code(path))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range") or "")
        if wanted is not None:
            content = content[int(wanted[1]) : int(wanted[2]) + 1]
            self.server.parts.append((path, len(content)))
        self.send_response(200 if wanted is None else 206)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{path.rsplit("/", 1)[1]}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def _answer(path: str) -> bytes | None:
    files = {**WANTED, **OTHERS}
    if path.startswith("/api/models/org/name/tree/"):
        return json.dumps(
            [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in files.items()]
        ).encode()
    if path in ("/api/models/org/name/revision/main", "/api/models/org/name/revision/v2"):
        return json.dumps({"id": "org/name", "sha": COMMIT, "siblings": [{"rfilename": n} for n in files]}).encode()
    return files.get(re.sub(rf"^/org/name/resolve/({COMMIT}|main)/", "", path))


def _error_code(path: str) -> str:
    if "gated" in path:
        return "GatedRepo"
    return "RevisionNotFound" if path.startswith("/api/models/org/name") else "RepoNotFound"


@pytest.fixture
def small_hub() -> Iterator[SmallHub]:
    with SmallHub() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def locate(server: SmallHub, home: Path, model: str, *, revision: str | None = None, quiet: bool = False) -> list[str]:
    """What locate() prints and shows: [result or error, progress]."""
    code = f"""
from headrace.core.errors import ModelError
from headrace.models import sources
try:
    print(sources.locate({model!r}, revision={revision!r}, quiet={quiet!r}))
except ModelError as error:
    print(error)
"""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    environment |= {"HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120, env=environment
    )
    return [done.stdout.strip(), done.stderr]


def test_only_what_serving_needs_is_fetched(small_hub: SmallHub, tmp_path: Path) -> None:
    place, progress = locate(small_hub, tmp_path, "org/name")
    assert {f.name: f.read_bytes() for f in Path(place).iterdir()} == WANTED
    assert "4/4" in progress
    assert ("/api/models/org/name/revision/main", "Bearer hf_secret") in small_hub.seen


def test_a_quantization_fetches_one_file(small_hub: SmallHub, tmp_path: Path) -> None:
    place, progress = locate(small_hub, tmp_path, "hf:org/name:q8_0", quiet=True)
    assert Path(place).read_bytes() == b"GGUF"
    assert [f.name for f in Path(place).parent.iterdir()] == ["m-Q8_0.gguf"]
    assert progress == ""


def test_a_revision_is_asked_for(small_hub: SmallHub, tmp_path: Path) -> None:
    locate(small_hub, tmp_path, "org/name", revision="v2")
    assert "/api/models/org/name/revision/v2" in [path for path, _ in small_hub.seen]


@pytest.mark.parametrize(
    ("model", "revision", "message"),
    [
        ("org/missing", None, "hf:org/missing does not exist on the hub, or needs HF_TOKEN"),
        ("org/gated", None, "hf:org/gated is gated: accept its terms on the hub and set HF_TOKEN"),
        ("org/name", "v9", "hf:org/name has no revision 'v9'"),
    ],
)
def test_what_the_hub_refuses_says_what_to_do(
    small_hub: SmallHub, tmp_path: Path, model: str, revision: str | None, message: str
) -> None:
    assert locate(small_hub, tmp_path, model, revision=revision)[0].startswith(message)


def inspected(server: SmallHub, folder: Path, model: str) -> dict:
    """The report of `headrace inspect`."""
    report = folder / "report.json"
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"HF_HOME": str(folder / "hf"), "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HEADRACE_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "headrace", "inspect", model, "--json", str(report)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment)
    assert report.exists(), done.stderr
    return json.loads(report.read_text())


def test_a_model_is_inspected_without_its_weights(
    small_hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path / "m")
    for name in ("config.json", "model.safetensors"):
        monkeypatch.setitem(WANTED, name, (tmp_path / "m" / name).read_bytes())
    shown = inspected(small_hub, tmp_path, "org/name")
    assert shown["stored"] == {"F32_bytes": 4 * shown["parameters"]}
    assert [reason for reason in shown["refused"] if "tokenizer" not in reason] == []
    got = sum(size for path, size in small_hub.parts if path.endswith("model.safetensors"))
    assert 0 < got < len(WANTED["model.safetensors"]) / 4


def test_a_gguf_model_is_inspected_without_its_weights(
    small_hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default_model: Path
) -> None:
    monkeypatch.setitem(OTHERS, "org-Q4_1.gguf", default_model.read_bytes())
    shown = inspected(small_hub, tmp_path, "hf:org/name:q4_1")
    assert (shown["refused"], shown["parameters"]) == ([], 134_515_008)
    assert set(shown["stored"]) == {"F32_bytes", "Q4_1_bytes", "Q8_0_bytes"}
    assert shown["tokenizer"] == "BPE (tokenizer.json)"
    assert 0 < sum(size for _, size in small_hub.parts) < default_model.stat().st_size / 10
