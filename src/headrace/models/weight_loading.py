"""Weights of a program, loaded when they are taken: a few ahead, on threads, so that reading and converting go on
while what was taken is packed, and each is let go again. A model is so never in memory twice.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.models.decoder_weights import DecoderWeights, Part
from headrace.ops.matrix import SCHEME_NAMES, Matrix

CONVERSION = 1
"""Goes up whenever a stored type becomes another Matrix than before: packed copies of it are then no longer taken."""

_THREADS = min(4, os.cpu_count() or 1)
_AHEAD = 2


class LoadingMatrices(Mapping[str, Matrix]):
    """Matrices by name. Reading one loads it; pop() also forgets it and begins loading those that follow. `notes`
    says what is not computed as it is stored, of all that were loaded."""

    def __init__(self, weights: DecoderWeights, parts: dict[str, list[Part]], *, exact: bool) -> None:
        self.notes: list[str] = []
        self._weights, self._parts, self._exact = weights, dict(parts), exact
        self._repacked: dict[str, tuple[str, str]] = {}
        self._ahead: dict[str, Future[Matrix]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._taken: list[Part] = []

    def __getitem__(self, name: str) -> Matrix:
        return self._noted(name, self._load(self._parts[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def pop(self, name: str) -> Matrix:
        """The matrix, which is then no longer here. The one taken before should be done with: its pages of the file
        are let go."""
        self._release()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS)
        for following in [name, *(n for n in list(self._parts)[: _AHEAD + 1] if n != name)]:
            if following not in self._ahead:
                self._ahead[following] = self._pool.submit(self._load, self._parts[following])
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

    def _load(self, parts: list[Part]) -> Matrix:
        return self._weights.load_matrix(parts, exact=self._exact)

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


def load_digests(weights: DecoderWeights, parts: Iterator[Part]) -> dict[str, bytes]:
    """Digest of every tensor by its name. This reads the whole model once, and keeps nothing of it in memory."""
    names = list(dict.fromkeys(part.name for part in parts))

    def digest(name: str) -> bytes:
        found = weights.source.digest(name)
        weights.source.release(name)
        return found

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(names, pool.map(digest, names), strict=True))
