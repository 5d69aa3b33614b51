"""What guessing ahead brings: the same prompts with each method and with none, in turns, so that whatever else the
machine does falls on all alike. Outputs are compared token by token on the way.

A small model often ends in a loop, which flatters whoever copies: figures are also given over those answers alone whose
last tokens do not repeat. What guessing costs where nothing comes of it is measured with a drafter that is never right.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.bench.timeline import Clock
from headrace.core.batch import IntArray
from headrace.core.errors import EngineError
from headrace.core.request import Request, SamplingParams
from headrace.core.structured import StructuredOutputsParams
from headrace.engine.drive import drive
from headrace.engine.engine import Engine
from headrace.policy.speculation import Context, Drafter, Proposal

PLAIN = "none"
IN_VAIN = "in_vain"
EDITS = "edits"
"""The category of edits.py, which says nothing of other texts."""
LOOP_TOKENS = 64
_WARM_TOKENS = 4
LONGEST_PERIOD = 32
WORTH_IT = 1.05
"""Mean speedup from which a method is worth turning on."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt's tokens, and the form of the output if it must have one: then it ends where the form does."""

    ids: list[int]
    form: StructuredOutputsParams | None = None


class InVain:
    """Looks for guesses as `drafter` does, and turns them into others, or into any where there are none: it takes the
    same time, is as sure, and is wrong."""

    costly, copy = False, None

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self._drafter = drafter
        self._vocab_size = vocab_size

    def propose(self, contexts: Sequence[Context]) -> list[Proposal]:
        return [
            self._wrong(context, proposal)
            for context, proposal in zip(contexts, self._drafter.propose(contexts), strict=True)
        ]

    def remember(self, namespace: tuple[str, str], tokens: IntArray, prompt_len: int) -> None:
        self._drafter.remember(namespace, tokens, prompt_len)

    def _wrong(self, context: Context, proposal: Proposal) -> Proposal:
        if not len(proposal.tokens):
            proposal = Proposal([int(context.tokens[-1])] * context.most, [0.9 ** (n + 1) for n in range(context.most)])
        return Proposal([(token + 1) % self._vocab_size for token in proposal.tokens], proposal.odds)


@dataclass(slots=True)
class _Run:
    """What one method took for one group of prompts, and what it guessed. latency: mean seconds to a prompt's end."""

    seconds: float
    decode_seconds: float
    latency: float
    tokens: list[list[int]]
    steps: int
    drafts: int
    drafted: int
    accepted: int


@dataclass(slots=True)
class _Sum:
    """ratios: by group, for each round how much faster it was as a whole, after the first tokens, and to a prompt's end
    in the mean. loops: groups in which an answer loops. Over all: counts."""

    ratios: dict[int, list[tuple[float, float, float]]] = field(default_factory=dict)
    loops: set[int] = field(default_factory=set)
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    steps: int = 0

    def speedups(self, which: int) -> dict[int, float]:
        """By group, the median of its rounds."""
        return {group: statistics.median(one[which] for one in seen) for group, seen in self.ratios.items()}


def measure_speculation(
    engines: Mapping[str, Engine],
    prompts: Mapping[str, Sequence[Asked]],
    batches: Sequence[int],
    *,
    output_len: int,
    most: int | None = None,
    rounds: int = 1,
    eos_ids: tuple[int, ...] = (),
    clock: Clock,
    progress: Callable[[int], object] = lambda count: None,
) -> dict[str, Any]:
    """engines: by method, PLAIN among them, and perhaps IN_VAIN, which is asked for one group of each category alone
    and gives overhead. prompts: by category, of which `most` are run at each batch, or one batch if that is more; a
    category that has too few for that repeats them; all of it `rounds` times, of which a group's median counts. Greedy,
    output_len tokens each. Returns rows (method, category,
    batch, ...), what steps took by their rows, the share of answers that loop, and what to turn on. Raises EngineError
    if a method changes a token."""
    rows: list[dict[str, Any]] = []
    looping = answers = turn = 0
    for batch in batches:
        # What is touched for the first time takes long, and must not count against whoever comes first.
        for engine in engines.values():
            _run(engine, groups(next(iter(prompts.values())), batch)[0], _WARM_TOKENS, eos_ids, clock, "warm-up")
        sums = {(method, category): _Sum() for category in prompts for method in engines if method != PLAIN}
        for again in range(rounds):
            for category, number, group in _in_turn(prompts, batch, most):
                names = [method for method in engines if method != IN_VAIN or number == 0]
                # Who runs after whom must not favour anyone.
                turn += 1
                runs = {
                    method: _run(engines[method], group, output_len, eos_ids, clock, f"batch {batch}, {again}")
                    for method in names[turn % len(names) :] + names[: turn % len(names)]
                }
                plain = runs[PLAIN]
                loops = [looped(tokens) for tokens in plain.tokens]
                looping, answers = looping + sum(loops), answers + len(loops)
                for method in names:
                    if method != PLAIN:
                        _add(sums[method, category], method, number, plain, runs[method], any(loops))
                progress(1)
        rows += [_row(method, category, batch, one) for (method, category), one in sums.items()]
    kept = [row for row in rows if row["method"] != IN_VAIN]
    report: dict[str, Any] = {
        "rows": kept,
        "step_ms_by_rows": _steps(engines),
        "looping_share": looping / max(1, answers),
    }
    vain = [row for row in rows if row["method"] == IN_VAIN]
    if vain:
        report["overhead_in_vain"] = {
            str(batch): 1 / _mean([row["decode_speedup"] for row in vain if row["batch"] == batch]) - 1
            for batch in batches
        }
    return {**report, **_verdict([row for row in kept if row["category"] != EDITS] or kept)}


def _in_turn(
    prompts: Mapping[str, Sequence[Asked]], batch: int, most: int | None
) -> Iterator[tuple[str, int, list[Asked]]]:
    for category, asked in prompts.items():
        for number, group in enumerate(groups(asked, batch, most)):
            yield category, number, group


def groups(asked: Sequence[Asked], batch: int, most: int | None = None) -> list[list[Asked]]:
    """Whole batches of `most` prompts (None: of all), at least one, in which too few prompts stand again and again."""
    whole = max(1, min(len(asked), most or len(asked)) // batch)
    return [[asked[i % len(asked)] for i in range(n * batch, (n + 1) * batch)] for n in range(whole)]


def looped(tokens: Sequence[int]) -> bool:
    """Whether the last LOOP_TOKENS tokens are one period of at most LONGEST_PERIOD again and again."""
    end = list(tokens[-LOOP_TOKENS:])
    return len(end) == LOOP_TOKENS and any(end[p:] == end[:-p] for p in range(1, LONGEST_PERIOD + 1))


def count_groups(prompts: Mapping[str, Sequence[Asked]], batches: Iterable[int], most: int | None = None) -> int:
    """Groups that measure_speculation runs in a round."""
    return sum(len(groups(asked, batch, most)) for batch in batches for asked in prompts.values())


def _run(
    engine: Engine, group: Sequence[Asked], output_len: int, eos_ids: tuple[int, ...], clock: Clock, salt: str
) -> _Run:
    """salt: what was answered under another may not be looked up, as the same prompts were run then."""
    requests = [
        Request(
            f"bench-{i}",
            asked.ids,
            SamplingParams(
                temperature=0, max_tokens=output_len, ignore_eos=asked.form is None, structured_outputs=asked.form
            ),
            output_len,
            seed=0,
            eos_ids=() if asked.form is None else eos_ids,
            cache_salt=salt,
        )
        for i, asked in enumerate(group)
    ]
    before, begun = engine.stats(), clock()
    tokens: dict[str, list[int]] = {r.request_id: [] for r in requests}
    all_first = ended = begun
    took = 0.0
    for deltas in drive(engine, requests, clock):
        for delta in deltas:
            if delta.error is not None:
                raise EngineError(f"request {delta.request_id} failed: {delta.error}")
            if not tokens[delta.request_id] and delta.token_ids:
                all_first = clock()
            tokens[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                ended = clock()
                took += ended - begun
    after = engine.stats()
    return _Run(
        ended - begun,
        ended - all_first,
        took / len(group),
        list(tokens.values()),
        after.step - before.step,
        after.drafts - before.drafts,
        after.drafted_tokens - before.drafted_tokens,
        after.accepted_tokens - before.accepted_tokens,
    )


def _add(one: _Sum, method: str, group: int, plain: _Run, run: _Run, loops: bool) -> None:
    if run.tokens != plain.tokens:
        raise EngineError(f"{method} changed what was generated: this must not happen, please report it")
    decode = plain.decode_seconds / max(run.decode_seconds, 1e-9)
    one.ratios.setdefault(group, []).append((plain.seconds / run.seconds, decode, plain.latency / run.latency))
    if loops:
        one.loops.add(group)
    one.drafts += run.drafts
    one.drafted += run.drafted
    one.accepted += run.accepted
    one.tokens += sum(map(len, run.tokens))
    one.steps += run.steps


def _row(method: str, category: str, batch: int, one: _Sum) -> dict[str, Any]:
    whole, decode, latency = (one.speedups(which) for which in range(3))
    unlooped = [speedup for group, speedup in whole.items() if group not in one.loops]
    return {
        "method": method,
        "category": category,
        "batch": batch,
        "groups": len(whole),
        "acceptance_rate": one.accepted / one.drafted if one.drafted else 0.0,
        "acceptance_length": 1 + one.accepted / one.drafts if one.drafts else 1.0,
        "tokens_per_step": one.tokens / one.steps,
        "speedup": _mean(whole.values()),
        "decode_speedup": _mean(decode.values()),
        "latency_speedup": _mean(latency.values()),
        "speedup_without_loops": _mean(unlooped) if unlooped else None,
    }


def _steps(engines: Mapping[str, Engine]) -> list[dict[str, Any]]:
    """What steps took by their rows, as the control of each method has learnt it."""
    return [
        {"method": method, "rows": rows, "guesses": guesses, "ms": 1e3 * seconds, "comparisons": compared}
        for method, engine in engines.items()
        for rows, guesses, seconds, compared in engine.row_costs
        if method != IN_VAIN
    ]


def _verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    means = {
        method: _mean([row["speedup"] for row in rows if row["method"] == method])
        for method in dict.fromkeys(row["method"] for row in rows)
    }
    best = max(means, key=means.__getitem__)
    return {"mean_speedup": means, "turn_on": best if means[best] >= WORTH_IT else PLAIN}


_mean = statistics.geometric_mean
