"""Whole models whose bytes were changed: opened or refused by name, never a crash, and no more memory than their size
and a little."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models_for_tests import make_checkpoint, write_gguf

from headrace.core.errors import ModelError
from headrace.models.formats import gguf_types
from headrace.models.formats.gguf import GGUFFile
from headrace.models.loader import load_model
from headrace.models.text import load_text

HUGE = (struct.pack("<Q", 2**63), struct.pack("<Q", 2**32 - 1), struct.pack("<I", 2**31), b"\xff" * 8)
PATCHES = (*HUGE, b"\0" * 8, b"\x7f", b"\x01", b"\x09", b"\xff")
SPARE = 1 << 20
"""Bytes that opening may take beside the file's size: objects of Python for a few hundred tensors and settings."""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with a matrix of every stored type, of random blocks."""
    path, random = tmp_path_factory.mktemp("types") / "m.gguf", np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    for kind, block in gguf_types.TYPES.items():
        raw = random.integers(0, 256, (4, 512 // block.values * block.bytes), np.uint8)
        writer.add_tensor(block.name, raw, raw_dtype=gguf.GGMLQuantizationType(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as a folder of safetensors and as m.gguf in it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_gguf(folder / "m.gguf", make_checkpoint(folder), gguf.GGMLQuantizationType.Q5_1)
    return folder


PLACES = st.integers(0, 2**16)
CHANGES = st.lists(st.tuples(PLACES, st.sampled_from(PATCHES)), min_size=1, max_size=4)
CUTS = st.integers(0, 2**17)
"""Taken modulo the number of places there are; a cut beyond the end cuts nothing."""


def mutated(good: bytes, changes: list[tuple[int, bytes]], cut: int, end: int) -> bytes:
    """A copy with a few places before `end` changed, and perhaps cut short."""
    changed = bytearray(good)
    for place, patch in changes:
        place %= end
        changed[place : place + len(patch)] = patch[: len(changed) - place]
    return bytes(changed[: cut % (2 * len(good))])


@settings(max_examples=60)
@given(changes=CHANGES, cut=CUTS)
def test_a_file_of_any_stored_type(
    quantized: bytes, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "types.gguf"
    path.unlink(missing_ok=True)  # what is mapped stays as it is
    path.write_bytes(mutated(quantized, changes, cut, len(quantized)))
    tracemalloc.start()
    try:
        file = GGUFFile(path)
        opened = tracemalloc.get_traced_memory()[1]
        for name in file.names():
            assert file.form(name).stored
            for matrix in (file.matrix(name), file.floats(name)) if len(file.shape(name)) in (2, 3) else ():
                assert matrix.n * matrix.k <= 8 * len(quantized), "an element takes two bits at least"
        assert opened <= len(quantized) + SPARE
        assert tracemalloc.get_traced_memory()[1] <= 100 * len(quantized) + SPARE, "of all at once in float32"
    except ModelError as error:
        assert "types.gguf" in str(error)
    finally:
        tracemalloc.stop()


@settings(max_examples=60)
@given(changes=CHANGES, cut=CUTS, weights=st.sampled_from(["m.gguf", "model.safetensors", "config.json"]))
def test_a_model_by_its_headers(
    checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[tuple[int, bytes]],
    cut: int,
    weights: str,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutated"
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes((checkpoint / name).read_bytes())
    good = (checkpoint / weights).read_bytes()
    (folder / weights).unlink(missing_ok=True)
    (folder / weights).write_bytes(mutated(good, changes, cut, min(len(good), 8000)))
    path = folder / "m.gguf" if weights == "m.gguf" else folder
    tracemalloc.start()
    try:
        loaded = load_model(path)
        assert tracemalloc.get_traced_memory()[1] <= len(good) + SPARE
        loaded.weights.check(loaded.spec)
        assert all(form.stored for form in loaded.weights.forms(loaded.spec))
    except ModelError as error:
        assert str(folder) in str(error)
    finally:
        tracemalloc.stop()
    with pytest.raises(ModelError):  # there is no vocabulary
        load_text(path)
