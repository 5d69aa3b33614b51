"""Models from the Hugging Face hub, through its own client and cache: revisions, HF_TOKEN, HF_HOME and
HF_HUB_OFFLINE mean what they mean elsewhere. Only the files that serving needs are fetched.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from headrace.core.errors import ModelError

_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.*",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
)

_WEIGHTS = re.compile(r"model(-[\w-]+)?\.safetensors")
_MAX_HEADER_BYTES = 100 * 2**20


def fetch(repository: str, quant: str | None, revision: str | None, *, quiet: bool = False) -> Path:
    """Folder of a safetensors repository, or, with quant, the GGUF file whose name ends in it. Raises ModelError
    saying what there is and what to do."""
    hub = _client()
    if quiet:
        hub.utils.disable_progress_bars()
    patterns = list(_FILES) if quant is None else _quant_patterns(quant)
    with _explained(hub, repository, revision):
        folder = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
    return _choose(repository, quant, folder)


@contextlib.contextmanager
def _explained(hub: ModuleType, repository: str, revision: str | None) -> Iterator[None]:
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
        raise ModelError(f"hf:{repository} is not in the cache and cannot be fetched: {error}") from error


def fetch_headers(repository: str, revision: str | None, folder: Path) -> None:
    """Fill `folder` with a safetensors repository's settings, and with files that have its weights' headers and sizes
    but none of their values: enough to tell what it is. Raises ModelError."""
    hub = _client()
    settings = [name for name in _FILES if not name.endswith(".safetensors")]
    with _explained(hub, repository, revision):
        hub.snapshot_download(repository, revision=revision, allow_patterns=settings, local_dir=folder)
        names = [f for f in hub.HfApi().list_repo_files(repository, revision=revision) if _WEIGHTS.fullmatch(f)]
        for name in names:
            _fetch_header(hub, hub.hf_hub_url(repository, name, revision=revision), folder / name)


def _fetch_header(hub: ModuleType, url: str, path: Path) -> None:
    session, headers = hub.utils.get_session(), hub.utils.build_hf_headers()
    size = hub.get_hf_file_metadata(url).size or 0

    def read(begin: int, end: int) -> bytes:
        answer = session.get(url, headers={**headers, "Range": f"bytes={begin}-{end - 1}"})
        hub.utils.hf_raise_for_status(answer)
        return bytes(answer.content)[: end - begin]

    length = read(0, 8)
    end = min(8 + int.from_bytes(length, "little"), size, _MAX_HEADER_BYTES)
    with path.open("wb") as file:
        file.write(length + read(8, end) if end > 8 else length)
        file.truncate(size)


def cached() -> list[tuple[str, Path, int]]:
    """(repository, folder, bytes) of every model in the hub's cache that could be served."""
    hub = _client()
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


def _client() -> ModuleType:
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
    ending = re.compile(rf"(?:^|[-._]){re.escape(quant)}(?:-00001-of-\d{{5}})?\.gguf", re.IGNORECASE)
    files = sorted(file for file in folder.rglob("*.gguf") if ending.search(file.name))
    if len(files) != 1:
        raise ModelError(f"hf:{repository}:{quant} must name one GGUF file, found {[f.name for f in files] or 'none'}")
    return files[0]
