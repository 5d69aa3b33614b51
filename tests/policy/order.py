"""Who goes before whom, as a model of its own: from who ran and who waited before a step, and who does after it, Order
says whether anyone was served out of turn. It reads states and numbers of requests, and no queue.
"""

from __future__ import annotations

from collections import Counter

from headrace.core.request import RequestState
from headrace.policy.preemption import Patience
from headrace.policy.queue import MOST_PASSED

IMMUNE = Patience().most_preemptions


class Order:
    """plenty: there are blocks for everyone, so only slots and tokens are scarce."""

    def __init__(self, engine, budget: int, plenty: bool) -> None:
        self._engine = engine
        self._budget = budget
        self._plenty = plenty
        self._passed: Counter = Counter()
        self._running: list = []
        self._tired: set[str] = set()

    def before(self) -> None:
        self._running = [one for one in self._engine._slots.sequences if one is not None]
        self._tired = {one.request_id for one in self._running if one.preemptions >= IMMUNE}

    def after(self, batch) -> tuple[list[str], str]:
        """What was seen, and what is wrong, or "". Call it once a step was begun."""
        roster = self._engine._scheduler._roster
        # Those who wait for a prefix that another computes could run, and are better off so.
        parked = {one.request_id for one in roster.parking}
        waiting = [s for s in roster._sequences.values() if s.state is not RequestState.RUNNING]
        waiting = [one for one in waiting if one.request_id not in parked]
        slots = self._engine._slots.sequences
        joined = [slots[join.slot] for join in batch.joins]
        victims = [one for one in self._running if one.state is RequestState.PREEMPTED]
        wrong = self._wrong_victim(victims, joined) or self._passed_over(joined, waiting)
        if self._plenty and batch.num_tokens < self._budget:
            wrong = wrong or self._kept_waiting(joined, waiting, slots)
        seen = []
        if victims:
            seen.append("preemption: for a better class" if joined else "preemption: for blocks")
        if any(one.preemptions for one in joined):
            seen.append("preempted one resumed")
        if any(one.priority < other.priority for one in joined for other in waiting):
            seen.append("better class joined before a waiting one")
        return seen, wrong

    def _wrong_victim(self, victims, joined) -> str:
        staying = [one for one in self._running if one.state is RequestState.RUNNING]
        for victim in victims:
            if joined:
                if min(one.priority for one in joined) >= victim.priority:
                    return f"{victim.request_id} gave way to none of a better class"
                continue
            worse = [one for one in staying if one.priority > victim.priority and one.request_id not in self._tired]
            if worse and victim.request_id not in self._tired:
                return f"{victim.request_id} gave way though {worse[0].request_id} is of a worse class"
        return ""

    def _passed_over(self, joined, waiting) -> str:
        """Of one class and tenant, so many from behind go first and no more."""
        for one in joined:
            self._passed.pop(one.request_id, None)
        for one in waiting:
            mine = (one.priority, one.tenant)
            behind = sum((j.priority, j.tenant) == mine and j.ticket > one.ticket for j in joined)
            if not behind:
                continue
            self._passed[one.request_id] += behind
            if self._passed[one.request_id] > MOST_PASSED:
                return f"{one.request_id} was passed by {self._passed[one.request_id]}"
        return ""

    def _kept_waiting(self, joined, waiting, slots) -> str:
        """With blocks and tokens for everyone, whoever waits has nobody of a worse class to take the place of, and was
        not overtaken."""
        for one in waiting:
            if one in self._running:
                continue
            if any(j.priority > one.priority for j in joined):
                return f"one of a worse class joined while {one.request_id} waits"
            yields = (r for r in slots if r is not None and r not in joined and not r.preemptions)
            if any(r.priority > one.priority for r in yields):
                return f"{one.request_id} waits though one of a worse class runs"
            if any(j.tenant == one.tenant and j.priority == one.priority and j.ticket > one.ticket for j in joined):
                return f"one from behind joined while {one.request_id} waits"
        return ""
