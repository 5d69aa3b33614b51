"""Which draft tokens a finished step has proven right. Row by row, the step sampled what follows each draft token as if
it had been generated, with the noise that its position would have had; so a draft token that equals the sample before
it is what would have been generated, and the first that differs ends what may be kept, at any temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.batch import BatchOutput, BoolArray, IntArray
from headrace.core.request import OutputDelta
from headrace.policy.slots import Slots
from headrace.policy.speculation import Speculation
from headrace.policy.step import Step


@dataclass(frozen=True, slots=True)
class Settled:
    """keep bool [sampled rows]: which name a token. counts: by request, how many tokens were drafted and accepted."""

    keep: BoolArray
    counts: dict[str, tuple[int, int]]


def settle_drafts(state: Slots, speculation: Speculation, step: Step, output: BatchOutput) -> Settled:
    """Take back what was computed in vain: ends of the step and computed, known of its slots. Entries whose request
    has left mean nothing."""
    assert step.drafted is not None and step.batch.drafts is not None
    keep: BoolArray = np.ones(len(step.sampled), np.bool_)
    counts: dict[str, tuple[int, int]] = {}
    alive = step.alive(state.serial)
    entry_of_row = step.batch.logit_entry[: len(step.sampled)]
    first_rows = np.searchsorted(entry_of_row, np.flatnonzero(step.drafted))
    at = 0
    for entry, row in zip(np.flatnonzero(step.drafted).tolist(), first_rows.tolist(), strict=True):
        count, slot = int(step.drafted[entry]), int(step.batch.slots[entry])
        drafted = step.batch.drafts.token[at : at + count]
        at += count
        right = (output.tokens[row : row + count] == drafted) & ~output.failed[row : row + count]
        right &= ~_stopping(state, slot, drafted)
        accepted = count if right.all() else int(np.argmin(right))
        keep[row + accepted + 1 : row + count + 1] = False
        step.ends[entry] -= count - accepted
        speculation.learn(slot, int(step.serials[entry]), accepted if alive[entry] else None)
        if alive[entry]:
            counts[state[slot].request_id] = count, accepted
            state.drafting[slot] = False
            state.computed[slot] = step.ends[entry]
            state.known[slot] = step.ends[entry] + 1
    return Settled(keep, counts)


def _stopping(state: Slots, slot: int, tokens: IntArray) -> BoolArray:
    """Which of these tokens end the request: nothing after them is kept."""
    many = state.many_stops.get(slot)
    ids = np.array(sorted(many), np.int32) if many is not None else state.stops[slot]
    return np.isin(tokens, ids)


def joined(sent: list[OutputDelta], settled: Settled) -> list[OutputDelta]:
    """Deltas of one request that follow each other, as one, with what was guessed for it."""
    whole: list[OutputDelta] = []
    for delta in sent:
        if whole and whole[-1].request_id == delta.request_id:
            whole[-1].absorb(delta)
        else:
            whole.append(delta)
    for delta in whole:
        delta.drafted, delta.accepted = settled.counts.get(delta.request_id, (0, 0))
    return whole
