"""locate_headers(): a model's headers and settings, without its weights. Of a hub repository only those bytes are
fetched that tell what it is; its weight files are stood in for by files of their size that hold nothing else.
"""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from headrace.core.errors import ModelError
from headrace.models.formats.gguf_header import CutShort, Header
from headrace.models.hub import SETTINGS, client, explained, quant_files
from headrace.models.loader import ROPE_FACTORS
from headrace.models.sources import locate, on_hub

_WEIGHTS = re.compile(r"model(-[\w-]+)?\.safetensors")
_MAX_HEADER_BYTES = 100 * 2**20
_FIRST_BYTES = 4 * 2**20

Read = Callable[[int, int], bytes]
"""Bytes of a remote file, from begin to end."""


def locate_headers(model: str, folder: Path, *, revision: str | None = None) -> Path:
    """As sources.locate(), but of a hub model only what tells what it is is fetched, into `folder`."""
    named = on_hub(model)
    if named is None:
        return locate(model, revision=revision)
    repository, quant = named
    hub = client()
    with explained(hub, repository, revision):
        if quant is None:
            hub.snapshot_download(repository, revision=revision, allow_patterns=list(SETTINGS), local_dir=folder)
        listed = hub.HfApi().list_repo_files(repository, revision=revision)
        weights = (
            [f for f in listed if _WEIGHTS.fullmatch(f)] if quant is None else quant_files(listed, repository, quant)
        )
        for name in weights:
            read, size = _remote(hub, hub.hf_hub_url(repository, name, revision=revision))
            path = folder / Path(name).name
            pieces = _safetensors_header(read, size) if quant is None else _gguf_header(path, read, size)
            with path.open("wb") as file:
                for begin, data in pieces.items():
                    file.seek(begin)
                    file.write(data)
                file.truncate(size)
    return folder if quant is None else folder / Path(weights[0]).name


def _remote(hub: ModuleType, url: str) -> tuple[Read, int]:
    """A reader of the file's bytes, and its size."""
    session, headers = hub.utils.get_session(), hub.utils.build_hf_headers()
    size = hub.get_hf_file_metadata(url).size or 0

    def read(begin: int, end: int) -> bytes:
        answer = session.get(url, headers={**headers, "Range": f"bytes={begin}-{end - 1}"})
        hub.utils.hf_raise_for_status(answer)
        content = bytes(answer.content)
        return (
            content[begin:end] if answer.status_code == 200 else content[: end - begin]
        )  # 200: it sends all or nothing

    return read, size


def _safetensors_header(read: Read, size: int) -> dict[int, bytes]:
    length = read(0, 8)
    end = min(8 + int.from_bytes(length, "little"), size, _MAX_HEADER_BYTES)
    return {0: length, 8: read(8, end)} if end > 8 else {0: length}


def _gguf_header(path: Path, read: Read, size: int) -> dict[int, bytes]:
    """Also the factors of rope, without which no spec can be told. How long a header is shows only when it was read."""
    data, wanted = b"", _FIRST_BYTES
    while True:
        data += read(len(data), min(wanted, size))
        try:
            header = Header(path, data, size)
            break
        except CutShort as error:
            wanted *= 4
            if len(data) >= min(size, _MAX_HEADER_BYTES):
                raise ModelError(f"{path}: its header is longer than {_MAX_HEADER_BYTES} bytes") from error
    pieces = {0: data}
    for tensor in header.tensors:
        begin = header.data + tensor.offset
        if tensor.name in ROPE_FACTORS.values() and len(data) < begin + tensor.size <= min(size, begin + _FIRST_BYTES):
            pieces[begin] = read(begin, begin + tensor.size)
    return pieces
