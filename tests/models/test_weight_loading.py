import mmap
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from headrace.models.decoder_weights import DecoderWeights, Part
from headrace.models.families.family import HUB_NAMES
from headrace.models.formats.mapped_file import map_file, release_pages
from headrace.models.weight_loading import LoadingMatrices
from headrace.ops.matrix import Matrix


@dataclass
class RecordingSource:
    """Weights whose values are their number; it records what was read and let go."""

    read: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def matrix(self, name: str) -> Matrix:
        with self.lock:
            self.read.append(name)
            self.threads.add(threading.get_ident())
        if name == "w3":
            raise ValueError("torn")
        return Matrix("f32", 1, 1, np.array([[float(name[1:])]], np.float32), stored_as="Q6_K" if name == "w1" else "")

    def release(self, name: str) -> None:
        self.released.append(name)


def loading(count: int) -> tuple[RecordingSource, LoadingMatrices]:
    source = RecordingSource()
    parts = {f"m{i}": [Part(f"w{i}", (1, 1))] for i in range(count)}
    return source, LoadingMatrices(DecoderWeights(source, HUB_NAMES), parts, quantization="auto")  # type: ignore[arg-type]


def test_matrices_are_loaded_a_few_ahead_and_let_go_when_the_next_is_taken() -> None:
    source, matrices = loading(3)
    for i, name in enumerate(list(matrices)):
        assert matrices.pop(name).data[0, 0] == i
        assert source.released == [f"w{j}" for j in range(i)]
        assert len(matrices) == 2 - i
    matrices.clear()
    assert source.released == ["w0", "w1", "w2"]
    assert sorted(source.read) == ["w0", "w1", "w2"], "each is read once"
    assert matrices.notes == ["1 matrix stored as Q6_K: computed as float32"]


@pytest.mark.parametrize("threads", [1, 2])
def test_no_more_threads_read_than_are_given(threads: int) -> None:
    source = RecordingSource()
    parts = {f"m{i}": [Part(f"w{i}", (1, 1))] for i in range(20) if i != 3}
    matrices = LoadingMatrices(DecoderWeights(source, HUB_NAMES), parts, quantization="auto", threads=threads)  # type: ignore[arg-type]
    for name in list(matrices):
        matrices.pop(name)
    assert 1 <= len(source.threads) <= threads


def test_no_more_is_loaded_than_a_few_ahead() -> None:
    source, matrices = loading(3)
    matrices.pop("m0")
    assert set(source.read) <= {"w0", "w1", "w2"}
    assert dict(matrices)["m2"].data[0, 0] == 2, "what is still here can be read again"


def test_a_failure_is_raised_where_its_matrix_is_taken() -> None:
    _, matrices = loading(5)
    for name in ("m0", "m1", "m2"):
        matrices.pop(name)
    with pytest.raises(ValueError, match="torn"):
        matrices.pop("m3")


def test_released_pages_read_the_same(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(np.arange(5 * mmap.PAGESIZE, dtype=np.uint8).tobytes())
    file = map_file(path)
    before = bytes(file)
    for begin, end in ((0, len(before)), (100, len(before) - 100), (10, 20)):
        release_pages(file, begin, end)
        assert bytes(file) == before
