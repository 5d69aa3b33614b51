"""How many tokens a second an engine makes when every request is there at the start."""

from dataclasses import dataclass

from headrace.bench.timeline import Clock, Drive, watch
from headrace.bench.workload import Shape, random_requests, warm_up_request


@dataclass(frozen=True, slots=True)
class Throughput:
    output_tokens_per_s: float
    total_tokens_per_s: float
    elapsed_s: float
    requests: int


def measure_throughput(drive: Drive, shape: Shape, vocab_size: int, clock: Clock) -> Throughput:
    """Run the shape once, after one warm-up that does not count. elapsed_s is the whole run, prompts and all."""
    watch(drive, warm_up_request(shape, vocab_size), clock)
    begun = clock()
    lines = watch(drive, random_requests(shape, vocab_size), clock)
    elapsed = clock() - begun
    output = sum(len(line.tokens) for line in lines)
    total = output + sum(line.prompt_tokens for line in lines)
    return Throughput(output / elapsed, total / elapsed, elapsed, len(lines))
