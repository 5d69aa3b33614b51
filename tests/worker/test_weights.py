"""Weights come from the packed copy when there is a whole one, and are packed when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny_models import RandomWeights, tiny_spec

from headrace.models.decoder_weights import DecoderWeights
from headrace.models.families.family import HUB_NAMES
from headrace.models.lowering import lower
from headrace.models.packed_copies import find_packed, packed_copies
from headrace.ops import cpu_weights
from headrace.ops.cpu_weights import CpuWeights
from headrace.ops.program import Program
from headrace.worker import weights as worker_weights
from headrace.worker.weights import copy_key, ready_weights

LARGE = 2**30
"""Bytes of stored weights for which a copy pays."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def program(*, seed: int = 0, quantization: str = "auto", kv_dtype: str = "fp32") -> Program:
    spec = tiny_spec()
    weights = DecoderWeights(RandomWeights(spec, "q8", seed), HUB_NAMES)  # type: ignore[arg-type]
    return lower(spec, weights, quantization=quantization, kv_dtype=kv_dtype, block_size=16)  # type: ignore[arg-type]


def ready(from_program: Program, *, limit: int = LARGE, stored: int = LARGE) -> CpuWeights:
    return ready_weights(from_program, threads=1, origin=Path("/models/tiny"), stored_bytes=stored, limit=limit)


def content(weights: CpuWeights) -> dict[str, list[bytes]]:
    return {name: [bytes(part) for part in matrix.parts] for name, matrix in weights.packed.items()}


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is packed from now on, one entry for each program."""
    seen: list[str] = []
    original = CpuWeights.pack

    def pack(self: CpuWeights, program: Program, **given: object) -> None:
        seen.append(program.weights)
        original(self, program, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(CpuWeights, "pack", pack)
    return seen


def test_the_second_start_packs_nothing_and_has_the_same(packs: list[str]) -> None:
    first, second = ready(program()), ready(program())
    assert len(packs) == 1
    assert content(first) == content(second)
    assert second.nbytes > 0
    other_cache = ready(program(kv_dtype="bf16"))
    assert len(packs) == 1, "the cache's type changes no weight"
    assert content(other_cache) == content(first)


def test_other_weights_and_other_quantization_have_copies_of_their_own(
    packs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready(program())
    exact = content(ready(program(quantization="none")))
    other = content(ready(program(seed=1)))
    assert len(packs) == 3
    assert len(packed_copies()) == 3
    assert content(ready(program(seed=1))) == other != exact
    monkeypatch.setattr(worker_weights, "packing_digest", lambda: "a build that packs otherwise")
    ready(program())
    assert len(packs) == 4


def test_a_torn_copy_is_replaced(packs: list[str]) -> None:
    whole = content(ready(program()))
    file = find_packed(copy_key(program()))
    assert file is not None
    data = file.read_bytes()
    for torn in (data[:-1], b"", data[: len(data) // 2] + bytes(len(data) - len(data) // 2)):
        file.write_bytes(torn)
        before = len(packs)
        assert content(ready(program())) == whole
        assert len(packs) == before + 1
        assert file.read_bytes() == data


@pytest.mark.parametrize("given", [{"limit": 0}, {"limit": 1000}, {"stored": 2**20}])
def test_no_copy_is_kept_beyond_the_limit_or_of_little(packs: list[str], given: dict[str, int]) -> None:
    for _ in range(2):
        ready(program(), **given)
    assert len(packs) == 2
    assert packed_copies() == []


def test_a_cache_that_cannot_be_written_costs_a_note(packs: list[str], cache: Path) -> None:
    cache.write_bytes(b"a file")
    loaded = program()
    assert ready(loaded).packed.keys() == set(program().matrices)
    assert [note for note in loaded.notes if "converted at every start" in note and "HEADRACE_CACHE" in note]


def test_a_failure_while_packing_leaves_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def pack(*given: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cpu_weights, "_pack", pack)
    monkeypatch.setattr(worker_weights, "packing_digest", lambda: "")
    with pytest.raises(MemoryError):
        ready(program())
    assert packed_copies() == []
