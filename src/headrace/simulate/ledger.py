"""What became of each request of a simulation, and the gaps between tokens, a run of gaps that several requests share
kept once with their number.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.core.request import OutputDelta

_NOT_YET = -1.0


@dataclass(slots=True)
class Entry:
    """Seconds since the start. first, last: of its tokens. replica: who served it. refused: why it was not served.
    replays: how often its replica was lost, so that another went on with it. prefilled: the replica that computed its
    prompt for another, or -1; transfer: seconds that it then waited for keys and values to be there."""

    at: float
    input_len: int
    replica: int
    first: float = _NOT_YET
    last: float = _NOT_YET
    tokens: int = 0
    cached: int = 0
    ended: bool = False
    refused: str = ""
    replays: int = 0
    prefilled: int = -1
    transfer: float = 0.0


class Ledger:
    """entries: by the request's place in the workload."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._gaps: list[npt.NDArray[np.float64]] = []
        self._shared: list[int] = []

    def take(self, began: float, ends: npt.NDArray[np.float64], deltas: list[OutputDelta]) -> list[int]:
        """Steps that ended at `ends`, the first begun at `began`, brought these. Returns whose request ended."""
        ended: list[int] = []
        last = float(ends[-1])
        if len(ends) > 1:
            gaps = ends.copy()
            gaps[1:] -= ends[:-1]
            gaps[0] -= began
            self._note(gaps, len(deltas))
            for delta in deltas:
                index = int(delta.request_id)
                entry = self.entries[index]
                entry.tokens += len(ends)
                entry.last = last
                if delta.finish_reason is not None:
                    ended.append(self._end(index, entry, delta))
            return ended
        single: dict[float, int] = {}
        for delta in deltas:
            index = int(delta.request_id)
            entry = self.entries[index]
            if delta.token_ids:
                if entry.tokens:
                    gap = last - entry.last
                    single[gap] = single.get(gap, 0) + 1
                else:
                    entry.first = last
                entry.tokens += len(delta.token_ids)
                entry.last = last
            if delta.finish_reason is not None:
                ended.append(self._end(index, entry, delta))
        for gap, count in single.items():
            self._note(np.array([gap]), count)
        return ended

    def gaps(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """All gaps between tokens in seconds, float64 [n], and how many requests had each, int64 [n]."""
        if not self._gaps:
            return np.zeros(0), np.zeros(0, np.int64)
        return np.concatenate(self._gaps), np.repeat(self._shared, [len(gaps) for gaps in self._gaps])

    def _end(self, index: int, entry: Entry, delta: OutputDelta) -> int:
        entry.ended = True
        if entry.prefilled < 0:
            entry.cached = delta.cached_tokens or 0
        return index

    def _note(self, gaps: npt.NDArray[np.float64], requests: int) -> None:
        self._gaps.append(gaps)
        self._shared.append(requests)
