"""What a finished step means: tokens become known, what is done enters the prefix cache, requests that reach a stop or
their length end, and each request is sent what the step brought it. Entries whose request has left since the step
was begun mean nothing and are dropped.
"""

import numpy as np

from headrace.core.batch import BatchOutput, BoolArray, IntArray
from headrace.core.request import FinishReason, OutputDelta
from headrace.policy import deltas
from headrace.policy.roster import NOT_FINITE, Roster
from headrace.policy.sequence import Sequence
from headrace.policy.speculation import Speculation
from headrace.policy.steady import Steady
from headrace.policy.step import Step
from headrace.policy.verification import joined, prove, settle_drafts

_FEW = 32
"""Numbers that are written one by one sooner than as an array, where caches are cold."""


def take_in(
    roster: Roster, step: Step, output: BatchOutput, speculation: Speculation | None = None, alone: bool = False
) -> list[OutputDelta]:
    """Requests that end here leave their slot and blocks at once. speculation: who drafted, if the step has drafts.
    alone: no step was begun after this one."""
    if step.batch.steps > 1:
        return _take_in_many(roster, step, output)
    unchanged = step.departures == roster.departures
    if step.steady is not None and unchanged and step.steady.plain:
        sent = None
        if step.drafted is None:
            sent = _take_in_steady(roster, step, step.steady, output)
        elif alone and speculation is not None:
            sent = _take_in_guessed(roster, step, step.steady, output, speculation)
        if sent is not None:
            return sent
    state = roster.slots
    slots, ends, sampled, index = step.batch.slots, step.ends, step.sampled, step.index
    rows: IntArray = np.arange(len(sampled), dtype=np.int32)
    tokens, failed = output.tokens[: len(sampled)], output.failed[: len(sampled)]
    settled = None
    if step.drafted is not None:
        assert speculation is not None
        settled = settle_drafts(state, speculation, step, output)
        if step.steady is not None:
            step.steady.stand_at(step.ends.tolist())
        rows = rows[settled.keep]
    if not unchanged:
        alive = step.alive(state.serial)
        slots, ends = slots[alive], ends[alive]
        rows = rows[alive[step.batch.logit_entry[rows]]]
    if len(rows) < len(sampled):
        sampled, index, tokens, failed = sampled[rows], index[rows], tokens[rows], failed[rows]
    state.done[slots] = ends
    state.tokens[sampled, index] = tokens
    sent = deltas.named(state.request_ids.take(sampled).tolist(), tokens.tolist())
    roster.counters.generated_tokens += len(sent)
    if roster.behind:
        _catch_up(roster, sampled, index, sent)
    if not len(sampled) and not step.scored:
        return sent
    if state.reporting:
        top = state.top.take(sampled)
        for i in np.flatnonzero(top >= 0).tolist():
            sent[i].logprobs = [deltas.logprobs(output, int(rows[i]), int(top[i]))]
    ending = index >= state.last.take(sampled)
    if state.stopping:
        ending |= (state.stops.take(sampled, axis=0) == tokens[:, None]).any(axis=1)
    ending |= failed
    if state.many_stops:
        ending |= _among_many(roster, sampled, tokens)
    if step.scored:
        _take_scores(roster, step, set(slots.tolist()), output, sent)
    for i in ending.nonzero()[0].tolist():
        slot = int(sampled[i])
        if state.sequences[slot] is None:
            continue
        if failed[i]:
            roster.break_off(state[slot], sent[i], output.reasons.get(int(rows[i]), NOT_FINITE))
        else:
            _end(roster, state[slot], sent[i], int(index[i]), int(tokens[i]))
    return sent if settled is None else joined(sent, settled)


def _take_in_steady(roster: Roster, step: Step, steady: Steady, output: BatchOutput) -> list[OutputDelta] | None:
    """take_in() where no request ends; None, and nothing done, if one might."""
    state, tokens = roster.slots, output.tokens.tolist()
    if step.final or 1 in output.failed.tobytes() or (steady.ending and not steady.ending.isdisjoint(tokens)):
        return None
    state.done[steady.at] = step.ends
    if len(tokens) > _FEW:
        state.tokens[steady.at, step.ends] = output.tokens
    else:
        for slot, end, token in zip(steady.whose, step.ends.tolist(), tokens, strict=True):
            state.tokens[slot, end] = token
    roster.counters.generated_tokens += len(tokens)
    return deltas.named(steady.request_ids, tokens)


def _take_in_guessed(
    roster: Roster, step: Step, steady: Steady, output: BatchOutput, speculation: Speculation
) -> list[OutputDelta] | None:
    """take_in() of the last step that was begun, with guesses, where no request ends; None, and nothing done, if one
    might."""
    state, ends = roster.slots, step.ends.tolist()
    proven = prove(state, step, output, steady.ending)
    for one in proven:
        ends[one.entry] -= one.count - one.accepted
        if one.broken or one.stopped or ends[one.entry] >= steady.last[one.entry]:
            return None
    sent = []
    for one, end, name in zip(proven, ends, steady.request_ids, strict=True):
        slot, named = one.slot, one.sampled
        for index, token in enumerate(named, end + 1 - len(named)):
            state.tokens[slot, index] = token
        state.done[slot] = state.computed[slot] = end
        state.known[slot] = end + 1
        if one.count:
            speculation.learn(slot, int(steady.serials[one.entry]), one.accepted)
        roster.counters.generated_tokens += len(named)
        sent.append(OutputDelta(name, named, drafted=one.count, accepted=one.accepted))
    state.drafting.clear()
    steady.stand_at(ends)
    return sent


def _take_in_many(roster: Roster, step: Step, output: BatchOutput) -> list[OutputDelta]:
    """take_in() of several steps taken as one, in which requests end by their length alone, and in the last. Raises
    ValueError if one would end otherwise: the device allowed more steps at once than it could."""
    state, steps = roster.slots, step.batch.steps
    tokens, failed = output.tokens.reshape(steps, -1), output.failed.reshape(steps, -1)
    slots, ends = step.batch.slots, step.ends
    if step.departures != roster.departures:
        alive = step.alive(state.serial)
        tokens, failed, slots, ends = tokens[:, alive], failed[:, alive], slots[alive], ends[alive]
    stops = state.stops.take(slots, axis=0).T if state.stopping else ()
    if np.count_nonzero(failed) or any(np.count_nonzero(tokens == column) for column in stops if column.max() >= 0):
        raise ValueError(f"step {step.batch.step}: a request ends within {steps} steps that were taken as one")
    state.done[slots] = ends
    index = ends + np.arange(1 - steps, 1, dtype=np.int32)[:, None]
    state.tokens[slots, index] = tokens
    roster.counters.generated_tokens += tokens.size
    sent = list(map(OutputDelta, state.request_ids.take(slots).tolist(), tokens.T.tolist()))
    if step.final:
        for i in (ends >= state.last.take(slots)).nonzero()[0].tolist():
            roster.end(state[int(slots[i])], sent[i], FinishReason.LENGTH)
    return sent


def _end(roster: Roster, sequence: Sequence, delta: OutputDelta, index: int, token: int) -> None:
    """End a request whose token `index` came out last, if it truly ends there."""
    stops = token in sequence.eos_ids or token in sequence.params.stop_token_ids
    if index + 1 - sequence.prompt_len <= sequence.params.min_tokens:
        stops = False
    if stops:
        delta.stop_token = token
    elif index + 1 < sequence.limit:
        return
    roster.end(sequence, delta, FinishReason.STOP if stops else FinishReason.LENGTH)


def _catch_up(roster: Roster, sampled: IntArray, index: IntArray, sent: list[OutputDelta]) -> None:
    """Requests that were still computing what they joined with: cache what is done, say what was cached."""
    state = roster.slots
    for slot in tuple(roster.behind):
        done, start = int(state.done[slot]), int(state.start[slot])
        roster.blocks.remember(slot, state.tokens[slot, : min(done, start)])
        if done >= start:
            roster.behind.remove(slot)
    for i in (index == state.start.take(sampled)).nonzero()[0].tolist():
        sent[i].cached_tokens = max(0, state[int(sampled[i])].cached_tokens)


def _among_many(roster: Roster, sampled: IntArray, tokens: IntArray) -> BoolArray:
    many = roster.slots.many_stops
    pairs = zip(sampled.tolist(), tokens.tolist(), strict=True)
    return np.array([slot in many and token in many[slot] for slot, token in pairs], np.bool_)


def _take_scores(roster: Roster, step: Step, alive: set[int], output: BatchOutput, sent: list[OutputDelta]) -> None:
    """Hand out prompt log-probabilities, beside a token if there is one; who wanted nothing else ends."""
    by_id = {delta.request_id: delta for delta in sent}
    for sequence, scored in roster.scoring.hand_out(output, len(step.sampled), step.scored, alive):
        delta = by_id.get(sequence.request_id)
        if delta is None:
            delta = OutputDelta(sequence.request_id)
            sent.append(delta)
        if scored is None:
            roster.break_off(sequence, delta)
            continue
        delta.prompt_logprobs = scored
        if sequence.limit == sequence.prompt_len and not sequence.scoring:
            roster.end(sequence, delta, FinishReason.LENGTH)
