"""Runs requests that arrive at given times through an engine over a TimedDevice, in the device's time: nothing waits,
and the same load takes the same time on any machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.bench.timed_device import TimedDevice
from headrace.bench.timeline import Timeline
from headrace.core.errors import EngineError
from headrace.core.request import FinishReason, Request
from headrace.engine.engine import Engine
from headrace.engine.wire import Stats


@dataclass(frozen=True, slots=True)
class Arrival:
    """at: seconds after the start."""

    at: float
    request: Request


@dataclass(slots=True)
class Run:
    """What came of a load: when each request's tokens came, by request id; how long all took; the most of each gauge at
    the end of any step, and its mean over the steps in which somebody waited."""

    lines: dict[str, Timeline] = field(default_factory=dict)
    elapsed_s: float = 0.0
    most_running: int = 0
    mean_running: float = 0.0
    stats: Stats = field(default_factory=Stats)

    @property
    def tokens(self) -> int:
        return sum(len(line.tokens) for line in self.lines.values())


def run_virtually(engine: Engine, device: TimedDevice, arrivals: Sequence[Arrival]) -> Run:
    """Run all to their end. arrivals are in order of time. Raises EngineError if a request fails."""
    run, begun = Run(), device.now
    waiting = list(reversed(arrivals))
    crowded = running = 0
    while waiting or engine.has_work:
        if not engine.has_work:
            device.now = max(device.now, begun + waiting[-1].at)
        while waiting and begun + waiting[-1].at <= device.now:
            arrival = waiting.pop()
            request = arrival.request
            run.lines[request.request_id] = Timeline(len(request.prompt_ids), begun + arrival.at)
            engine.add(request, device.now)
        while engine.begin_step(device.now):
            pass
        stats = engine.stats()
        run.most_running = max(run.most_running, stats.running)
        if stats.waiting:
            crowded, running = crowded + 1, running + stats.running
        for delta in engine.finish_step(lambda: device.now):
            if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                raise EngineError(f"request {delta.request_id} failed: {delta.error or delta.finish_reason}")
            run.lines[delta.request_id].tokens += [device.now] * len(delta.token_ids)
    run.elapsed_s = device.now - begun
    run.stats = engine.stats()
    run.mean_running = running / crowded if crowded else run.most_running
    return run
