"""What a report shows of a run beside its figures: how many requests ran and waited and how full the caches were over
time, thinned to a bounded number of points, and where each request's time went.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from headrace.engine.engine import Engine
from headrace.policy.records import PreemptionRecord
from headrace.policy.replica import Load
from headrace.simulate.ledger import Ledger

Matrix = npt.NDArray[np.float64]

PARTS = ("queue", "prefill", "transfer", "decode", "stalled")
"""queue: before it first runs; prefill: from then to the first token; transfer: from there until another pool has its
keys and values; decode: from there to the last, but for what it is stalled: time in which others had its place."""

_MOST = 4096


class Watch:
    """over_time float64 [points, 4]: seconds, running, waiting, share of KV blocks in use, of the whole fleet.
    parts float64 [requests, 5]: seconds of each of PARTS. ttft, tpot, e2e: seconds of the requests that were served
    whole, tpot of those with several tokens; gaps and counts: seconds between tokens, and how often each was."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int, int, float]] = []
        self._every = 0.0
        self._loads: dict[int, Load] = {}
        self._running = self._waiting = self._used = self._total = 0
        self.parts: Matrix = np.zeros((0, len(PARTS)))
        self.ttft: Matrix = np.zeros(0)
        self.tpot: Matrix = np.zeros(0)
        self.e2e: Matrix = np.zeros(0)
        self.gaps: Matrix = np.zeros(0)
        self.counts: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def over_time(self) -> Matrix:
        return np.array(self._points).reshape(-1, 4)

    def see(self, now: float, replica: int, load: Load) -> None:
        """A replica has this load from now on."""
        before = self._loads.get(replica, Load())
        self._loads[replica] = load
        self._running += load.running - before.running
        self._waiting += load.waiting - before.waiting
        self._used += load.blocks_used - before.blocks_used
        self._total += load.blocks_total - before.blocks_total
        if self._points and now < self._points[-1][0] + self._every:
            return
        self._points.append((now, self._running, self._waiting, self._used / max(1, self._total)))
        if len(self._points) >= _MOST:
            self._points = self._points[::2]
            self._every = 2 * max(self._every, (now - self._points[0][0]) / _MOST)

    def settle(self, ledger: Ledger, engines: Iterable[Engine]) -> None:
        """The run has ended; engines kept a record of every request."""
        served = {index: entry for index, entry in ledger.entries.items() if entry.ended}
        parts: dict[int, Matrix] = {}
        for engine in engines:
            for record in engine.journal.log.ended:
                index = int(record.request_id)
                entry = served.get(index)
                # Of one that went on elsewhere the record knows the last part alone.
                if entry is None or entry.replays or record.begun_after_s is None:
                    continue
                part = parts.setdefault(index, np.zeros(len(PARTS)))
                if record.replayed_tokens:  # its prompt was computed in another pool
                    part += (0, 0, 0, -record.waited_s, record.waited_s)
                    continue
                queue, stalled = record.begun_after_s, record.waited_s - record.begun_after_s
                first, last = entry.first - entry.at, entry.last - entry.at - entry.transfer
                # Who lost its place before its first token waited then.
                before = min(stalled, max(0.0, first - queue)) if _lost_before(record.preemptions, first) else 0.0
                part += (queue, first - queue - before, entry.transfer, last - first - (stalled - before), stalled)
        self.parts = np.maximum(np.array(list(parts.values())).reshape(-1, len(PARTS)), 0.0)
        entries = [served[index] for index in sorted(served)]
        self.ttft = np.array([entry.first - entry.at for entry in entries])
        self.e2e = np.array([entry.last - entry.at for entry in entries])
        self.tpot = np.array([(e.last - e.first) / (e.tokens - 1) for e in entries if e.tokens > 1])
        self.gaps, self.counts = ledger.gaps()


def _lost_before(preemptions: Iterable[PreemptionRecord], first: float) -> bool:
    return any(one.after_s < first for one in preemptions)
