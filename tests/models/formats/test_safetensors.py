import json
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from headrace.core.errors import ModelError
from headrace.models.formats.safetensors import SafetensorsFolder

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write_header(folder: Path, header: object, data: int = 256, *, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(raw) if length is None else length
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + raw + bytes(data))
    return folder


def tensor(shape: object = (4,), dtype: object = "F32", begin: object = 0, end: object = 16) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_what_the_safetensors_package_wrote(tmp_path: Path, dtype: str) -> None:
    torch.manual_seed(0)
    matrix, vector = torch.randn(6, 10).to(DTYPES[dtype]), torch.randn(7).to(DTYPES[dtype])
    save_file({"m": matrix, "v": vector}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    folder = SafetensorsFolder(tmp_path)
    assert sorted(folder.names()) == ["m", "v"]
    assert folder.shape("m") == (6, 10)
    assert folder.matrix("m").scheme == ("bf16" if dtype == "BF16" else "f32")
    assert torch.equal(torch.from_numpy(folder.matrix("m").dequantize().copy()), matrix.float())
    assert torch.equal(torch.from_numpy(folder.vector("v").copy()), vector.float())


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    for i in (1, 2):
        save_file({f"t{i}": torch.full((2, 2), float(i))}, tmp_path / f"model-{i}.safetensors")
    index = {"weight_map": {"t1": "model-1.safetensors", "t2": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    folder = SafetensorsFolder(tmp_path)
    assert [folder.matrix(f"t{i}").data[0, 0] for i in (1, 2)] == [1.0, 2.0]
    assert "model-2.safetensors" in folder.describe("t2")


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"t1": "../model-1.safetensors"}, "same folder"),
        ({"t1": "/etc/passwd"}, "same folder"),
        ({"t1": 3}, "same folder"),
        ({"t1": "model-1.safetensors", "t2": "model-1.safetensors"}, "'t2' is not in model-1"),
        ({"t1": "model-9.safetensors"}, "cannot be read"),
        ([], "not a valid index"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, weight_map: object, message: str) -> None:
    save_file({"t1": torch.ones(2, 2)}, tmp_path / "model-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match=message):
        SafetensorsFolder(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    for i in (1, 2):
        save_file({"t": torch.ones(2), f"u{i}": torch.ones(2)}, tmp_path / f"model-{i}.safetensors")
    index = {"weight_map": {"t": "model-1.safetensors", "u2": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="'t' is also in"):
        SafetensorsFolder(tmp_path)


HOSTILE = {
    "a header longer than the file": ({"length": 2**40, "header": {}}, "exceeds it"),
    "a header of all ones": ({"length": 2**64 - 1, "header": {}}, "exceeds it"),
    "not JSON": ({"header": b"{"}, "not JSON"),
    "JSON nested too deep": ({"header": b"[" * 100_000}, "not JSON"),
    "a list": ({"header": [1]}, "must be an object"),
    "a name twice": ({"header": b'{"a": 1, "a": 1}'}, "a name twice"),
    "a tensor that is no object": ({"header": {"a": 3}}, "must be an object"),
    "a type not supported": ({"header": {"a": tensor(dtype="F8_E5M2")}}, "'F8_E5M2'; supported are F32"),
    "a type that is no name": ({"header": {"a": tensor(dtype=[1])}}, "supported are F32"),
    "a negative dimension": ({"header": {"a": tensor(shape=[-4])}}, "expected naturals"),
    "a dimension of zero": ({"header": {"a": tensor(shape=[0], end=0)}}, "cannot lie"),
    "a boolean dimension": ({"header": {"a": tensor(shape=[True])}}, "expected naturals"),
    "dimensions whose product wraps": ({"header": {"a": tensor(shape=[2**32, 2**32])}}, "cannot lie"),
    "a shape that does not fit": ({"header": {"a": tensor(shape=[5])}}, "cannot lie"),
    "offsets out of order": ({"header": {"a": tensor(begin=16, end=0)}}, "cannot lie"),
    "offsets out of the file": ({"header": {"a": tensor(begin=4096, end=4112)}}, "exceeds the file"),
    "overlapping tensors": ({"header": {"a": tensor(), "b": tensor(begin=8, end=24)}}, "'a' and 'b' overlap"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_before_anything_is_allocated(tmp_path: Path, case: str) -> None:
    arguments, message = HOSTILE[case]
    write_header(tmp_path, **arguments)
    tracemalloc.start()
    with pytest.raises(ModelError, match=message):
        SafetensorsFolder(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 21


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    save_file({"m": torch.ones(3, 4), "v": torch.ones(5)}, tmp_path / "good")
    good = bytearray((tmp_path / "good").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(good) - 1))
        good[place] = data.draw(st.sampled_from([*b'0123456789{}[]",:-e', 0, 255]))
    cut = data.draw(st.one_of(st.just(len(good)), st.integers(0, len(good))))
    (tmp_path / "model.safetensors").write_bytes(good[:cut])
    try:
        folder = SafetensorsFolder(tmp_path)
        for name in folder.names():
            rank = len(folder.shape(name))
            if rank in (1, 2):
                size = folder.matrix(name).data.size if rank == 2 else folder.vector(name).size
                assert size * 2 <= cut
            folder.digest(name)
    except ModelError:
        return
