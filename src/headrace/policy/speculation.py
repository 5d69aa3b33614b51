"""How many tokens to guess ahead, for whom and in which step. A drafter proposes tokens with the odds that the model
would generate them; they are computed beside the last known token, and those that the model would have sampled itself
are kept (verification.py). Drafting costs rows and saves steps, so a step gets those drafts that are worth most to all
who share it (worth.py): none where rows are dear, and none for a request whose drafts keep failing, until it is tried
again.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), 3.3, has the expected gain. Here
every position has odds of its own, and the cost of rows is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import add, eq
from typing import Protocol

import msgspec
import numpy as np
from msgspec.structs import replace

from headrace.core.batch import EMPTY, BoolArray, IntArray
from headrace.core.request import FinishReason
from headrace.policy.ask_cost import AskCost
from headrace.policy.block_manager import BlockManager
from headrace.policy.device_orders import CopyNow
from headrace.policy.drafts import Drafts
from headrace.policy.latency import StepWork
from headrace.policy.moves import Move
from headrace.policy.row_cost import RowCost
from headrace.policy.slots import Slots
from headrace.policy.worth import how_many, least_odds, ranked

_FADE = 0.8
_REST = 0.98
_PRIOR, _PRIOR_ALL = 2.0, 8.0
"""Drafted tokens that a request's own record must outweigh, and that of all together."""
_HOPE = 0.75
"""What a drafter's odds are held to be worth before anything is known of it."""
_LONGEST_QUIET = 7
"""Proposals of no use in a row that count; a costly drafter is asked again after two to this power of steps at most."""
_FIRST = 4
"""Requests that a costly drafter is asked for as long as little is known of it."""
_GAIN = 1.05
"""Times as many tokens a second that asking a costly drafter must promise."""
_IDLE = 8
"""Steps for which nobody is looked at after none was worth asking for."""
_SURE = 0.95
_RARE, _CALM = 0.5, 4.0
"""Where guesses must have better odds than this to be of use, those who have none are looked at less often."""


class Context(msgspec.Struct, frozen=True, gc=False, eq=False):
    """What a drafter sees of a request: its named tokens (prompt first, int32 [n]), whose slot it has (slot and serial
    together name it), and the namespace within which past texts may be used. most: tokens to propose at most; least:
    odds of the first below which none of them is of use. seed: of what is sampled. blocks int32 [groups, n]: its KV
    blocks, enough for these too if the drafter is costly."""

    slot: int
    serial: int
    namespace: tuple[str, str]
    tokens: IntArray
    most: int
    least: float = 0.0
    seed: int = 0
    blocks: IntArray = EMPTY


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """tokens that may follow, and for each the odds that it and all before it are what the model generates."""

    tokens: Sequence[int]
    odds: Sequence[float]


NOTHING = Proposal((), ())


class Drafter(Protocol):
    costly: bool
    """Whether proposing takes time that counts even if nothing of it is used."""

    @property
    def copy(self) -> CopyNow | None:
        """Makes the copies of blocks that it computes itself; None if it computes none."""

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """One proposal for each context; it may be shorter than asked, or empty."""

    def remember(self, namespace: tuple[str, str], tokens: IntArray, prompt_len: int) -> None:
        """A request has ended with these tokens; later ones of its namespace may resemble it."""


@dataclass(slots=True)
class DraftCounters:
    """drafts: times that tokens were drafted for a request; by_length: how often so many were accepted. saved_seconds:
    what the accepted ones would have taken, less what drafting cost."""

    proposed: int = 0
    accepted: int = 0
    drafts: int = 0
    by_length: dict[int, int] = field(default_factory=dict)
    saved_seconds: float = 0.0

    @property
    def by_position(self) -> list[int]:
        """How often the draft token i places ahead was accepted."""
        longest = max(self.by_length, default=0)
        return [sum(n for length, n in self.by_length.items() if length > i) for i in range(longest)]


class _Computed(msgspec.Struct, frozen=True, gc=False):
    """Drafts of a step under way: their odds, the seconds that a token takes without drafts, and that a draft took."""

    odds: Sequence[float]
    worth: float
    price: float


class _Record:
    """How a request's drafts have done: accepted tokens, and how many should have been of those tried by the odds. Both
    fade, with each draft and with each step, the slower the more drafts in a row were useless. With a costly drafter
    also: whether it has read the text, proposals in a row of which nothing was used, and until which step none is asked
    for."""

    __slots__ = ("failed", "hits", "hopes", "quiet_until", "read", "serial", "step", "wasted")

    def __init__(self, serial: int, step: int) -> None:
        self.serial, self.step = serial, step
        self.hits = self.hopes = 0.0
        self.failed = self.wasted = self.quiet_until = 0
        self.read = False

    def left(self, step: int) -> float:
        """What is left by this step of what was known: something is forgotten, so that it is tried again."""
        return float(_REST ** ((step - self.step) / (1 + self.failed)))

    def note(self, accepted: int, hope: float, fade: float, step: int) -> None:
        fade *= self.left(step)
        self.hits, self.hopes, self.step = fade * self.hits + accepted, fade * self.hopes + hope, step
        self.failed = 0 if accepted else self.failed + 1

    def trust(self, step: int, general: float, prior: float = _PRIOR) -> float:
        """What the odds of the next token are worth, 0 to 1; general: what they are where nothing is known."""
        left = self.left(step)
        return min(1.0, (left * self.hits + prior * general) / (left * self.hopes + prior))


class _Member(msgspec.Struct, frozen=True, gc=False):
    """An entry of a plan that decodes, and whose: what stays the same while it does."""

    entry: int
    slot: int
    most: int
    last: int
    namespace: tuple[str, str]
    seed: int
    record: _Record


@dataclass(slots=True)
class _Crew:
    """Whom to guess for in steps of the same requests. rows, sampled: what such a step computes without guesses. By the
    cost curves of so many draws: least, the odds that a first guess must have, and idle_until, the step before which
    nobody is looked at, after none was worth asking for."""

    slots: IntArray
    rows: int
    sampled: int
    members: list[_Member]
    draws: int = -1
    least: float = 0.0
    idle_until: int = 0


class Speculation:
    """drafter proposes; most: draft tokens of a request in a step. cost learns what rows take."""

    def __init__(self, drafter: Drafter, cost: RowCost, *, num_slots: int, most: int) -> None:
        self.drafter = drafter
        self.cost = cost
        self.counters = DraftCounters()
        self._most = most
        self._records: list[_Record | None] = [None] * num_slots
        # That of all requests together stands for one that has none yet.
        self._all = _Record(-1, 0)
        # Slots worth waiting for, so that their last token is named when the next step is put together.
        self._eager: set[int] = set()
        self._steps = 0
        self._crew: _Crew | None = None
        self._pending: dict[tuple[int, int], _Computed] = {}
        # What a costly drafter takes; for how many requests and tokens ahead it was asked in the newest step, none
        # where it had whole texts to read, which says nothing of later steps; what it says that its first
        # guess is worth.
        self._ask_cost = AskCost()
        self._asked: tuple[int, int] | None = None
        self._stated = 1.0

    def observe(self, work: StepWork, seconds: float, *, drafted: bool) -> None:
        """A step took so long, all that is done for it included. drafted: some of its rows were guesses."""
        if self._asked is not None:
            requests, ahead = self._asked
            self._asked = None
            if not requests:
                return
            beyond = seconds - self.cost.seconds(work.tokens, drafted=drafted)
            self._ask_cost.observe(requests, ahead, beyond)
            seconds -= min(self._ask_cost.seconds(requests) * ahead, max(beyond, 0.0))
        self.cost.observe(work, seconds, drafted=drafted)

    def draft(
        self,
        state: Slots,
        slots: IntArray,
        starts: list[int],
        counts: list[int] | None,
        left: int,
        blocks: BlockManager,
    ) -> Drafts | None:
        """Draft tokens for entries of a plan that decode, at most `left` in all; None for none. counts: None if every
        entry decodes, none of them waits for a step under way, and slots is one array from step to step."""
        self._steps += 1
        self._asked = None
        crew = self._crew
        if counts is not None or crew is None or crew.slots is not slots:
            crew = self._crew = self._gather(state, slots, starts, counts or [1] * len(starts))
        if crew.draws != self.cost.draws:
            crew.draws, crew.idle_until, crew.least = self.cost.draws, 0, 1.0
            if guessing := len(crew.members):
                taken = self.cost.relative(crew.rows, most := max(self._most, guessing))
                crew.least = least_odds(taken[: most + 1], crew.sampled, guessing)
        if crew.idle_until > self._steps or not crew.members or left <= 0:
            return None
        # What guesses cost is told by comparison; steps with chunks of prompts are not measured.
        if crew.rows == crew.sampled and not self.cost.knows(crew.rows):
            return None
        ready = None if counts is None else [*map(eq, state.done.take(slots).tolist(), starts)]
        contexts, chosen, trusts = self._hopeful(state, crew, starts, ready)
        if not contexts:
            return None
        if self.drafter.costly:
            ahead = self._worth_asking(crew, trusts, max(context.most for context in contexts))
            if not ahead:
                self._ask_cost.refuse()
                return None
            if self._all.hopes * self._all.left(self._steps) < _PRIOR_ALL:
                # Reading their texts may turn out to have been in vain.
                contexts, chosen, trusts = contexts[:_FIRST], chosen[:_FIRST], trusts[:_FIRST]
            contexts = _with_blocks([replace(one, most=min(one.most, ahead)) for one in contexts], blocks)
            self._asked = (len(contexts), ahead) if all(member.record.read for member in chosen) else (0, 0)
            for member in chosen:
                member.record.read = True
        proposals = self.drafter.propose(contexts)
        kept = self._choose(proposals, trusts, crew, min(left, self.cost.reach(crew.rows)))
        self._mind(chosen, kept, crew.least)
        if self.drafter.costly:
            firsts = [proposal.odds[0] for proposal in proposals if proposal.odds]
            self._stated += (1 - _FADE) * (sum(firsts) / len(firsts) - self._stated) if firsts else 0.0
        total = sum(kept)
        if not total:
            return None
        drafted = [0] * len(starts)
        plain = self.cost.seconds(crew.rows)
        worth = plain / crew.sampled
        price = plain * (self.cost.relative(crew.rows, total)[total] - 1) / total
        tokens: list[int] = []
        for member, proposal, n in zip(chosen, proposals, kept, strict=True):
            if n:
                drafted[member.entry] = n
                tokens += proposal.tokens[:n]
                self._pending[member.slot, member.record.serial] = _Computed(proposal.odds[:n], worth, price)
        return Drafts(drafted, tokens)

    def holds(self, state: Slots, slots: IntArray) -> BoolArray:
        """Which of these slots wait for a step under way: its drafts are not proven, or its token is not named and
        guessing after it promises more than computing on."""
        eager = np.array([slot in self._eager for slot in slots.tolist()], np.bool_)
        waits: BoolArray = eager & (state.computed.take(slots) > state.done.take(slots))
        return waits | np.array([slot in state.drafting for slot in slots.tolist()], np.bool_)

    def learn(self, slot: int, serial: int, accepted: int | None) -> None:
        """How many of the tokens drafted for this request were kept; None if it has left."""
        computed = self._pending.pop((slot, serial), None)
        if computed is None or accepted is None:
            return
        drafted = len(computed.odds)
        # Each token was expected to follow those before it; what follows the first wrong one says nothing.
        hope, before = 0.0, 1.0
        for odds in computed.odds[: accepted + 1]:
            hope += odds / before
            before = odds
        self._record(slot, serial).note(accepted, hope, _FADE, self._steps)
        self._all.note(accepted, hope, _REST, self._steps)
        self._all.failed = 0
        counters = self.counters
        counters.drafts += 1
        counters.saved_seconds += accepted * computed.worth - drafted * computed.price
        counters.proposed += drafted
        counters.accepted += accepted
        counters.by_length[accepted] = counters.by_length.get(accepted, 0) + 1

    def follow(self, moves: Iterable[Move]) -> None:
        """Let the drafter remember what ended well."""
        for move in moves:
            if move.reason in (FinishReason.STOP, FinishReason.LENGTH):
                one = move.sequence
                self.drafter.remember((one.tenant, one.cache_salt), one.tokens, one.prompt_len)

    def _gather(self, state: Slots, slots: IntArray, starts: list[int], counts: list[int]) -> _Crew:
        decoding = [*map(eq, map(add, starts, counts), state.known.take(slots).tolist())]
        members = []
        for entry, slot in enumerate(slots.tolist()):
            if counts[entry] != 1 or not decoding[entry] or state.draft_most[slot] <= 0:
                continue
            most, last = min(int(state.draft_most[slot]), self._most), int(state.last[slot])
            namespace = (state[slot].tenant, state[slot].cache_salt)
            record = self._record(slot, int(state.serial[slot]))
            members.append(_Member(entry, slot, most, last, namespace, state[slot].seed, record))
        return _Crew(slots, sum(counts), sum(decoding), members)

    def _hopeful(
        self, state: Slots, crew: _Crew, starts: list[int], ready: list[bool] | None
    ) -> tuple[list[Context], list[_Member], list[float]]:
        """Those for whom asking is worth it, and what the odds of each one's next token are worth."""
        contexts: list[Context] = []
        chosen: list[_Member] = []
        trusts: list[float] = []
        least, eager = crew.least, self._eager
        general = self._all.trust(self._steps, _HOPE, _PRIOR_ALL)
        hoping = False
        for member in crew.members if least < _SURE else ():
            record = member.record
            trust = record.trust(self._steps, general)
            if trust * _SURE < least or record.quiet_until > self._steps:
                eager.discard(member.slot)
                continue
            eager.add(member.slot)
            hoping = True
            end = starts[member.entry] + 1
            most = min(member.most, member.last - end)
            if most > 0 and (ready is None or ready[member.entry]):
                tokens = state.tokens[member.slot, :end]
                contexts.append(
                    Context(member.slot, record.serial, member.namespace, tokens, most, least / trust, member.seed)
                )
                chosen.append(member)
                trusts.append(trust)
        if not hoping:
            crew.idle_until = self._steps + _IDLE
            eager.difference_update(crew.slots.tolist())
        return contexts, chosen, trusts

    def _record(self, slot: int, serial: int) -> _Record:
        record = self._records[slot]
        if record is None or record.serial != serial:
            if record is not None:
                # Drafts that found no blocks were never computed.
                self._pending.pop((slot, record.serial), None)
            record = self._records[slot] = _Record(serial, self._steps)
        return record

    def _mind(self, chosen: list[_Member], kept: list[int], least: float) -> None:
        """Ask less often for those to whom what was proposed is of no use, if asking takes long or only guesses that
        are nearly sure are of use."""
        for member, used in zip(chosen, kept, strict=True):
            record = member.record
            record.wasted = 0 if used else min(record.wasted + 1, _LONGEST_QUIET)
            quiet = 1 << record.wasted if self.drafter.costly else int(record.wasted * _CALM * (least - _RARE))
            record.quiet_until = 0 if used else self._steps + quiet

    def _worth_asking(self, crew: _Crew, trusts: list[float], most: int) -> int:
        """How many tokens ahead to ask a costly drafter for, so that a step brings the most a second; 0 for none."""
        requests = len(trusts)
        plain = self.cost.seconds(crew.rows)
        asking = self._ask_cost.seconds(requests) / plain
        taken = self.cost.relative(crew.rows, requests * most)
        odds = np.array(trusts) * self._stated
        gained = float(crew.sampled)
        best, far = _GAIN * gained, 0
        for ahead in range(1, most + 1):
            gained += float((odds**ahead).sum())
            rate = gained / (taken[requests * ahead] + ahead * asking)
            if rate > best:
                best, far = rate, ahead
        return far

    def _choose(self, proposals: Sequence[Proposal], trusts: list[float], crew: _Crew, left: int) -> list[int]:
        """How many tokens of each proposal to compute."""
        kept = [0] * len(proposals)
        every = ranked(proposals, trusts)[:left]
        if every:
            most = how_many(every, self.cost.relative(crew.rows, len(every)), crew.sampled)
            for _, n in every[:most]:
                kept[n] += 1
        return kept


def _with_blocks(contexts: list[Context], blocks: BlockManager) -> list[Context]:
    """What a drafter that computes keys and values needs; of as many tokens as there are blocks for."""
    slots: IntArray = np.array([context.slot for context in contexts], np.int32)
    ends: IntArray = np.array([len(context.tokens) for context in contexts], np.int32)
    most = blocks.grow_towards(slots, ends, np.array([context.most for context in contexts], np.int32))
    return [
        replace(context, most=ahead, blocks=blocks.table(context.slot))
        for context, ahead in zip(contexts, most.tolist(), strict=True)
    ]
