"""Of a remote GGUF file, as much is fetched as its header is long, and the factors of its rope."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from headrace.core.errors import ModelError
from headrace.models import hub_headers


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_headers, "_FIRST_BYTES", 64)


@pytest.fixture
def file(tmp_path: Path) -> bytes:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_token_list([f"token{i}" for i in range(500)])
    writer.add_tensor("weights", np.ones((64, 64), np.float32))
    writer.add_tensor("rope_freqs.weight", np.arange(1, 9, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (tmp_path / "m.gguf").read_bytes()


def test_nothing_but_header_and_rope_factors_is_fetched(file: bytes) -> None:
    asked: list[tuple[int, int]] = []

    def read(begin: int, end: int) -> bytes:
        asked.append((begin, end))
        return file[begin:end]

    pieces = hub_headers._gguf_header(Path("m.gguf"), read, len(file))
    assert all(file[begin : begin + len(data)] == data for begin, data in pieces.items())
    factors = np.arange(1, 9, dtype=np.float32).tobytes()
    assert list(pieces.values())[1:] == [factors]
    assert len(asked) > 3, "it is read on until the header ends"
    assert [begin for begin, _ in asked[1:-1]] == [end for _, end in asked[:-2]], "nothing twice"
    assert sum(map(len, pieces.values())) < len(file)


def test_a_header_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_headers, "_MAX_HEADER_BYTES", 5000)
    numbers = struct.pack("<4sIQQQcIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 0, 10**9)

    def read(begin: int, end: int) -> bytes:
        return (numbers + bytes(10**5))[begin:end]

    with pytest.raises(ModelError, match="longer than 5000 bytes"):
        hub_headers._gguf_header(Path("m.gguf"), read, 2**40)


def test_what_is_no_gguf_is_refused_at_its_first_bytes() -> None:
    with pytest.raises(ModelError, match="does not start with GGUF"):
        hub_headers._gguf_header(Path("m.gguf"), lambda begin, end: bytes(end - begin), 2**40)
