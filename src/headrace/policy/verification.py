"""Which draft tokens a finished step has proven right. Row by row, the step sampled what follows each draft token as if
it had been generated, with the noise that its position would have had; so a draft token that equals the sample before
it is what would have been generated, and the first that differs ends what may be kept, at any temperature.
"""

from dataclasses import dataclass

import msgspec
import numpy as np

from headrace.core.batch import BatchOutput, BoolArray
from headrace.core.request import OutputDelta
from headrace.policy.slots import Slots
from headrace.policy.speculation import Speculation
from headrace.policy.step import Step


class Proven(msgspec.Struct, frozen=True, gc=False):
    """Of `count` draft tokens of an entry, whose rows begin at `row`, so many came true. sampled: what these rows and
    the one after bring. broken: the last of them failed. stopped: it ends the request."""

    entry: int
    slot: int
    row: int
    count: int
    accepted: int
    sampled: list[int]
    broken: bool
    stopped: bool


def prove(state: Slots, step: Step, output: BatchOutput, ending: frozenset[int] | None = None) -> list[Proven]:
    """What became of the draft tokens of each entry that samples. ending: tokens to stop at, None for those that end
    the entry's request."""
    assert step.drafted is not None and step.batch.drafts is not None
    counts = step.drafted.tolist()
    drafted, sampled, failed = step.batch.drafts.token.tolist(), output.tokens.tolist(), output.failed.tolist()
    slots, entries = step.batch.slots.tolist(), step.batch.logit_entry.tolist()
    proven = []
    at = row = 0
    while row < len(step.sampled):
        entry = entries[row]
        slot, count = slots[entry], counts[entry]
        stops = _stops(state, slot) if ending is None else ending
        accepted = 0
        # Nothing is kept after a token that ends the request, or after one that means nothing.
        while (
            accepted < count
            and drafted[at + accepted] == (token := sampled[row + accepted])
            and not failed[row + accepted]
            and token not in stops
        ):
            accepted += 1
        end = row + accepted
        kept = sampled[row : end + 1]
        proven.append(Proven(entry, slot, row, count, accepted, kept, failed[end], kept[-1] in stops))
        at += count
        row += count + 1
    return proven


def _stops(state: Slots, slot: int) -> frozenset[int]:
    """Tokens that end its request."""
    return state.many_stops.get(slot) or frozenset(state.stops[slot].tolist())


@dataclass(frozen=True, slots=True)
class Settled:
    """keep bool [sampled rows]: which name a token. counts: by request, how many tokens were drafted and accepted."""

    keep: BoolArray
    counts: dict[str, tuple[int, int]]


def settle_drafts(state: Slots, speculation: Speculation, step: Step, output: BatchOutput) -> Settled:
    """Take back what was computed in vain: ends of the step and computed, known of its slots. Entries whose request
    has left mean nothing."""
    counts: dict[str, tuple[int, int]] = {}
    keep: BoolArray = np.ones(len(step.sampled), np.bool_)
    alive = step.alive(state.serial).tolist()
    for one in prove(state, step, output):
        if not one.count:
            continue
        entry, slot, vain = one.entry, one.slot, one.count - one.accepted
        keep[one.row + one.accepted + 1 : one.row + one.count + 1] = False
        step.ends[entry] -= vain
        speculation.learn(slot, int(step.serials[entry]), one.accepted if alive[entry] else None)
        if alive[entry]:
            counts[state[slot].request_id] = one.count, one.accepted
            state.drafting.discard(slot)
            state.computed[slot] = step.ends[entry]
            state.known[slot] = step.ends[entry] + 1
    return Settled(keep, counts)


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
