"""How many tokens to guess ahead, for whom and in which step. A drafter proposes tokens with the odds that the model
would generate them; they are computed beside the last known token, and those that the model would have sampled itself
are kept (verification.py). Drafting costs rows and saves steps, so a step gets those drafts that make it bring the most
tokens a second: none where rows are dear, and none for a request whose drafts keep failing, until it is tried again.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), 3.3, has the expected gain. Here
every position has odds of its own, and the cost of rows is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.batch import EMPTY, BoolArray, DraftTokens, IntArray
from headrace.core.request import FinishReason
from headrace.policy.block_manager import BlockManager
from headrace.policy.budget import StepBudget
from headrace.policy.device_orders import CopyNow
from headrace.policy.moves import Move
from headrace.policy.plan import Plan
from headrace.policy.row_cost import RowCost
from headrace.policy.slots import Slots

_FADE = 0.8
_REST = 0.99
_PRIOR = 2.0
"""Drafted tokens that a request's own record must outweigh."""
_HOPE = 0.75
"""What a drafter's odds are held to be worth before anything is known of it."""
_LONGEST_QUIET = 7
"""A costly drafter of no use is asked again after at most two to the power of this many steps."""
_SURE = 0.95
_LEAST_ODDS = 0.05
"""Guesses that are this unlikely are not computed even where a row costs nothing that can be measured."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a drafter sees of a request: its named tokens (prompt first, int32 [n]), whose slot it has (slot and serial
    together name it), and the namespace within which past texts may be used. most: tokens to propose at most. seed: of
    what is sampled. blocks int32 [groups, n]: its KV blocks, enough for these too if the drafter is costly."""

    slot: int
    serial: int
    namespace: tuple[str, str]
    tokens: IntArray
    most: int
    seed: int = 0
    blocks: IntArray = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class Proposal:
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


@dataclass(frozen=True, slots=True)
class Drafts:
    """counts int32 [entries]: draft tokens for each entry of a plan; tokens: theirs, entry after entry."""

    counts: IntArray
    tokens: IntArray

    def rows(self, entries: IntArray, sampled: IntArray, index: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Rows that sample once the drafts are computed too: row i of an entry without them, which names token
        index[i], becomes one for each place of a draft token and the one after."""
        times = self.counts[entries] + 1
        first = np.cumsum(times) - times
        within = (np.arange(int(times.sum())) - np.repeat(first, times)).astype(np.int32)
        return np.repeat(entries, times), np.repeat(sampled, times), np.repeat(index, times) + within

    def placed(self, slots: IntArray, ends: IntArray) -> DraftTokens:
        """Where they stand: those of entry i from position ends[i] on."""
        first = np.cumsum(self.counts) - self.counts
        within = np.arange(len(self.tokens), dtype=np.int32) - np.repeat(first, self.counts).astype(np.int32)
        return DraftTokens(np.repeat(slots, self.counts), np.repeat(ends, self.counts) + within, self.tokens)


@dataclass(slots=True)
class DraftCounters:
    """drafts: times that tokens were drafted for a request. by_position[i]: how often the draft token i
    places ahead was accepted. saved_seconds: what the accepted ones would have taken, less what drafting cost."""

    proposed: int = 0
    accepted: int = 0
    drafts: int = 0
    by_position: list[int] = field(default_factory=list)
    saved_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Computed:
    """Drafts of a step under way: their odds, the seconds that a token takes without drafts, and that a draft took."""

    odds: Sequence[float]
    worth: float
    price: float


class Speculation:
    """drafter proposes; most: draft tokens of a request in a step. cost learns what rows take."""

    def __init__(self, drafter: Drafter, cost: RowCost, *, num_slots: int, most: int) -> None:
        self.drafter = drafter
        self.cost = cost
        self.counters = DraftCounters()
        self._most = most
        # Each slot's record: accepted tokens, and how many should have been of those tried by the odds, faded. That of
        # all requests together stands for one that has none yet.
        self._serials: IntArray = np.full(num_slots, -1, np.int32)
        self._hits: npt.NDArray[np.float64] = np.zeros(num_slots)
        self._hopes: npt.NDArray[np.float64] = np.zeros(num_slots)
        self._all_hits, self._all_hopes = _PRIOR * _HOPE, _PRIOR
        # Slots worth waiting for, so that their last token is named when the next step is put together.
        self._eager: BoolArray = np.zeros(num_slots, np.bool_)
        # With a costly drafter: proposals in a row of which nothing was used, and until which step none is asked for.
        self._wasted: IntArray = np.zeros(num_slots, np.int32)
        self._quiet_until: IntArray = np.zeros(num_slots, np.int32)
        self._steps = 0
        self._pending: dict[tuple[int, int], _Computed] = {}

    def draft(self, state: Slots, plan: Plan, budget: StepBudget, blocks: BlockManager) -> Drafts | None:
        """Draft tokens for entries of the plan that decode, within what is left of the budget; None for none."""
        ends = plan.starts + plan.counts
        able = (plan.counts == 1) & (ends == state.known.take(plan.slots))
        able &= state.draft_most.take(plan.slots) > 0
        room = np.minimum(state.last.take(plan.slots) - ends, np.minimum(state.draft_most.take(plan.slots), self._most))
        entries = np.flatnonzero(able & (room > 0))
        if not len(entries) or budget.left <= 0:
            return None
        slots = plan.slots[entries]
        trust = self._trust(slots, state.serial.take(slots))
        sampled, rows = int(np.count_nonzero(ends == state.known.take(plan.slots))), int(plan.counts.sum())
        hopeful = trust * _SURE >= self._least_odds(sampled, rows)
        self._rest(slots[~hopeful])
        self._steps += 1
        hopeful &= self._quiet_until[slots] <= self._steps
        self._eager[slots] = hopeful
        hopeful &= state.done.take(slots) == plan.starts[entries]
        entries, slots, trust = entries[hopeful], slots[hopeful], trust[hopeful]
        if not len(entries):
            return None
        most = room[entries]
        if self.drafter.costly:
            most = blocks.grow_towards(slots, ends[entries], most)
        contexts = [
            Context(
                slot,
                int(state.serial[slot]),
                (state[slot].tenant, state[slot].cache_salt),
                state.tokens[slot, : ends[entry]],
                ahead,
                state[slot].seed,
                blocks.table(slot),
            )
            for slot, entry, ahead in zip(slots.tolist(), entries.tolist(), most.tolist(), strict=True)
        ]
        proposals = self.drafter.propose(contexts)
        kept = self._choose(proposals, trust, sampled=sampled, rows=rows, left=budget.left)
        if self.drafter.costly:
            used = np.array(kept) > 0
            self._wasted[slots] = np.where(used, 0, np.minimum(self._wasted[slots] + 1, _LONGEST_QUIET))
            self._quiet_until[slots] = np.where(used, 0, self._steps + (1 << self._wasted[slots]))
        if not any(kept):
            return None
        counts: IntArray = np.zeros(len(plan.slots), np.int32)
        counts[entries] = kept
        tokens = [t for proposal, n in zip(proposals, kept, strict=True) for t in proposal.tokens[:n]]
        plain = self.cost.seconds(rows)
        worth, price = plain / sampled, (self.cost.seconds(rows + sum(kept)) - plain) / sum(kept)
        for context, proposal, n in zip(contexts, proposals, kept, strict=True):
            if n:
                self._pending[context.slot, context.serial] = _Computed(proposal.odds[:n], worth, price)
        return Drafts(counts, np.array(tokens, np.int32))

    def holds(self, state: Slots, slots: IntArray) -> BoolArray:
        """Which of these slots wait for a step under way: its drafts are not proven, or its token is not named and
        guessing after it promises more than computing on."""
        waits: BoolArray = self._eager.take(slots) & (state.computed.take(slots) > state.done.take(slots))
        return waits | state.drafting.take(slots)

    def learn(self, slot: int, serial: int, accepted: int | None) -> None:
        """How many of the tokens drafted for this request were kept; None if it has left."""
        computed = self._pending.pop((slot, serial), None)
        if computed is None or accepted is None:
            return
        drafted = len(computed.odds)
        # Each token was expected to follow those before it; what follows the first wrong one says nothing.
        tried = computed.odds[: accepted + 1]
        hope = sum(odds / before for odds, before in zip(tried, (1.0, *tried), strict=False))
        self._hits[slot] = _FADE * self._hits[slot] + accepted
        self._hopes[slot] = _FADE * self._hopes[slot] + hope
        self._all_hits = _REST * self._all_hits + accepted
        self._all_hopes = _REST * self._all_hopes + hope
        counters = self.counters
        counters.drafts += 1
        counters.saved_seconds += accepted * computed.worth - drafted * computed.price
        counters.proposed += drafted
        counters.accepted += accepted
        counters.by_position += [0] * (accepted - len(counters.by_position))
        for position in range(accepted):
            counters.by_position[position] += 1

    def follow(self, moves: Iterable[Move]) -> None:
        """Let the drafter remember what ended well."""
        for move in moves:
            if move.reason in (FinishReason.STOP, FinishReason.LENGTH):
                one = move.sequence
                self.drafter.remember((one.tenant, one.cache_salt), one.tokens, one.prompt_len)

    def _trust(self, slots: IntArray, serials: IntArray) -> npt.NDArray[np.float64]:
        """What the odds of a request's next token are worth by its record, 0 to 1."""
        new = slots[self._serials[slots] != serials]
        self._hits[new] = self._hopes[new] = 0.0
        for slot in new.tolist():
            # Drafts that found no blocks were never computed.
            self._pending.pop((slot, int(self._serials[slot])), None)
        self._serials[slots] = serials
        self._eager[new] = False
        self._wasted[new] = self._quiet_until[new] = 0
        general = min(1.0, self._all_hits / self._all_hopes)
        trust: npt.NDArray[np.float64] = (self._hits[slots] + _PRIOR * general) / (self._hopes[slots] + _PRIOR)
        return np.minimum(trust, 1.0)

    def _rest(self, slots: IntArray) -> None:
        """Let records fade while nothing is drafted, so that it is tried again."""
        self._hits[slots] *= _REST
        self._hopes[slots] *= _REST
        self._all_hits = _REST * self._all_hits + (1 - _REST) * _PRIOR * _HOPE
        self._all_hopes = _REST * self._all_hopes + (1 - _REST) * _PRIOR

    def _least_odds(self, sampled: int, rows: int) -> float:
        """Odds below which one more row makes the step bring fewer tokens a second."""
        now = self.cost.seconds(rows)
        return max(_LEAST_ODDS, sampled * (self.cost.seconds(rows + 1) - now) / now)

    def _choose(
        self, proposals: Sequence[Proposal], trust: npt.NDArray[np.float64], *, sampled: int, rows: int, left: int
    ) -> list[int]:
        """How many tokens of each proposal to compute: the likeliest of all, as many as bring the most a second."""
        # Odds fall along a proposal and the sort is stable, so what is kept of each is its beginning.
        ranked = sorted(
            (
                (odds * worth ** (ahead + 1), n)
                for n, (proposal, worth) in enumerate(zip(proposals, trust.tolist(), strict=True))
                for ahead, odds in enumerate(proposal.odds)
                if odds * worth ** (ahead + 1) >= _LEAST_ODDS
            ),
            key=lambda one: -one[0],
        )[:left]
        kept = [0] * len(proposals)
        best, most = sampled / self.cost.seconds(rows), 0
        gained = float(sampled)
        for count, (odds, _) in enumerate(ranked, start=1):
            gained += odds
            rate = gained / self.cost.seconds(rows + count)
            if rate > best:
                best, most = rate, count
        for _, n in ranked[:most]:
            kept[n] += 1
        return kept
