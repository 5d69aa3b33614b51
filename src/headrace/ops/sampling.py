"""Sampling: from logits to tokens and log-probabilities. SamplingTable holds the parameters of every slot as arrays;
a Sampler turns logit rows into a BatchOutput. ReferenceSampler, in numpy, defines the meaning; ops/cpu_sampling.py
runs csrc/sampling.cpp, which gives the same tokens.

What a row means. Its position p is the index in the sequence of the token that it predicts. Raw log-probabilities
are log_softmax of the logits as they come. Then, to sample, in vLLM's order:
    1. logit_bias is added; eos_ids and stop_token_ids are banned while fewer than min_tokens outputs exist, and what
       would complete one of bad_words_token_ids after the outputs so far always; tokens outside the row's masks
       (allowed_token_ids, Batch.masks) are banned
    2. repetition_penalty r on every token of history[:p]: logit / r if positive, else logit * r;
       frequency_penalty * (times among the outputs) and presence_penalty (if among the outputs) are subtracted.
       Only the row's own history counts, so several rows of one slot (speculation) are each exact
    3. temperature below 1e-5: the likeliest token, ties to the lowest id. Otherwise z = (logit - largest) / temperature
    4. min_p, then top_k, then top_p: each is a cut on z, and tokens tied with the last kept are kept.
       min_p keeps z >= log(min_p); top_k the k largest; top_p, among those left, the tokens for which the
       probability of all likelier ones is below top_p
    5. the token with the largest z + Gumbel noise (ops/noise.py), ties to the lowest id
So a token depends on its row's logits, history, parameters, seed, choice and position, and on nothing else.
If everything is banned, the likeliest token of the raw logits that no mask bars is taken.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.batch import BatchOutput, BoolArray, FloatArray, IntArray, TokenMasks, WordArray
from headrace.core.request import SamplingParams
from headrace.ops import noise
from headrace.ops.token_masks import BadWords, barred_by, mask_of

GREEDY_BELOW = 1e-5
MIN_LOGPROB = -9999.0
"""Log-probabilities are finite: a token that the model gives no probability gets this."""
WEIGHT_ONE = 2.0**30
"""Probabilities are summed as integers in this unit, so that a sum does not depend on its order."""


class SamplingTable:
    """Parameters by slot, struct of arrays [num_slots]; the arrays never move, so kernels bind them once."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self.num_slots = num_slots
        self.vocab_size = vocab_size
        self.temperature: FloatArray = np.zeros(num_slots, np.float32)
        self.top_p: FloatArray = np.ones(num_slots, np.float32)
        self.min_p: FloatArray = np.zeros(num_slots, np.float32)
        self.repetition: FloatArray = np.ones(num_slots, np.float32)
        self.frequency: FloatArray = np.zeros(num_slots, np.float32)
        self.presence: FloatArray = np.zeros(num_slots, np.float32)
        self.top_k: IntArray = np.zeros(num_slots, np.int32)
        self.prompt_len: IntArray = np.zeros(num_slots, np.int32)
        self.choice: IntArray = np.zeros(num_slots, np.int32)
        self.seed: npt.NDArray[np.uint64] = np.zeros(num_slots, np.uint64)
        self._bias: dict[int, tuple[IntArray, FloatArray]] = {}
        self._bans: dict[int, tuple[IntArray, FloatArray, int]] = {}
        self._allowed: dict[int, WordArray] = {}
        self._bad_words: dict[int, BadWords] = {}

    def set(
        self,
        slot: int,
        params: SamplingParams,
        *,
        seed: int,
        choice: int,
        prompt_len: int,
        eos_ids: tuple[int, ...] = (),
    ) -> None:
        """A request takes the slot. Token ids must lie in the vocabulary (SamplingParams.check_vocabulary)."""
        self.clear(slot)
        self.temperature[slot] = params.temperature
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p if params.min_p > np.finfo(np.float32).tiny else 0.0
        self.top_k[slot] = params.top_k if 0 < params.top_k < self.vocab_size else 0
        self.repetition[slot] = params.repetition_penalty
        self.frequency[slot] = params.frequency_penalty
        self.presence[slot] = params.presence_penalty
        self.seed[slot] = seed & 0xFFFFFFFFFFFFFFFF
        self.choice[slot] = choice
        self.prompt_len[slot] = prompt_len
        if params.logit_bias:
            ids = np.fromiter(params.logit_bias.keys(), np.int32)
            self._bias[slot] = ids, np.fromiter(params.logit_bias.values(), np.float32)
        banned = np.unique(np.array([*eos_ids, *params.stop_token_ids], np.int32))
        if params.min_tokens > 0 and banned.size:
            until = prompt_len + params.min_tokens
            self._bans[slot] = banned, np.full(banned.size, -np.inf, np.float32), until
        if params.allowed_token_ids is not None:
            self._allowed[slot] = mask_of(params.allowed_token_ids, self.vocab_size)
        if params.bad_words_token_ids:
            self._bad_words[slot] = BadWords(params.bad_words_token_ids)

    def clear(self, slot: int) -> None:
        """The slot is free again."""
        self.temperature[slot] = 0.0
        self.top_p[slot] = 1.0
        self.min_p[slot] = 0.0
        self.top_k[slot] = 0
        self.repetition[slot] = 1.0
        self.frequency[slot] = 0.0
        self.presence[slot] = 0.0
        self._bias.pop(slot, None)
        self._bans.pop(slot, None)
        self._allowed.pop(slot, None)
        self._bad_words.pop(slot, None)

    def masks(self, slots: IntArray, given: TokenMasks | None) -> TokenMasks | None:
        """The masks of each row: `given` ones, and those of allowed_token_ids. None, the common case, for none."""
        if not self._allowed:
            return given
        row: IntArray = np.full(len(slots), -1, np.int32) if given is None else given.row.copy()
        bits = [] if given is None else list(given.bits)
        for i, slot in enumerate(slots.tolist()):
            if slot in self._allowed:
                bits.append(self._allowed[slot] if row[i] < 0 else self._allowed[slot] & bits[row[i]])
                row[i] = len(bits) - 1
        return TokenMasks(row, np.stack(bits)) if bits else None

    def adjustments(
        self, slots: IntArray, positions: IntArray, history: IntArray
    ) -> tuple[IntArray, IntArray, FloatArray] | None:
        """What is added to which logits before penalties, as compressed rows: (offset int32 [m + 1], token ids,
        values; -inf for a ban). None, the common case, if no slot has a bias or a ban."""
        if not (self._bias or self._bans or self._bad_words):
            return None
        offset = np.zeros(len(slots) + 1, np.int32)
        ids: list[IntArray] = [np.zeros(0, np.int32)]
        values: list[FloatArray] = [np.zeros(0, np.float32)]
        for row, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
            offset[row + 1] = offset[row]
            if slot in self._bias:
                bias_ids, bias = self._bias[slot]
                ids.append(bias_ids)
                values.append(bias)
                offset[row + 1] += len(bias_ids)
            if slot in self._bans and position < self._bans[slot][2]:
                banned, infinities, _ = self._bans[slot]
                ids.append(banned)
                values.append(infinities)
                offset[row + 1] += len(banned)
            if slot in self._bad_words:
                ends = self._bad_words[slot].ends(history[slot, self.prompt_len[slot] : position])
                ids.append(ends)
                values.append(np.full(len(ends), -np.inf, np.float32))
                offset[row + 1] += len(ends)
        return offset, np.concatenate(ids), np.concatenate(values)


class Sampler(Protocol):
    """Samples or scores logit rows; one object serves one SamplingTable."""

    def run(
        self,
        step: int,
        logits: FloatArray,
        slots: IntArray,
        positions: IntArray,
        sample: BoolArray,
        top: IntArray,
        history: IntArray,
        masks: TokenMasks | None = None,
    ) -> BatchOutput:
        """logits float32 [m, vocab]; of each row: slots int32 [m], positions int32 [m] (the index of the token that
        the row predicts: Batch.logit_position + 1), sample bool [m] (False: score history[slot, position]),
        top int32 [m] (as Batch.logit_top). history int32 [num_slots, max_len]: known tokens by slot; a sampling
        row reads those before its position. Nothing but the returned BatchOutput is written.

        A row with a NaN, or whose largest logit is not finite, is failed: its token is 0. Rows that failed or did
        not ask for log-probabilities have rank 0."""
        ...


class ReferenceSampler:
    """The definition, row by row in numpy."""

    def __init__(self, table: SamplingTable) -> None:
        self._table = table

    def run(
        self,
        step: int,
        logits: FloatArray,
        slots: IntArray,
        positions: IntArray,
        sample: BoolArray,
        top: IntArray,
        history: IntArray,
        masks: TokenMasks | None = None,
    ) -> BatchOutput:
        rows = len(slots)
        output = empty_output(step, rows, int(top.max(initial=-1)))
        adjustments = self._table.adjustments(slots, positions, history)
        masks = self._table.masks(slots, masks)
        for row in range(rows):
            logit, slot, position = logits[row], int(slots[row]), int(positions[row])
            if np.isnan(logit).any() or not np.isfinite(logit.max()):
                output.failed[row] = True
                continue
            if sample[row]:
                z = logit.copy()
                if adjustments is not None:
                    offset, ids, values = adjustments
                    chosen = slice(offset[row], offset[row + 1])
                    np.add.at(z, ids[chosen], values[chosen])
                barred = barred_by(masks, row, len(z))
                if barred is not None:
                    z[barred] = -np.inf
                self._penalize(z, slot, history[slot, :position])
                token = self._choose(z, slot, position) if z.max() > -np.inf else _likeliest(logit, barred)
            else:
                token = int(history[slot, position])
            output.tokens[row] = token
            if top[row] >= 0:
                _score(output, row, logit, token, int(top[row]))
        return output

    def _penalize(self, z: FloatArray, slot: int, known: IntArray) -> None:
        table = self._table
        repetition, frequency, presence = table.repetition[slot], table.frequency[slot], table.presence[slot]
        if repetition != 1:
            seen = np.unique(known)
            z[seen] = np.where(z[seen] > 0, z[seen] / repetition, z[seen] * repetition)
        if frequency != 0 or presence != 0:
            ids, counts = np.unique(known[table.prompt_len[slot] :], return_counts=True)
            z[ids] = z[ids] - frequency * counts.astype(np.float32) - presence

    def _choose(self, z: FloatArray, slot: int, position: int) -> int:
        table = self._table
        if table.temperature[slot] < np.float32(GREEDY_BELOW) or z.max() == np.inf:
            return int(z.argmax())
        z = (z - z.max()) / table.temperature[slot]
        cut = np.float32(-np.inf)
        if table.min_p[slot] > 0:
            cut = noise.log(table.min_p[slot : slot + 1])[0]
        if table.top_k[slot] > 0:
            cut = max(cut, np.partition(z, -table.top_k[slot])[-table.top_k[slot]])
        if table.top_p[slot] < 1:
            cut = max(cut, _top_p_cut(z[z >= cut], table.top_p[slot]))
        noisy = z + noise.gumbel_row(int(table.seed[slot]), int(table.choice[slot]), position, len(z))
        return int(np.where(z >= cut, noisy, np.float32(-np.inf)).argmax())


def _likeliest(logit: FloatArray, barred: BoolArray | None) -> int:
    """The likeliest token that no mask bars, or the likeliest of all if it bars every one."""
    if barred is None or barred.all():
        return int(logit.argmax())
    return int(np.flatnonzero(~barred)[logit[~barred].argmax()])


def empty_output(step: int, rows: int, top: int) -> BatchOutput:
    """A BatchOutput to be filled: top is the largest logit_top, -1 for no log-probabilities."""
    tokens, failed = np.zeros(rows, np.int32), np.zeros(rows, np.bool_)
    if top < 0:
        return BatchOutput(step, tokens, failed)
    return BatchOutput(
        step,
        tokens,
        failed,
        logprob=np.full(rows, MIN_LOGPROB, np.float32),
        rank=np.zeros(rows, np.int32),
        top_ids=np.full((rows, top), -1, np.int32),
        top_logprobs=np.full((rows, top), -np.inf, np.float32),
    )


def _weights(z: FloatArray) -> npt.NDArray[np.int64]:
    """exp(z) for z <= 0 in units of 1 / WEIGHT_ONE."""
    return (noise.exp(z) * np.float32(WEIGHT_ONE) + np.float32(0.5)).astype(np.int64)


def _top_p_cut(z: FloatArray, top_p: np.float32) -> np.float32:
    values, place = np.unique(-z, return_inverse=True)
    weights = np.zeros(len(values), np.int64)
    np.add.at(weights, place, _weights(z))
    likelier = np.cumsum(weights) - weights
    kept = likelier.astype(np.float64) < np.float64(top_p) * np.float64(weights.sum())
    return np.float32(-values[kept][-1])


def _score(output: BatchOutput, row: int, logit: FloatArray, token: int, top: int) -> None:
    assert output.logprob is not None and output.rank is not None
    assert output.top_ids is not None and output.top_logprobs is not None
    shifted = logit - logit.max()
    total = np.float32(_weights(shifted).sum()) * np.float32(1 / WEIGHT_ONE)
    logprobs = np.maximum(shifted - noise.log(np.array([total], np.float32)), np.float32(MIN_LOGPROB))
    likelier = np.count_nonzero(logit > logit[token]) + np.count_nonzero(logit[:token] == logit[token])
    output.logprob[row] = logprobs[token]
    output.rank[row] = 1 + likelier
    ids = np.argsort(-logit, kind="stable")[:top]
    output.top_ids[row, : len(ids)] = ids
    output.top_logprobs[row, : len(ids)] = logprobs[ids]
