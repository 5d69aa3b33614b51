"""What a step costs in policy: beginning it, which ends with the Batch that a device runs, and finishing it, from
the tokens that came to the messages for clients. Nothing is computed, and what the stand-in device takes is
subtracted. Lengths are staggered, so that some requests cross a block's edge in every step.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bench.timed_device import TOKEN, TimedDevice
from headrace.core.batch import Batch, BatchOutput
from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.core.request import OutputDelta, Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.engine.wire import Outputs, encode

_WARM_UP = 20
_VOCAB = 50_000
_EOS = TOKEN + 1


@dataclass(frozen=True, slots=True)
class Load:
    """running requests in decode while `queued` more wait. hit_rate: share of each prompt that is cached already.
    batch_changes: how many requests end in each step, with as many taking their place from the queue. depth: steps
    that may be under way."""

    running: int
    queued: int = 0
    hit_rate: float = 0.0
    batch_changes: int = 0
    prompt_len: int = 256
    steps: int = 400
    depth: int = 1
    block_size: int = 16

    def __post_init__(self) -> None:
        for name, low in (("running", 1), ("queued", 0), ("batch_changes", 0), ("prompt_len", 1), ("steps", 1)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, got {getattr(self, name)}", field=name)
        if not 0 <= self.hit_rate <= 1:
            raise ConfigError(f"hit_rate must be from 0 to 1, got {self.hit_rate}", field="hit_rate")
        if self.batch_changes > self.running:
            raise ConfigError(
                f"batch_changes must be at most running ({self.running}), got {self.batch_changes}",
                field="batch_changes",
            )


class _Stopwatch(TimedDevice):
    """Counts the nanoseconds that the device itself takes. entries: requests in the step submitted last."""

    def __init__(self, capacity: Capacity) -> None:
        super().__init__(capacity)
        self.own_ns = 0
        self.entries = 0

    def submit(self, batch: Batch) -> None:
        began = time.perf_counter_ns()
        self.entries = len(batch.slots)
        super().submit(batch)
        self.own_ns += time.perf_counter_ns() - began

    def collect(self) -> BatchOutput:
        began = time.perf_counter_ns()
        output = super().collect()
        self.own_ns += time.perf_counter_ns() - began
        return output


def measure_scheduler(load: Load, progress: Callable[[int], object]) -> dict[str, Any]:
    """Costs in microseconds, each as {mean, p50, p99}: schedule_us, update_us, step_us (their sum), and encode_us,
    which is what turning a step's messages into bytes takes after it. cached_share, ended, mean_running and
    mean_queued tell what ran. progress is told of each step."""
    device = _Stopwatch(_capacity(load))
    config = Config(
        max_num_batched_tokens=load.running * (load.prompt_len + load.block_size),
        max_queued_requests=2 * (load.running + load.queued) + 16,
        pipeline_depth=load.depth,
    )
    engine = Engine(device, config)
    requests = _requests(load)
    _run_alone(engine, next(requests))
    for _ in range(load.running + load.queued):
        engine.add(next(requests), 0.0)
    spent: dict[str, list[int]] = {"schedule_us": [], "update_us": [], "encode_us": []}
    before = engine.stats()
    under_way = ended = running = queued = 0
    present = load.running + load.queued
    for step in range(load.steps + _WARM_UP):
        counts = step >= _WARM_UP
        while under_way < load.depth:
            took, began = _timed(device, lambda: engine.begin_step(0.0))
            if not began:
                break
            under_way += 1
            if counts:
                spent["schedule_us"].append(took)
        running, queued = running + device.entries, queued + present - device.entries
        took, sent = _timed(device, lambda: engine.finish_step(lambda: 0.0))
        under_way -= 1
        if counts:
            spent["update_us"].append(took)
            spent["encode_us"].append(_timed(device, lambda: encode(Outputs(sent)))[0])  # noqa: B023
        for _ in range(_ended(sent)):
            engine.add(next(requests), 0.0)
            ended += 1
        progress(1)
    after = engine.stats()
    schedule, update, encoding = (np.array(values, np.float64) / 1000 for values in spent.values())
    both = min(len(schedule), len(update))
    prompts = after.prompt_tokens - before.prompt_tokens
    steps = load.steps + _WARM_UP
    return {
        **asdict(load),
        "cached_share": round((after.cached_tokens - before.cached_tokens) / prompts, 4),
        "ended": ended,
        "mean_running": round(running / steps, 2),
        "mean_queued": round(queued / steps, 2),
        "schedule_us": _summary(schedule),
        "update_us": _summary(update),
        "step_us": _summary(schedule[:both] + update[:both]),
        "encode_us": _summary(encoding),
    }


def _capacity(load: Load) -> Capacity:
    max_model_len = load.prompt_len + 2 * load.block_size + load.steps + load.running + _WARM_UP + 64
    # Everyone fits whatever they grow to, and half as much again is left to what is cached.
    blocks = load.running * (_longest(load) // load.block_size + 3) * 3 // 2
    return Capacity(load.running, load.block_size, (blocks,), (None,), max_model_len, _VOCAB)


def _longest(load: Load) -> int:
    """Most tokens that a request reaches."""
    life = load.running // load.batch_changes if load.batch_changes else load.steps + _WARM_UP + load.depth
    return load.prompt_len + load.block_size + max(life, 1) + _WARM_UP


def _requests(load: Load) -> Iterator[Request]:
    """The first holds what others find cached. Then `running` that end one after the other, batch_changes in each
    step, then any number that live as long as it takes until all others have ended."""
    draw = np.random.default_rng(0)
    params = SamplingParams(max_tokens=None, temperature=0.0)
    most = load.prompt_len + load.block_size
    common = draw.integers(100, _VOCAB, most).tolist()
    yield Request("first", common, params, max_tokens=1, seed=0)
    index = 0
    while True:
        length = load.prompt_len + index % load.block_size
        shared = min(round(load.hit_rate * length), length - 1)
        prompt = common[:shared] + draw.integers(100, _VOCAB, length - shared).tolist()
        if not load.batch_changes:
            output = _longest(load) - load.prompt_len
        elif index < load.running:
            output = 1 + index // load.batch_changes
        else:
            output = max(1, load.running // load.batch_changes)
        yield Request(str(index), prompt, params, max_tokens=output, seed=0, eos_ids=(_EOS,))
        index += 1


def _run_alone(engine: Engine, request: Request) -> None:
    engine.add(request, 0.0)
    while engine.has_work:
        engine.step(lambda: 0.0)


def _timed(device: _Stopwatch, act: Callable[[], Any]) -> tuple[int, Any]:
    """Nanoseconds that act() takes besides the device's own, and its result."""
    own, began = device.own_ns, time.perf_counter_ns()
    result = act()
    took = time.perf_counter_ns() - began
    return took - (device.own_ns - own), result


def _ended(deltas: list[OutputDelta]) -> int:
    return sum(delta.finish_reason is not None for delta in deltas)


def _summary(values: npt.NDArray[np.float64]) -> dict[str, float]:
    return {
        "mean": round(float(values.mean()), 2),
        "p50": round(float(np.percentile(values, 50)), 2),
        "p99": round(float(np.percentile(values, 99)), 2),
    }
