"""Weights of a program, loaded when they are taken: a few ahead, on threads, so that reading and converting go on
while what was taken is packed, and each is let go again. A model is so never in memory twice.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelError
from headrace.models.decoder_weights import DecoderWeights, Part
from headrace.models.formats.join import rows_of
from headrace.models.formats.quantize import GROUP, to_q4, to_q8
from headrace.ops.matrix import SCHEME_NAMES, Matrix

FloatMatrix = npt.NDArray[np.float32]

CONVERSION = 2
"""Goes up whenever a stored type becomes another Matrix than before: packed copies of it are then no longer taken."""

_EIGHT_BITS = ("embedding", "head")
"""What chooses tokens is more sensitive than layers, and read once a step."""
_FLOATS = (".router",)
"""Which experts are taken hangs on small differences, and their matrix is small."""
_MOST_THREADS = 4
_AHEAD = 2


class LoadingMatrices(Mapping[str, Matrix]):
    """Matrices by name, quantized as Config.quantization asks. Reading one loads it; pop() also forgets it and begins
    loading those that follow, on a few of so many threads. `notes` says what is not computed as it is stored, of all
    that were loaded.
    """

    def __init__(
        self, weights: DecoderWeights, parts: dict[str, list[Part]], *, quantization: str, threads: int = 1
    ) -> None:
        self.notes: list[str] = []
        self._threads = min(_MOST_THREADS, threads)
        self._weights, self._parts, self._quantization = weights, dict(parts), quantization
        self._repacked: dict[str, tuple[str, str]] = {}
        self._ahead: dict[str, Future[Matrix]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._taken: list[Part] = []

    def __getitem__(self, name: str) -> Matrix:
        return self._noted(name, self._load(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def pop(self, name: str) -> Matrix:
        """The matrix, which is then no longer here. The one taken before should be done with: its pages of the file
        are let go."""
        self._release()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads)
        for following in [name, *(n for n in list(self._parts)[: _AHEAD + 1] if n != name)]:
            if following not in self._ahead:
                self._ahead[following] = self._pool.submit(self._load, following)
        matrix = self._ahead.pop(name).result()
        self._taken = self._parts.pop(name)
        if not self._parts:
            self._pool.shutdown()
            self._pool = None
        return self._noted(name, matrix)

    def clear(self) -> None:
        """Nothing more will be taken."""
        self._release()
        self._parts.clear()

    def _load(self, name: str) -> Matrix:
        matrix = self._weights.load_matrix(self._parts[name], exact=self._quantization == "none")
        if self._quantization in ("int8", "int4") and not matrix.quantized and not name.endswith(_FLOATS):
            return _quantized(name, matrix, 8 if name in _EIGHT_BITS else int(self._quantization[3:]))
        return matrix

    def _release(self) -> None:
        for part in self._taken:
            self._weights.source.release(part.name)
        self._taken = []

    def _noted(self, name: str, matrix: Matrix) -> Matrix:
        if matrix.stored_as:
            self._repacked[name] = matrix.stored_as, SCHEME_NAMES[matrix.scheme]
            counts = sorted(Counter(self._repacked.values()).items())
            self.notes[:] = [
                f"{count} {'matrix' if count == 1 else 'matrices'} stored as {stored}: computed as {scheme}"
                for (stored, scheme), count in counts
            ]
        return matrix


def _quantized(name: str, matrix: Matrix, bits: int) -> Matrix:
    """A float matrix in integers of so many bits. Raises ModelError where its columns do not fall into groups."""
    n, k = matrix.n, matrix.k
    if k % GROUP:
        raise ModelError(f"{name} has {k} columns; quantization int8 and int4 need a multiple of {GROUP}: use auto")

    def floats(rows: slice) -> FloatMatrix:
        return rows_of(matrix, rows).dequantize()

    return to_q8(n, k, floats, "") if bits == 8 else to_q4(n, k, floats)


def load_digests(weights: DecoderWeights, parts: Iterator[Part], *, threads: int = 1) -> dict[str, bytes]:
    """Digest of every tensor by its name. This reads the whole model once, and keeps nothing of it in memory."""
    names = list(dict.fromkeys(part.name for part in parts))

    def digest(name: str) -> bytes:
        found = weights.source.digest(name)
        weights.source.release(name)
        return found

    with ThreadPoolExecutor(min(_MOST_THREADS, threads)) as pool:
        return dict(zip(names, pool.map(digest, names), strict=True))
