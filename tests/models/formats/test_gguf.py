import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import ModelError
from headrace.models.formats.gguf import GGUFFile
from headrace.ops.matrix import Matrix

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
SCHEMES = {
    "Q8_0": "q8",
    "Q4_0": "q4",
    "Q4_1": "q4",
    "Q5_0": "q8",
    "Q5_1": "re-packed",
    "Q2_K": "re-packed",
    "Q3_K": "q8",
    "Q4_K": "q4",
    "Q5_K": "re-packed",
    "Q6_K": "re-packed",
    "IQ4_NL": "q8",
    "IQ4_XS": "q8",
}


def write(path: Path, tensors: dict[str, tuple[np.ndarray, str]], **metadata: object) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)
    for name, (values, kind) in tensors.items():
        stored = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def header(
    *,
    version: int = 3,
    tensors: int = 0,
    entries: int = 0,
    rest: bytes = b"",
    padding: int = 4096,
    magic: bytes = b"GGUF",
) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, entries) + rest + bytes(padding)


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def info(name: bytes, dims: list[int], kind: int = 0, offset: int = 0, rank: int | None = None) -> bytes:
    rank = len(dims) if rank is None else rank
    return struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dims)}QIQ", rank, *dims, kind, offset)


def open_bytes(folder: Path, data: bytes) -> GGUFFile:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return GGUFFile(path)


@pytest.mark.parametrize(("kind", "scheme"), [("F32", "f32"), ("F16", "f32"), ("BF16", "bf16")])
def test_floats_are_exactly_what_the_gguf_package_gives(tmp_path: Path, kind: str, scheme: str) -> None:
    values = np.random.default_rng(1).normal(size=(24, 96)).astype(np.float32)
    file = GGUFFile(write(tmp_path / "a.gguf", {"w": (values, kind)}))
    stored = gguf.GGMLQuantizationType[kind]
    expected = gguf.dequantize(gguf.quantize(values, stored), stored).reshape(values.shape)
    assert file.matrix("w").scheme == scheme
    np.testing.assert_array_equal(file.matrix("w").dequantize(), expected)
    np.testing.assert_array_equal(file.floats("w").data, expected)


def write_random_blocks(path: Path, kind: str, rows: int, columns: int, *, seed: int = 0) -> np.ndarray:
    """A file whose tensor w holds random bytes; returns what they stand for, by the gguf package."""
    stored = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[stored]
    raw = np.random.default_rng(seed).integers(0, 256, (rows, columns // values * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", raw, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with np.errstate(all="ignore"):
        return gguf.dequantize(raw, stored)


@pytest.mark.parametrize("kind", SCHEMES)
def test_any_bytes_are_exactly_what_the_gguf_package_gives(tmp_path: Path, kind: str) -> None:
    expected = write_random_blocks(tmp_path / "a.gguf", kind, 24, 768)
    floats = GGUFFile(tmp_path / "a.gguf").floats("w").data
    np.testing.assert_array_equal(floats, expected)
    known = np.isfinite(expected) & (expected != 0)  # zeros may differ in sign, not-a-numbers in payload
    assert known.mean() > 0.8
    np.testing.assert_array_equal(floats.view(np.uint32)[known], expected.view(np.uint32)[known])


@pytest.mark.parametrize("kind", SCHEMES)
def test_a_type_is_kept_as_stored_or_repacked_to_its_nearest(tmp_path: Path, kind: str) -> None:
    expected = write_random_blocks(tmp_path / "a.gguf", kind, 24, 768)
    matrix = GGUFFile(tmp_path / "a.gguf").matrix("w")
    known = np.isfinite(expected.reshape(24, -1, 32)).all(axis=2, keepdims=True)
    with np.errstate(all="ignore"):
        runs, ours = (np.where(known, w.reshape(24, -1, 32), 0) for w in (expected, matrix.dequantize()))
    if SCHEMES[kind] == "re-packed":
        assert (matrix.scheme, matrix.group, matrix.stored_as) == ("q8", 32, kind)
        step = np.abs(runs).max(axis=2, keepdims=True) / 127
        assert np.all(np.abs(ours - runs) <= 0.57 * step + 1e-7)
    else:
        assert (matrix.scheme, matrix.stored_as) == (SCHEMES[kind], "")
        np.testing.assert_array_equal(ours, runs)


def test_matrices_of_one_tensor_follow_one_another(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(3, 4, 32)).astype(np.float32)
    file = GGUFFile(write(tmp_path / "a.gguf", {"w": (values, "F32")}))
    np.testing.assert_array_equal(file.matrix("w").data, values.reshape(12, 32))


@pytest.mark.parametrize("kind", TYPES)
def test_a_vector_is_float32(tmp_path: Path, kind: str) -> None:
    values = np.linspace(-1, 1, 32, dtype=np.float32)
    stored = gguf.GGMLQuantizationType[kind]
    file = GGUFFile(write(tmp_path / "a.gguf", {"v": (values, kind)}))
    expected = gguf.dequantize(gguf.quantize(values, stored), stored).reshape(-1)
    np.testing.assert_array_equal(file.vector("v"), expected)


def test_metadata_is_read_by_key(tmp_path: Path) -> None:
    words = ["", "a", "ü", "한국어", "x" * 1000]
    path = write(tmp_path / "a.gguf", {}, words=words, numbers=[3, -4], name="n", count=7)
    file = GGUFFile(path)
    assert file.strings("words") == words
    assert file.numbers("numbers") == [3, -4]
    assert (file.get("name"), file.get("count"), file.get("absent")) == ("n", 7, None)
    assert file.length("words") == len(words)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda f: f.strings("count"), "not an array"),
        (lambda f: f.strings("absent"), "missing"),
        (lambda f: f.strings("numbers"), "expected strings"),
        (lambda f: f.numbers("words"), "expected numbers"),
        (lambda f: f.get("words"), "expected a single value"),
        (lambda f: f.matrix("absent"), "absent is missing"),
        (lambda f: f.matrix("v"), "expected a matrix"),
        (lambda f: f.vector("w"), "expected a vector"),
    ],
)
def test_what_is_not_there_or_of_another_kind_is_refused_by_name(tmp_path: Path, read, message: str) -> None:
    tensors = {"v": (np.zeros(4, np.float32), "F32"), "w": (np.zeros((2, 4), np.float32), "F32")}
    file = GGUFFile(write(tmp_path / "a.gguf", tensors, words=["a"], numbers=[1], count=1))
    with pytest.raises(ModelError, match=message):
        read(file)


def test_the_digest_sees_every_stored_value(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    path = write(tmp_path / "a.gguf", {"w": (values, "F32"), "u": (values, "F32")})
    file = GGUFFile(path)
    assert file.digest("w") == file.digest("u")
    for row, column in ((0, 0), (31, 5), (63, 63)):
        changed = values.copy()
        changed[row, column] = np.nextafter(changed[row, column], np.float32(9))
        other = GGUFFile(write(tmp_path / "b.gguf", {"w": (changed, "F32")}))
        assert other.digest("w") != file.digest("w")
    swapped = np.concatenate([values[32:], values[:32]])
    assert GGUFFile(write(tmp_path / "c.gguf", {"w": (swapped, "F32")})).digest("w") != file.digest("w")


def write_split(folder: Path, *, count: int = 3, **changes: object) -> Path:
    """Parts that each hold tensors of their own; the first has the metadata. Returns the first."""
    for i in range(count):
        path = folder / f"m-{i + 1:05}-of-{count:05}.gguf"
        split = {"split.no": i, "split.count": count, **(changes if i == 1 else {})}
        write(path, {f"t{i}": (np.full((2, 4), i, np.float32), "F32")}, **split, **({"name": "m"} if i == 0 else {}))
    return folder / f"m-00001-of-{count:05}.gguf"


def test_a_split_model_is_read_from_all_its_parts(tmp_path: Path) -> None:
    file = GGUFFile(write_split(tmp_path))
    assert file.get("name") == "m" and file.names() == ["t0", "t1", "t2"]
    assert [file.matrix(name).data[0, 0] for name in file.names()] == [0, 1, 2]
    assert "m-00002-of-00003.gguf" in file.describe("t1")
    assert len({file.digest(name) for name in file.names()}) == 3


def test_a_split_model_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    first = write_split(tmp_path)
    second = first.with_name("m-00002-of-00003.gguf")
    with pytest.raises(ModelError, match=r"give its first, m-00001-of-00003\.gguf"):
        GGUFFile(second)
    with pytest.raises(ModelError, match=r"must be named NAME-00001-of-00003\.gguf"):
        GGUFFile(first.rename(tmp_path / "m.gguf"))
    for changes, message in (
        ({"split.no": 2}, "not part 2 of the 3"),
        ({"split.count": 4}, "not part 2 of the 3"),
        ({"split.count": 2**31}, "split.count must be from 0 to 1024"),
    ):
        with pytest.raises(ModelError, match=message):
            GGUFFile(write_split(tmp_path, **changes))
    write(second, {"t0": (np.zeros(4, np.float32), "F32")}, **{"split.no": 1, "split.count": 3})
    with pytest.raises(ModelError, match=r"'t0' is also in .*m-00001-of-00003"):
        GGUFFile(first)
    second.unlink()
    with pytest.raises(ModelError, match=r"m-00002-of-00003\.gguf: cannot be read"):
        GGUFFile(first)


HUGE = 2**63
U32 = lambda value: struct.pack("<I", value)  # noqa: E731
ARRAY = lambda kind, count: struct.pack("<IQ", kind, count)  # noqa: E731
HOSTILE = {
    "empty": (b"", "cannot be read"),
    "short": (b"GGUF", "ends inside its header"),
    "another format": (header(magic=b"GGML"), "does not start with GGUF"),
    "version 1": (header(version=1), "version 1"),
    "big-endian": (header(version=0x03000000), "version 50331648"),
    "tensors beyond the file": (header(tensors=HUGE), "exceed the file"),
    "entries beyond the file": (header(entries=2**40), "exceed the file"),
    "key beyond the file": (header(entries=1, rest=struct.pack("<Q", HUGE)), "exceeds the file"),
    "string beyond the file": (header(entries=1, rest=entry(b"k", 8, struct.pack("<Q", HUGE))), "exceeds the file"),
    "key not UTF-8": (header(entries=1, rest=entry(b"\xff", 4, U32(1))), "not UTF-8"),
    "key twice": (header(entries=2, rest=entry(b"k", 4, U32(1)) * 2), "twice"),
    "unknown type": (header(entries=1, rest=entry(b"k", 99, U32(1))), "unknown type 99"),
    "array of unknown type": (header(entries=1, rest=entry(b"k", 9, ARRAY(77, 1))), "array of type 77"),
    "array of arrays": (header(entries=1, rest=entry(b"k", 9, ARRAY(9, 1))), "array of type 9"),
    "numbers beyond the file": (header(entries=1, rest=entry(b"k", 9, ARRAY(4, 2**61))), "exceeds the file"),
    "strings beyond the file": (header(entries=1, rest=entry(b"k", 9, ARRAY(8, 2**61))), "exceeds the file"),
    "one string too long": (
        header(entries=1, rest=entry(b"k", 9, ARRAY(8, 2) + struct.pack("<Q", HUGE))),
        "exceeds the file",
    ),
    "alignment 2**31": (header(entries=1, rest=entry(b"general.alignment", 4, U32(2**31))), "power of two"),
    "alignment 0": (header(entries=1, rest=entry(b"general.alignment", 4, U32(0))), "power of two"),
    "alignment 48": (header(entries=1, rest=entry(b"general.alignment", 4, U32(48))), "power of two"),
    "alignment a float": (
        header(entries=1, rest=entry(b"general.alignment", 6, struct.pack("<f", 32))),
        "power of two",
    ),
    "no dimensions": (header(tensors=1, rest=info(b"w", [])), "0 dimensions"),
    "2**32-1 dimensions": (header(tensors=1, rest=info(b"w", [], rank=2**32 - 1)), "4294967295 dimensions"),
    "a dimension of zero": (header(tensors=1, rest=info(b"w", [4, 0])), "impossible shape"),
    "dimensions whose product wraps": (header(tensors=1, rest=info(b"w", [2**32, 2**32])), "exceeds the file"),
    "a torn block": (header(tensors=1, rest=info(b"w", [33], kind=8)), "impossible shape"),
    "offset out of the file": (header(tensors=1, rest=info(b"w", [8], offset=2**40)), "exceeds the file"),
    "offset not aligned": (header(tensors=1, rest=info(b"w", [8], offset=8)), "not a multiple of 32"),
    "tensor twice": (header(tensors=2, rest=info(b"w", [8]) * 2), "appears twice"),
    "overlapping tensors": (
        header(tensors=2, rest=info(b"w", [64]) + info(b"v", [64], offset=32)),
        "'w' and 'v' overlap",
    ),
    "a type not supported": (header(tensors=1, rest=info(b"w", [256], kind=16)), "IQ2_XXS; supported are F32"),
    "a type not known": (header(tensors=1, rest=info(b"w", [256], kind=4000)), "type 4000"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_before_anything_is_allocated(tmp_path: Path, case: str) -> None:
    data, message = HOSTILE[case]
    tracemalloc.start()
    with pytest.raises(ModelError, match=message):
        open_bytes(tmp_path, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def read_all(file: GGUFFile) -> None:
    for key in file.keys(""):
        if key not in file.scalars():
            for read in (file.strings, file.numbers):
                try:
                    read(key)
                except ModelError:
                    continue
    for name in file.names():
        weight = file.vector(name) if len(file.shape(name)) == 1 else file.matrix(name)
        assert weight.n * weight.k < 1 << 20 if isinstance(weight, Matrix) else len(weight) < 1 << 20
        file.digest(name)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "good.gguf"
    if not path.exists():
        values = np.ones((2, 32), np.float32)
        write(path, {"w": (values, "Q4_0"), "v": (values[0], "F32")}, words=["a", "b"], numbers=[1], count=1)
    good = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(good) - 1))
        patch = data.draw(st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\x7f", b"\x01", b"\x09", struct.pack("<Q", HUGE)]))
        good[place : place + len(patch)] = patch
    cut = data.draw(st.one_of(st.just(len(good)), st.integers(0, len(good))))
    try:
        file = open_bytes(tmp_path, bytes(good[:cut]))
    except ModelError:
        return
    try:
        read_all(file)
    except ModelError:
        return
