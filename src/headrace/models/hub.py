"""Models from the Hugging Face hub, through its own client and cache: revisions, HF_TOKEN, HF_HOME and
HF_HUB_OFFLINE mean what they mean elsewhere. Only the files that serving needs are fetched.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from headrace.core.errors import ModelError

SETTINGS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "chat_template.*",
    "additional_chat_templates/tool_use.jinja",
    "model.safetensors.index.json",
)
_FILES = (*SETTINGS, "model.safetensors", "model-*.safetensors")


def fetch(repository: str, quant: str | None, revision: str | None, *, quiet: bool = False) -> Path:
    """Folder of a safetensors repository, or, with quant, the GGUF file whose name ends in it. Raises ModelError
    saying what there is and what to do."""
    hub = client()
    if quiet:
        hub.utils.disable_progress_bars()
    patterns = list(_FILES) if quant is None else _quant_patterns(quant)
    with explained(hub, repository, revision):
        folder = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
    return _choose(repository, quant, folder)


@contextlib.contextmanager
def explained(hub: ModuleType, repository: str, revision: str | None) -> Iterator[None]:
    """Failures of the hub's client as ModelError, saying what to do."""
    try:
        yield
    except hub.errors.GatedRepoError as error:
        raise ModelError(f"hf:{repository} is gated: accept its terms on the hub and set HF_TOKEN") from error
    except hub.errors.RepositoryNotFoundError as error:
        raise ModelError(f"hf:{repository} does not exist on the hub, or needs HF_TOKEN to be seen") from error
    except hub.errors.RevisionNotFoundError as error:
        raise ModelError(f"hf:{repository} has no revision {revision!r}") from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())  # the client's messages have several lines
        raise ModelError(f"hf:{repository} is not in the cache and cannot be fetched: {reason}") from error


def cached() -> list[tuple[str, Path, int]]:
    """(repository, folder, bytes) of every model in the hub's cache that could be served."""
    hub = client()
    try:
        repositories = hub.scan_cache_dir().repos
    except hub.errors.CacheNotFound:
        return []
    found = []
    for repository in repositories:
        names = {file.file_name for revision in repository.revisions for file in revision.files}
        if repository.repo_type == "model" and any(n == "config.json" or n.endswith(".gguf") for n in names):
            found.append((repository.repo_id, Path(repository.repo_path), repository.size_on_disk))
    return found


def client() -> ModuleType:
    """The hub's client; it takes longer to import than all else here, so only when a hub model is wanted."""
    import huggingface_hub  # noqa: PLC0415
    import huggingface_hub.errors  # noqa: PLC0415
    import huggingface_hub.utils  # noqa: PLC0415

    return huggingface_hub


def _quant_patterns(quant: str) -> list[str]:
    return [
        pattern
        for q in sorted({quant, quant.upper(), quant.lower()})
        for pattern in (f"*[-._]{q}.gguf", f"{q}.gguf", f"*[-._]{q}-?????-of-?????.gguf")
    ]


def _choose(repository: str, quant: str | None, folder: Path) -> Path:
    if quant is None:
        if (folder / "config.json").is_file():
            return folder
        raise ModelError(
            f"hf:{repository} has no config.json with safetensors; if it holds GGUF files, name one: "
            f"hf:{repository}:Q8_0"
        )
    files = quant_files((str(file.relative_to(folder)) for file in folder.rglob("*.gguf")), repository, quant)
    return folder / files[0]


def quant_files(names: Iterable[str], repository: str, quant: str) -> list[str]:
    """Those of a repository's files that are the GGUF model named by `quant`, in the order of its parts. Raises
    ModelError unless there is exactly one such model."""
    ending = re.compile(rf"(?:(?:^|.*[-._/]){re.escape(quant)})(?:-(\d{{5}})-of-\d{{5}})?\.gguf", re.IGNORECASE)
    found = sorted(name for name in names if ending.fullmatch(name))
    firsts = [name for name in found if not (part := ending.fullmatch(name)) or part[1] in (None, "00001")]
    if len(firsts) != 1:
        raise ModelError(f"hf:{repository}:{quant} must name one GGUF file, found {firsts or 'none'}")
    return found
