"""Runs a workload through an engine as a service gets it: each request is handed over when its time has come, on a
real clock, and a follow-up when somebody has read the answer and thought. What came of it is comparable with what the
simulator says.
"""

import heapq
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.bench.timeline import Timeline
from headrace.core.errors import EngineError
from headrace.core.request import FinishReason, Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.workload.demand import ANSWER, Demand, Part

_FIRST_TOKEN = 1000
"""Token ids below may be special ones."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Texts:
    """Makes token ids of a demand's parts. name: texts of another name share nothing, so that an engine's cache knows
    nothing of an earlier run."""

    name: str
    vocab_size: int

    def prompt(self, parts: Sequence[Part], answers: Sequence[Sequence[int]]) -> list[int]:
        """answers: what was generated, for each ANSWER among the parts."""
        ids: list[int] = []
        given = iter(answers)
        for name, length in parts:
            ids += next(given) if name == ANSWER else self._text(name, length)
        return ids

    def _text(self, name: int, length: int) -> list[int]:
        draw = random.Random(f"{self.name} {name}")
        first = min(_FIRST_TOKEN, self.vocab_size - 1)
        return [draw.randrange(first, self.vocab_size) for _ in range(length)]


def run_in_real_time(
    engine: Engine,
    demands: Sequence[Demand],
    texts: Texts,
    *,
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
    progress: Callable[[int], object] = lambda ended: None,
) -> list[Timeline]:
    """When each request's tokens came, in seconds since the start and in the workload's order; `begun` is when a
    request was due. Answers have the asked length. Raises EngineError if one fails, RequestError if one is refused."""
    answers: list[list[int]] = [[] for _ in demands]
    # What needs no answer is made before the clock starts.
    ready = [None if _answers_in(one) else _request(p, demands, texts, answers) for p, one in enumerate(demands)]
    due = [(one.at, place) for place, one in enumerate(demands) if one.follows is None]
    heapq.heapify(due)
    followers: dict[int, list[int]] = {}
    for place, one in enumerate(demands):
        if one.follows is not None:
            followers.setdefault(one.follows, []).append(place)
    lines = [Timeline(one.input_len, one.at) for one in demands]
    start = clock()
    while due or engine.has_work:
        now = clock() - start
        if not engine.has_work and due[0][0] > now:
            sleep(due[0][0] - now)
            now = due[0][0]
        while due and due[0][0] <= now:
            at, place = heapq.heappop(due)
            lines[place].begun = at
            engine.add(ready[place] or _request(place, demands, texts, answers), clock())
        deltas = engine.step(clock)
        now = clock() - start
        for delta in deltas:
            if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                raise EngineError(f"request {delta.request_id} failed: {delta.error or delta.finish_reason}")
            place = int(delta.request_id)
            lines[place].tokens += [now] * len(delta.token_ids)
            answers[place] += delta.token_ids
            if delta.finish_reason is not None:
                progress(1)
                for follower in followers.get(place, ()):
                    heapq.heappush(due, (now + demands[follower].at, follower))
    return lines


def _answers_in(one: Demand) -> int:
    return sum(name == ANSWER for name, _ in one.prompt)


def _request(place: int, demands: Sequence[Demand], texts: Texts, answers: Sequence[Sequence[int]]) -> Request:
    one = demands[place]
    earlier: int | None = one.follows
    before: list[Sequence[int]] = []
    while len(before) < _answers_in(one) and earlier is not None:
        before.append(answers[earlier])
        earlier = demands[earlier].follows
    params = SamplingParams(max_tokens=one.output_len, temperature=0.0, ignore_eos=True)
    prompt = texts.prompt(one.prompt, before[::-1])
    return Request(
        str(place), prompt, params, max_tokens=one.output_len, seed=0, priority=one.priority, tenant=one.tenant
    )
