"""What a client remembers of its requests: whom a new engine gets, with what, and whose fault an engine's end is."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.request import FinishReason, OutputDelta, Request, SamplingParams, TokenLogprobs
from headrace.engine.replay import LiveRequests


def add(live: LiveRequests, name: str, output_ids: list[int] | None = None) -> None:
    live.add(Request(name, [1, 2, 3], SamplingParams(), 100, seed=0, output_ids=output_ids or []))


def bring(live: LiveRequests, name: str, *tokens: int, **more: object) -> None:
    known = live.get(name)
    assert known is not None
    live.take(known, OutputDelta(name, list(tokens), **more))


def due(live: LiveRequests) -> list[str]:
    return [one.request.request_id for one in live.due()]


async def test_a_replay_has_what_was_brought_and_the_reader_gets_nothing_twice() -> None:
    live = LiveRequests()
    add(live, "a", [7])
    live.due()
    scores = [TokenLogprobs(t, -1.0, 1, []) for t in (2, 3)]
    bring(live, "a", prompt_logprobs=scores[:1])
    bring(live, "a", 8, 9, cached_tokens=2)
    live.crashed()
    (again,) = live.due()
    assert again.as_replay().output_ids == [7, 8, 9]
    bring(live, "a", prompt_logprobs=list(scores))
    bring(live, "a", 10, cached_tokens=0, finish_reason=FinishReason.LENGTH)
    read = [delta async for delta in again.stream]
    assert [t for d in read for t in d.token_ids] == [8, 9, 10]
    assert [t for d in read for t in d.prompt_logprobs or []] == scores
    assert max(d.cached_tokens for d in read) == 2


class Machine:
    """An engine that ends as soon as a request of `poison` is computed, until its requests have ended."""

    def __init__(self, names: list[str], poison: set[str]) -> None:
        self.live, self.poison, self.names = LiveRequests(), poison, names
        self.blamed: list[str] = []

    def run(self) -> None:
        with_engine: list[str] = []
        for name in self.names:
            add(self.live, name)
        crashes = 0
        while len(self.live):
            with_engine += due(self.live)
            if self.poison & set(with_engine):
                crashes += 1
                assert crashes <= 2 + 4 * len(self.poison)
                culprit = self.live.crashed()
                with_engine = []
                if culprit is not None:
                    self.blamed.append(culprit.request.request_id)
                continue
            for name in with_engine:
                bring(self.live, name, 5)
            if not self.live.holding:
                for name in with_engine:
                    self.live.pop(name)
                with_engine = []


@given(st.integers(1, 8), st.sets(st.integers(0, 7), max_size=3))
def test_each_request_that_ends_the_engine_is_found_and_no_other_is_blamed(count: int, poisoned: set[int]) -> None:
    async def run() -> None:
        names = [f"r{i}" for i in range(count)]
        poison = {f"r{i}" for i in poisoned if i < count}
        machine = Machine(names, poison)
        machine.run()
        assert sorted(machine.blamed) == sorted(poison)

    asyncio.run(run())


async def test_one_end_more_while_a_suspect_is_tried_may_come_from_outside() -> None:
    live = LiveRequests()
    add(live, "a")
    for _ in range(3):
        assert due(live) == ["a"]
        assert live.crashed() is None
    assert due(live) == ["a"]
    bring(live, "a", 5)
    for _ in range(3):
        assert live.crashed() is None
        assert due(live) == ["a"]
    culprit = live.crashed()
    assert culprit is not None
    assert culprit.request.request_id == "a"
