"""How much of a recorded load the prefix cache serves, at several pool sizes, beside what is possible at all (a cache
without end) and beside plain LRU over hashed blocks. A trace names the content of each request's prompt by one hash
for each 512 tokens (Mooncake's format); the engine, over a device that only answers, is given tokens made of these.

Lengths may be scaled: at a scale of 32, a hash stands for 16 tokens in one block. Which prefixes are shared, and the
order in which they come, stay what they were.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.bench.timed_device import TimedDevice
from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.workload.demand import ANSWER
from headrace.workload.traces import HASHED, read_trace

_FIRST = 100
"""Token ids below are no prompt's."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of a trace, in scaled tokens. hashes: one for each block of its prompt, the last perhaps not full."""

    hashes: tuple[int, ...]
    prompt_len: int
    output_len: int

    def prompt(self, block_size: int) -> list[int]:
        """Tokens that are equal exactly where hashes are."""
        tokens = [_FIRST + h * block_size + i for h in self.hashes for i in range(block_size)]
        return tokens[: self.prompt_len]

    def hit(self, blocks: int, block_size: int) -> int:
        """Tokens that a match of so many blocks saves: the last of a prompt is computed in any case."""
        return min(blocks * block_size, self.prompt_len - 1)


@dataclass(frozen=True, slots=True)
class Trace:
    visits: list[Visit]
    block_size: int

    @property
    def prompt_tokens(self) -> int:
        return sum(visit.prompt_len for visit in self.visits)

    @property
    def different_blocks(self) -> int:
        return len({h for visit in self.visits for h in visit.hashes})

    @property
    def longest(self) -> Visit:
        return max(self.visits, key=lambda visit: visit.prompt_len + visit.output_len)


def load_trace(path: Path, scale: int, limit: int | None = None) -> Trace:
    """The first `limit` requests of a trace whose prompts are named by hashes. Raises ConfigError."""
    if scale not in (1, 2, 4, 8, 16, 32):
        raise ConfigError(f"scale must be 1, 2, 4, 8, 16 or 32, got {scale}", field="scale")
    block_size = HASHED // scale
    # Hashes are numbered as they come up, so that the largest token follows from how many there are.
    numbers: dict[int, int] = {}
    visits: list[Visit] = []
    for place, one in enumerate(read_trace(path, limit), 1):
        if one.prompt[0][0] <= ANSWER:
            raise ConfigError(f"trace: request {place} of {path} has no hash_ids", field="trace")
        hashes = tuple(numbers.setdefault(name, len(numbers)) for name, _ in one.prompt)
        prompt_len = (len(hashes) - 1) * block_size + -(-one.prompt[-1][1] // scale)
        visits.append(Visit(hashes, prompt_len, max(1, one.output_len // scale)))
    return Trace(visits, block_size)


def endless_hit_rate(trace: Trace) -> float:
    """Share of all prompt tokens that a cache without end would serve."""
    return _hit_rate(trace, trace.different_blocks + len(trace.longest.hashes))


def lru_hit_rate(trace: Trace, num_blocks: int) -> float:
    """The same for plain LRU over hashed blocks, one request after the other. Of one request's blocks the last is the
    first to go, as in engines that hash blocks."""
    return _hit_rate(trace, num_blocks)


def _hit_rate(trace: Trace, num_blocks: int) -> float:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for visit in trace.visits:
        known = next((i for i, h in enumerate(visit.hashes) if h not in cache), len(visit.hashes))
        hits += visit.hit(known, trace.block_size)
        for h in visit.hashes:
            cache.pop(h, None)
        while len(cache) + len(visit.hashes) > num_blocks:
            cache.popitem(last=False)
        cache.update(dict.fromkeys(reversed(visit.hashes)))
    return hits / trace.prompt_tokens


def replay(trace: Trace, num_blocks: int, concurrent: int, progress: Callable[[int], object]) -> dict[str, Any]:
    """Run the trace through an engine with so many blocks, up to `concurrent` requests at once, each begun as soon as
    an earlier one has ended. Alone, a request generates one token; beside others, as many as the trace says."""
    longest = trace.longest
    most = longest.prompt_len + longest.output_len
    vocab_size = _FIRST + (1 + max(max(visit.hashes) for visit in trace.visits)) * trace.block_size
    has = Capacity(concurrent, trace.block_size, (num_blocks,), (None,), most, vocab_size)
    config = Config(max_num_batched_tokens=concurrent * most, max_queued_requests=concurrent, max_num_seqs=concurrent)
    engine = Engine(TimedDevice(has), config)
    waiting, live = iter(enumerate(trace.visits)), 0
    ended = 0
    while ended < len(trace.visits):
        while live < concurrent and (following := next(waiting, None)) is not None:
            engine.add(_request(*following, trace.block_size, alone=concurrent == 1), 0.0)
            live += 1
        done = sum(delta.finish_reason is not None for delta in engine.step(lambda: 0.0))
        live, ended = live - done, ended + done
        progress(done)
    stats = engine.stats()
    return {"hit_rate": stats.cached_tokens / stats.prompt_tokens, "preemptions": stats.preemptions}


def _request(index: int, visit: Visit, block_size: int, alone: bool) -> Request:
    output = 1 if alone else visit.output_len
    params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
    return Request(str(index), visit.prompt(block_size), params, max_tokens=output, seed=0)


def measure_replay(
    trace: Trace, shares: Sequence[float], concurrent: int, progress: Callable[[int], object]
) -> dict[str, Any]:
    """One row for each pool size, a share of the blocks that would hold everything. Pools have room for the longest
    requests that run at once."""
    pools: dict[str, Any] = {}
    least = concurrent * (len(trace.longest.hashes) + -(-trace.longest.output_len // trace.block_size))
    for share in shares:
        if not 0 < share <= 1:
            raise ConfigError(f"pool must be above 0 and at most 1, got {share}", field="pool")
        num_blocks = max(least, round(share * trace.different_blocks))
        if num_blocks == least and pools:
            continue
        pools[f"{num_blocks} blocks"] = {
            "share_of_all": round(num_blocks / trace.different_blocks, 4),
            **{k: round(v, 4) for k, v in replay(trace, num_blocks, concurrent, progress).items()},
            "lru_hit_rate": round(lru_hit_rate(trace, num_blocks), 4),
        }
    return {
        "requests": len(trace.visits),
        "prompt_tokens": trace.prompt_tokens,
        "block_size": trace.block_size,
        "concurrent": concurrent,
        "endless_hit_rate": round(endless_hit_rate(trace), 4),
        "pools": pools,
    }
