"""What guessing ahead brings: the same prompts with each method and with none, in turns, so that whatever else the
machine does falls on all alike. Outputs are compared token by token on the way.

A small model often ends in a loop, which flatters whoever copies: figures are also given over those answers alone whose
last tokens do not repeat.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.bench.timeline import Clock
from headrace.core.errors import EngineError
from headrace.core.request import Request, SamplingParams
from headrace.engine.drive import drive
from headrace.engine.engine import Engine

PLAIN = "none"
LOOP_TOKENS = 64
LONGEST_PERIOD = 32
WORTH_IT = 1.05
"""Mean speedup from which a method is worth turning on."""


@dataclass(slots=True)
class _Run:
    """What one method took for one group of prompts, and what it guessed."""

    seconds: float
    decode_seconds: float
    tokens: list[list[int]]
    steps: int
    drafts: int
    drafted: int
    accepted: int


@dataclass(slots=True)
class _Sum:
    """Per group: speedups; over all: counts."""

    speedups: list[float] = field(default_factory=list)
    decode_speedups: list[float] = field(default_factory=list)
    unlooped: list[float] = field(default_factory=list)
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    steps: int = 0


def measure_speculation(
    engines: Mapping[str, Engine],
    prompts: Mapping[str, Sequence[list[int]]],
    batches: Sequence[int],
    *,
    output_len: int,
    clock: Clock,
    progress: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """engines: by method, PLAIN among them. prompts: token ids by category. Greedy, output_len tokens each. Returns
    rows (method, category, batch, ...), the share of answers that loop, and what to turn on. Raises EngineError if a
    method changes a token."""
    rows: list[dict[str, Any]] = []
    looping = answers = 0
    for batch in batches:
        for category, texts in prompts.items():
            sums = {method: _Sum() for method in engines if method != PLAIN}
            for first in range(0, len(texts) - len(texts) % batch or len(texts), batch):
                group = texts[first : first + batch]
                runs = {
                    method: _run(engine, group, output_len, clock, f"batch {batch}")
                    for method, engine in engines.items()
                }
                plain = runs[PLAIN]
                loops = [looped(tokens) for tokens in plain.tokens]
                looping, answers = looping + sum(loops), answers + len(loops)
                for method, one in sums.items():
                    _add(one, method, plain, runs[method], any(loops))
                progress(1)
            rows += [_row(method, category, batch, one) for method, one in sums.items()]
    return {"rows": rows, "looping_share": looping / max(1, answers), **_verdict(rows)}


def looped(tokens: Sequence[int]) -> bool:
    """Whether the last LOOP_TOKENS tokens are one period of at most LONGEST_PERIOD again and again."""
    end = list(tokens[-LOOP_TOKENS:])
    return len(end) == LOOP_TOKENS and any(end[p:] == end[:-p] for p in range(1, LONGEST_PERIOD + 1))


def count_groups(prompts: Mapping[str, Sequence[list[int]]], batches: Iterable[int]) -> int:
    """Groups that measure_speculation runs."""
    return sum(max(1, len(texts) // batch) for batch in batches for texts in prompts.values())


def _run(engine: Engine, prompts: Sequence[list[int]], output_len: int, clock: Clock, salt: str) -> _Run:
    """salt: what was answered under another may not be looked up, as the same prompts were run then."""
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    requests = [
        Request(f"bench-{i}", ids, params, output_len, seed=0, cache_salt=salt) for i, ids in enumerate(prompts)
    ]
    before, begun = engine.stats(), clock()
    tokens: dict[str, list[int]] = {r.request_id: [] for r in requests}
    all_first = begun
    for deltas in drive(engine, requests, clock):
        for delta in deltas:
            if delta.error is not None:
                raise EngineError(f"request {delta.request_id} failed: {delta.error}")
            if not tokens[delta.request_id] and delta.token_ids:
                all_first = clock()
            tokens[delta.request_id] += delta.token_ids
    ended, after = clock(), engine.stats()
    return _Run(
        ended - begun,
        ended - all_first,
        list(tokens.values()),
        after.step - before.step,
        after.drafts - before.drafts,
        after.drafted_tokens - before.drafted_tokens,
        after.accepted_tokens - before.accepted_tokens,
    )


def _add(one: _Sum, method: str, plain: _Run, run: _Run, loops: bool) -> None:
    if run.tokens != plain.tokens:
        raise EngineError(f"{method} changed what was generated: this must not happen, please report it")
    one.speedups.append(plain.seconds / run.seconds)
    one.decode_speedups.append(plain.decode_seconds / max(run.decode_seconds, 1e-9))
    if not loops:
        one.unlooped.append(plain.seconds / run.seconds)
    one.drafts += run.drafts
    one.drafted += run.drafted
    one.accepted += run.accepted
    one.tokens += sum(map(len, run.tokens))
    one.steps += run.steps


def _row(method: str, category: str, batch: int, one: _Sum) -> dict[str, Any]:
    return {
        "method": method,
        "category": category,
        "batch": batch,
        "groups": len(one.speedups),
        "acceptance_rate": one.accepted / one.drafted if one.drafted else 0.0,
        "acceptance_length": 1 + one.accepted / one.drafts if one.drafts else 1.0,
        "tokens_per_step": one.tokens / one.steps,
        "speedup": _mean(one.speedups),
        "decode_speedup": _mean(one.decode_speedups),
        "speedup_without_loops": _mean(one.unlooped) if one.unlooped else None,
    }


def _verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    means = {
        method: _mean([row["speedup"] for row in rows if row["method"] == method])
        for method in dict.fromkeys(row["method"] for row in rows)
    }
    best = max(means, key=means.__getitem__)
    return {"mean_speedup": means, "turn_on": best if means[best] >= WORTH_IT else PLAIN}


_mean = statistics.geometric_mean
