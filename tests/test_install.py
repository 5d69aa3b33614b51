"""What a base install brings: small, and without torch."""

from __future__ import annotations

import importlib.metadata
import io
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import headrace

ROOT = Path(__file__).resolve().parents[1]
LIMIT_BYTES = 200 * 2**20
WHEEL_LIMIT_BYTES = 5 * 10**6


def base_install() -> dict[str, importlib.metadata.Distribution]:
    """Every distribution that the base dependencies pull in, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = [(Requirement(text), "") for text in project["dependencies"]]
    while wanted:
        requirement, extra = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name in found and not requirement.extras:
            continue
        distribution = importlib.metadata.distribution(name)
        found[name] = distribution
        needs = [Requirement(text) for text in distribution.requires or ()]
        wanted += [(need, extra) for need in needs for extra in ("", *requirement.extras)]
    return found


def size(distribution: importlib.metadata.Distribution) -> int:
    files = (Path(distribution.locate_file(file)) for file in distribution.files or ())
    return sum(file.stat().st_size for file in files if file.is_file())


def test_torch_is_not_among_it():
    names = set(base_install())
    assert {"numpy", "click", "tokenizers"} <= names
    assert not names & {"torch", "transformers", "triton", "gguf"}


def test_it_is_small():
    sizes = {name: size(distribution) for name, distribution in base_install().items()}
    if not sizes["numpy"]:
        pytest.skip("these packages were installed without a list of their files")
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
    assert sum(sizes.values()) < LIMIT_BYTES, f"{sum(sizes.values()) / 2**20:.0f} MiB, the largest: {largest}"


def test_a_wheel_of_it_is_below_five_megabytes():
    """What a wheel holds, kernels included, compressed as a wheel is."""
    folder = Path(headrace.__file__).parent
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    if not any(path.suffix == ".so" for path in files):
        pytest.skip("the kernels are not built: make kernels")
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in files:
            packed.write(path, path.relative_to(folder.parent))
    assert 0 < len(wheel.getvalue()) < WHEEL_LIMIT_BYTES
