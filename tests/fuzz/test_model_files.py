"""Model files that are nearly right: a reader opens them or says what is wrong, and allocates no more than they are
long.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.inputs import nearly

from headrace.core.errors import ModelError
from headrace.models.formats.gguf import GGUFFile
from headrace.models.formats.safetensors import SafetensorsFile
from headrace.models.gguf_tokenizer import build
from headrace.models.sentencepiece_model import read_sentencepiece

MOST_BYTES = 8 * 2**20
"""Ten times what opening the untouched files takes, rounded up."""


def open_gguf(path: Path) -> None:
    file = GGUFFile(path)
    for name in file.names():
        file.floats(name)


def open_gguf_vocabulary(path: Path) -> None:
    build(GGUFFile(path))


def open_safetensors(path: Path) -> None:
    SafetensorsFile(path)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[Callable[[Path], Any], bytes]:
    folder = tmp_path_factory.mktemp("good")
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(folder / "a.gguf", "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_string("general.name", "a name")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([b"a", b"b", b"ab", b"<s>"])
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    for kind in ("F32", "Q8_0", "Q4_K"):
        values = np.arange(512, dtype=np.float32).reshape(2, 256)
        stored = gguf.GGMLQuantizationType[kind]
        data = gguf.quantize(values, stored) if kind != "Q4_K" else np.zeros((2, 144), np.uint8)
        writer.add_tensor(f"tensor.{kind}", data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"a": np.zeros((4, 8), np.float32), "b": np.zeros(3, np.float16)}, folder / "a.safetensors")
    pieces = b"".join(
        b"\x0a" + bytes([len(p) + 7]) + b"\x0a" + bytes([len(p)]) + p + b"\x15\x00\x00\x80\xbf"
        for p in (b"<unk>", b"a", b"b", b"ab")
    )
    gguf_bytes = (folder / "a.gguf").read_bytes()
    return {
        open_gguf: gguf_bytes,
        open_gguf_vocabulary: gguf_bytes,
        open_safetensors: (folder / "a.safetensors").read_bytes(),
        read_sentencepiece: pieces,
    }


@pytest.mark.parametrize(
    ("reader", "name", "within"),
    [
        (open_gguf, "x.gguf", 700),
        (open_gguf_vocabulary, "x.gguf", 500),
        (open_safetensors, "x.safetensors", 200),
        (read_sentencepiece, "tokenizer.model", None),
    ],
)
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_reader_opens_it_or_says_what_is_wrong(
    good: dict[Callable[[Path], Any], bytes],
    tmp_path_factory: pytest.TempPathFactory,
    reader: Callable[[Path], Any],
    name: str,
    within: int | None,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data.draw(nearly(good[reader], within=within)))
    tracemalloc.start()
    try:
        reader(path)
    except ModelError as error:
        assert name in str(error)
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < MOST_BYTES
