"""What a long prompt does to the streams that it arrives among: 16 requests decode, then one with a prompt of 4,000
tokens comes. It is run three times, each on an engine of its own: the prompt whole in one step, in chunks of a fixed
size, and in chunks that keep steps within a time target. Counted are the times between tokens of the 16, from the
long prompt's arrival to its first token.

    python benchmarks/chunking.py [--model MODEL] [--prompt-len 4000] [--streams 16] [--chunk 256] [--target-ms 150]
                                  [--json FILE] [--picture FILE]

The picture (matplotlib, extra `plan`) has a point for each of these times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.config import Config
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.launch import build_engine
from headrace.models.sources import locate_model

STREAM_PROMPT = 32
WARM_PROMPT = 600
WARM_TOKENS = 12


class Streams:
    """Requests that decode without end, and when each of their tokens came."""

    def __init__(self, engine: Engine, count: int, longest: int, draw: random.Random) -> None:
        self.engine = engine
        self.times: dict[str, list[float]] = {}
        self.others: dict[str, float] = {}
        self._draw = draw
        for i in range(count):
            self.ask(f"stream-{i}", STREAM_PROMPT, longest)
            self.times[f"stream-{i}"] = []

    def ask(self, name: str, prompt_len: int, tokens: int) -> None:
        prompt = [self._draw.randrange(1000, 40000) for _ in range(prompt_len)]
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        self.engine.add(Request(name, prompt, params, tokens, seed=0), time.monotonic())

    def step(self) -> None:
        deltas = self.engine.step(time.monotonic)
        now = time.monotonic()
        for delta in deltas:
            if delta.request_id in self.times:
                self.times[delta.request_id].append(now)
            elif delta.token_ids:
                self.others.setdefault(delta.request_id, now)

    def until(self, name: str) -> float:
        """Step until this request's first token has come, and say when."""
        while name not in self.others:
            self.step()
        return self.others[name]

    def end(self) -> None:
        self.engine.abort([*self.times, *self.others], time.monotonic())
        while self.engine.has_work:
            self.engine.step(time.monotonic)


def measure(model: Config, prompt_len: int, count: int, **settings: Any) -> dict[str, Any]:
    """Times between tokens in ms, and points (seconds since the arrival, gap in ms)."""
    longest = prompt_len + 64
    config = Config(
        model=model.model,
        max_model_len=longest + STREAM_PROMPT,
        max_num_seqs=count + 2,
        num_kv_blocks=(count + 2) * (longest // 16 + 4) // 2,
        enable_prefix_caching=False,
        **settings,
    ).resolve()
    engine = build_engine(config).engine
    streams = Streams(engine, count, longest - STREAM_PROMPT, random.Random(0))
    while len(streams.times["stream-0"]) < WARM_TOKENS:
        streams.step()
    # As on a server that has been up for a while, the model of latency has seen a prompt.
    streams.ask("warm", WARM_PROMPT, 1)
    streams.until("warm")
    for _ in range(WARM_TOKENS):
        streams.step()
    arrived = time.monotonic()
    streams.ask("long", prompt_len, 1)
    first = streams.until("long")
    points = []
    for times in streams.times.values():
        for before, after in itertools.pairwise(times):
            if after > arrived and before < first:
                points.append((after - arrived, 1000 * (after - before)))
    streams.end()
    gaps = np.array([gap for _, gap in points])
    return {
        "itl_ms": {
            "p50": round(float(np.percentile(gaps, 50)), 1),
            "p99": round(float(np.percentile(gaps, 99)), 1),
            "longest": round(float(gaps.max()), 1),
        },
        "ttft_ms": round(1000 * (first - arrived), 1),
        "latency_model_error": round(engine.latency.error or 0.0, 4),
        "points": [(round(at, 4), round(gap, 2)) for at, gap in sorted(points)],
    }


def draw_picture(results: dict[str, dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for marker, (name, result) in zip("sox", results.items(), strict=False):
        at, gap = np.array(result["points"]).T
        longest = result["itl_ms"]["longest"]
        axes.scatter(at, gap, s=14, marker=marker, label=f"{name}: longest {longest:,.0f} ms", linewidths=0.8)
    axes.set(yscale="log", xlabel="seconds since the long prompt came", ylabel="time between tokens, ms")
    axes.set_title("A long prompt among streams")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=Config().model)
    parser.add_argument("--prompt-len", type=int, default=4000, help="tokens of the long prompt")
    parser.add_argument("--streams", type=int, default=16, help="requests that decode")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of a fixed chunk")
    parser.add_argument("--target-ms", type=float, default=150.0, help="time between tokens to aim for")
    parser.add_argument("--json", type=Path, help="also write the report there")
    parser.add_argument("--picture", type=Path, help="draw it there (.svg, .png)")
    given = parser.parse_args()
    model = locate_model(Config(model=given.model))
    whole = given.prompt_len + given.streams + 64
    kinds: dict[str, dict[str, Any]] = {
        "whole": {"max_num_batched_tokens": whole},
        f"chunks of {given.chunk}": {"max_num_batched_tokens": given.chunk + given.streams},
        f"target {given.target_ms:g} ms": {"max_num_batched_tokens": whole, "target_itl_ms": given.target_ms},
    }
    results = {}
    for name, settings in kinds.items():
        results[name] = result = measure(model, given.prompt_len, given.streams, **settings)
        itl = result["itl_ms"]
        print(
            f"{name:>15}: between tokens p50 {itl['p50']:8.1f} ms  p99 {itl['p99']:8.1f} ms  longest "
            f"{itl['longest']:8.1f} ms; first token of the long prompt after {result['ttft_ms'] / 1000:.2f} s"
        )
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if given.picture is not None:
        draw_picture(results, given.picture)


if __name__ == "__main__":
    main()
