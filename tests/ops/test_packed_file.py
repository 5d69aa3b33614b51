"""A file of packed matrices gives back what was written, or nothing."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny_models import RandomWeights, tiny_spec

from headrace.models.decoder_weights import DecoderWeights
from headrace.models.families.family import HUB_NAMES
from headrace.models.lowering import lower
from headrace.ops import packed_file
from headrace.ops.cpu_weights import CpuWeights, packing_digest
from headrace.ops.packed_file import PackedWriter
from headrace.ops.program import Program

SCHEMES = ("f32", "bf16", "q8", "q4")


def tiny_program(scheme: str = "q4") -> Program:
    spec = tiny_spec()
    weights = DecoderWeights(RandomWeights(spec, scheme), HUB_NAMES)  # type: ignore[arg-type]
    return lower(spec, weights, quantization="auto", kv_dtype="fp32", block_size=16)


def written(path: Path, scheme: str = "q4", *, limit: int = 1 << 30) -> tuple[CpuWeights, bool]:
    """A file of a tiny program's matrices, what was packed for it, and whether it is whole."""
    weights, program = CpuWeights(1), tiny_program(scheme)
    program.notes.append("as it was")
    with PackedWriter(path, key="key", limit=limit) as writer:
        weights.pack(program, keep=writer)
    return weights, writer.whole


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_was_written_is_mapped_bit_for_bit(tmp_path: Path, scheme: str) -> None:
    packed, whole = written(tmp_path / "file", scheme)
    assert whole
    program, weights, steps = tiny_program(scheme), CpuWeights(1), list[tuple[int, int]]()
    total = len(program.matrices)
    assert weights.map(program, tmp_path / "file", key="key", progress=lambda *step: steps.append(step))
    assert steps == [(i + 1, total) for i in range(total)]
    assert list(program.matrices) == []
    assert program.notes == ["as it was"]
    assert weights.packed.keys() == packed.packed.keys()
    for name, mapped in weights.packed.items():
        one = packed.packed[name]
        shape = ("scheme", "n", "k", "group", "half_scales")
        assert [getattr(mapped, field) for field in shape] == [getattr(one, field) for field in shape]
        for part, original in zip(mapped.parts, one.parts, strict=True):
            assert part.ctypes.data % 64 == 0
            assert not part.flags.writeable
            np.testing.assert_array_equal(part, original)


def refused(path: Path, key: str = "key", program: Program | None = None) -> bool:
    """Whether nothing is taken from the file, and nothing changed."""
    program, weights = program or tiny_program(), CpuWeights(1)
    names = list(program.matrices)
    taken = weights.map(program, path, key=key)
    return not taken and weights.packed == {} and list(program.matrices) == names


def test_a_file_for_something_else_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "file")
    assert refused(tmp_path / "file", "another")
    program = tiny_program()
    program.matrices.pop("layer1.down")
    assert refused(tmp_path / "file", program=program)


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "file"
    written(path)
    return path


@settings(max_examples=30)
@given(data=st.data())
def test_a_file_that_is_torn_or_changed_anywhere_is_refused(whole_file: Path, data: st.DataObject) -> None:
    whole, path = whole_file.read_bytes(), whole_file.with_name("torn")
    end = data.draw(st.integers(0, len(whole) - 1), "end")
    place = data.draw(st.integers(0, len(whole) - 1), "place")
    flipped = bytes([whole[place] ^ 1 << data.draw(st.integers(0, 7), "bit")])
    for torn in (
        whole[:end],
        whole[:end] + bytes(len(whole) - end),
        data.draw(st.binary(max_size=200), "noise") + whole[end:],
        whole[:place] + flipped + whole[place + 1 :],
    ):
        path.write_bytes(torn)
        weights, program = CpuWeights(1), tiny_program()
        if weights.map(program, path, key="key"):  # only what lies between parts was changed
            assert content(weights) == content_of(whole_file)
        else:
            assert weights.packed == {}
            assert len(program.matrices) > 0


def content(weights: CpuWeights) -> dict[str, list[bytes]]:
    return {name: [bytes(part) for part in matrix.parts] for name, matrix in weights.packed.items()}


def content_of(path: Path) -> dict[str, list[bytes]]:
    weights = CpuWeights(1)
    assert weights.map(tiny_program(), path, key="key")
    return content(weights)


def test_an_index_that_does_not_fit_its_parts_is_refused(whole_file: Path, tmp_path: Path) -> None:
    """As only a program of another make could write it, for its digest is right."""
    file = whole_file.read_bytes()
    length = struct.unpack("<Q", file[-32:-24])[0]
    index = msgspec.msgpack.decode(file[-32 - length : -32])
    entry, part = index["entries"][0], index["entries"][0][-1][0]
    changes: list[tuple[list, int, object]] = [
        (entry, 1, "q5"), (entry, 2, 0), (entry, 3, 2**31 - 32), (entry, 4, 0), (entry, 5, "half"), (entry, -1, []),
        (part, 0, 64), (part, 0, -64), (part, 1, 2**62), (part, 2, b""),
    ]  # fmt: skip
    for place, field, value in changes:
        kept, place[field] = place[field], value
        changed = msgspec.msgpack.encode(index)
        digest = hashlib.blake2b(changed, digest_size=16).digest()
        tail = struct.pack("<Q", len(changed)) + digest + file[-8:]
        (tmp_path / "file").write_bytes(file[: -32 - length] + changed + tail)
        assert refused(tmp_path / "file"), (field, value)
        place[field] = kept


def test_a_file_beyond_its_limit_is_not_whole(tmp_path: Path) -> None:
    _, whole = written(tmp_path / "file", limit=10_000)
    assert not whole
    assert (tmp_path / "file").stat().st_size <= 10_000


def test_a_disk_that_fills_up_costs_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed_file.os, "write", full)
    weights, whole = written(tmp_path / "file")
    assert not whole
    assert weights.packed.keys() == set(tiny_program().matrices)


def test_how_a_build_packs_has_one_digest() -> None:
    assert packing_digest() == packing_digest()
    assert len(packing_digest()) == 32
