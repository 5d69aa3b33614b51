"""What each policy of serving brings, beside the plain one it replaces: the same load twice, through the same engine,
over a device that takes a stated time for each step. Everything is counted or predicted, nothing measured, so the
figures are the same on every machine; how far they hold on a device depends on how well TIMES describes it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.latency import percentile
from headrace.bench.timed_device import TimedDevice
from headrace.bench.timeline import Timeline
from headrace.bench.virtual import Arrival, Run, run_virtually
from headrace.core.config import Config
from headrace.core.priority import PRIORITY_NAMES
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.policy.latency import LinearPrior, StepWork

TIMES = LinearPrior(step=10e-3, token=0.12e-3, request=0.0, context=10e-9, pair=2e-9, row=0.0)
"""About a model of 8 billion parameters on one mid-sized GPU: 10 ms to read its weights, 0.12 ms for each token
computed, 10 ns for each earlier position that a decode reads, 2 ns for each that a prompt's token reads."""

BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192
VOCAB = 50_000
Report = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Setup:
    """slots: requests that run at once at most; blocks: KV blocks; budget: tokens of a step at most."""

    slots: int
    blocks: int
    budget: int = 2048
    caching: bool = True

    def build(self) -> tuple[Engine, TimedDevice]:
        has = Capacity(self.slots, BLOCK_SIZE, (self.blocks,), (None,), MAX_MODEL_LEN, VOCAB)
        device = TimedDevice(has, lambda batch: TIMES(StepWork.of(batch)))
        config = Config(
            max_num_seqs=self.slots,
            max_num_batched_tokens=self.budget,
            max_queued_requests=100_000,
            enable_prefix_caching=self.caching,
        )
        return Engine(device, config), device

    def run(self, arrivals: Sequence[Arrival]) -> Run:
        return run_virtually(*self.build(), arrivals)


def measure_policies(scale: float, progress: Callable[[int], object]) -> dict[str, Report]:
    """Every comparison, by name; each is {arm: {figure: value}}. scale: how many of the requests of each load."""
    report = {}
    for name, measure in COMPARISONS.items():
        report[name] = measure(scale)
        progress(1)
    return report


def chats(count: int, seed: int = 0) -> list[Request]:
    """Prompts of 8 to 128 tokens; outputs mostly short, some long."""
    draw = random.Random(seed)
    made = []
    for index in range(count):
        output = draw.randint(8, 48) if draw.random() < 0.8 else draw.randint(128, 256)
        made.append(_request(f"chat-{index}", _random_tokens(draw, draw.randint(8, 128)), output))
    return made


def batching(scale: float) -> Report:
    """Chats in groups that wait for their longest member, and continuously."""
    slots = 16
    requests = chats(max(2 * slots, round(512 * scale)))
    setup = Setup(slots, slots * MAX_MODEL_LEN // BLOCK_SIZE)
    engine, device = setup.build()
    steps = tokens = 0
    for first in range(0, len(requests), slots):
        part = run_virtually(engine, device, _at_once(requests[first : first + slots]))
        steps, tokens = part.stats.step, tokens + part.tokens
    arms = {"static": (device.now, steps, tokens)}
    run = setup.run(_at_once(requests))
    arms["continuous"] = (run.elapsed_s, run.stats.step, run.tokens)
    return {
        arm: {
            "tokens_per_s": round(tokens / seconds, 1),
            "slots_used": round(tokens / (steps * slots), 3),
            "elapsed_s": round(seconds, 2),
        }
        for arm, (seconds, steps, tokens) in arms.items()
    }


def memory(scale: float) -> Report:
    """Chats in the same memory: each with a place for the longest there may be, and each with the blocks it has."""
    reserved, places = 512, 16
    blocks = places * reserved // BLOCK_SIZE
    requests = chats(max(256, round(1024 * scale)))
    lengths = [len(request.prompt_ids) + request.max_tokens for request in requests]
    arms = {
        "contiguous": (Setup(places, blocks), reserved),
        "paged": (Setup(16 * places, blocks), BLOCK_SIZE),
    }
    report = {}
    for arm, (setup, unit) in arms.items():
        run = setup.run(_at_once(requests))
        held = [-(-length // unit) * unit for length in lengths]
        report[arm] = {
            "requests_at_once": round(run.mean_running, 1),
            "memory_wasted": round(1 - sum(lengths) / sum(held), 3),
            "tokens_per_s": round(run.tokens / run.elapsed_s, 1),
        }
    return report


def sharing(scale: float) -> Report:
    """Requests (1,000 at full scale) behind one system prompt of 200 tokens, 40 tokens of their own, 32 generated."""
    draw = random.Random(0)
    system = _random_tokens(draw, 200)
    requests = [_request(str(i), system + _random_tokens(draw, 40), 32) for i in range(max(64, round(1000 * scale)))]
    report = {}
    for arm, caching in (("no sharing", False), ("prefix sharing", True)):
        run = Setup(slots=256, blocks=1024, caching=caching).run(_at_once(requests))
        prompts = sum(len(request.prompt_ids) for request in requests)
        report[arm] = {
            "prompt_tokens_computed": prompts - run.stats.cached_tokens,
            "requests_at_once": round(run.mean_running, 1),
            "tokens_per_s": round(run.tokens / run.elapsed_s, 1),
            "elapsed_s": round(run.elapsed_s, 2),
        }
    return report


def priority(scale: float) -> Report:
    """Short urgent requests that arrive while long ones of a lower class hold every slot and most of the memory."""
    draw = random.Random(0)
    long = [_request(f"batch-{i}", _random_tokens(draw, 512), 256) for i in range(max(32, round(96 * scale)))]
    short = [_request(f"urgent-{i}", _random_tokens(draw, 64), 16) for i in range(max(16, round(64 * scale)))]
    report = {}
    for arm, classes in (("first come first served", ("normal", "normal")), ("priority", ("batch", "high"))):
        low, high = (PRIORITY_NAMES[name] for name in classes)
        arrivals = [Arrival(0.0, _with_priority(one, low)) for one in long]
        arrivals += [Arrival(1.0 + 0.25 * i, _with_priority(one, high)) for i, one in enumerate(short)]
        run = Setup(slots=16, blocks=16 * 768 // BLOCK_SIZE).run(arrivals)
        waits = sorted(_first_after(run.lines[one.request_id]) for one in short)
        report[arm] = {
            "urgent_ttft_p50_ms": round(1e3 * percentile(waits, 50), 1),
            "urgent_ttft_p99_ms": round(1e3 * percentile(waits, 99), 1),
            "tokens_per_s": round(run.tokens / run.elapsed_s, 1),
            "preemptions": run.stats.preemptions,
        }
    return report


def chunking(scale: float) -> Report:
    """16 streams, and prompts of 4,000 tokens that arrive among them: whole, and in chunks of 256 tokens."""
    draw = random.Random(0)
    streams = 16
    length = max(240, round(400 * scale))
    steady = [_request(f"stream-{i}", _random_tokens(draw, 32), length) for i in range(streams)]
    long = [_request(f"long-{i}", _random_tokens(draw, 4000), 8) for i in range(6)]
    report = {}
    for arm, budget in (("whole prompts", MAX_MODEL_LEN), ("chunks of 256", 256)):
        arrivals = _at_once(steady) + [Arrival(0.3 + 0.7 * i, one) for i, one in enumerate(long)]
        run = Setup(slots=32, blocks=2048, budget=budget).run(arrivals)
        gaps = sorted(gap for one in steady for gap in run.lines[one.request_id].gaps)
        waits = [_first_after(run.lines[one.request_id]) for one in long]
        report[arm] = {
            "max_stall_ms": round(1e3 * gaps[-1], 1),
            "itl_p99_ms": round(1e3 * percentile(gaps, 99), 1),
            "itl_p50_ms": round(1e3 * percentile(gaps, 50), 1),
            "long_ttft_ms": round(1e3 * sum(waits) / len(waits), 1),
        }
    return report


COMPARISONS: dict[str, Callable[[float], Report]] = {
    "batching": batching,
    "memory": memory,
    "sharing": sharing,
    "priority": priority,
    "chunking": chunking,
}


def _request(name: str, prompt: list[int], output: int) -> Request:
    params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
    return Request(name, prompt, params, max_tokens=output, seed=0)


def _with_priority(request: Request, priority: int) -> Request:
    return Request(
        request.request_id, request.prompt_ids, request.params, request.max_tokens, request.seed, priority=priority
    )


def _random_tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(100, VOCAB) for _ in range(count)]


def _at_once(requests: Sequence[Request]) -> list[Arrival]:
    return [Arrival(0.0, request) for request in requests]


def _first_after(line: Timeline) -> float:
    return line.first - line.begun


def describe_times() -> dict[str, Any]:
    """TIMES, as a report says it."""
    return {
        "step_ms": 1e3 * TIMES.step,
        "token_ms": 1e3 * TIMES.token,
        "decode_context_ns": 1e9 * TIMES.context,
        "prompt_pair_ns": 1e9 * TIMES.pair,
    }
