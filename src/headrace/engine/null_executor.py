"""NullExecutor: a whole device in a page. It has slots, block tables and a KV memory, but a position's KV is one
64-bit number made of its token and of everything read back, through the block table, for the positions before it;
the next token is made of the same. A wrong block, a stale one, a false hit or a lost edit therefore changes
tokens. expected_tokens() says what a request must generate, without blocks or batches.

Steps run when collected, as late as they may, so that an engine which still writes to a submitted batch is seen.
With a pace it keeps the time that its steps would take, and lets steps be taken as one while nothing can happen
between them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.core.batch import Batch, BatchOutput, CopyKind, DraftTokens, IntArray, SlotJoin
from headrace.core.request import Request
from headrace.engine.executor import Capacity
from headrace.engine.null_disk import NullDisk
from headrace.policy.latency import Prior, StepWork

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Faults:
    """Tokens that make trouble when their position is computed: nan_token's row fails, crash_token's step raises."""

    nan_token: int | None = None
    crash_token: int | None = None


class NullExecutor:
    """pace: seconds that a step takes. time: what all steps took so far. longest: most steps that may be taken as one,
    all of them begun before `until`, which is when something is to happen. disk: below the host's memory, if anything
    is; it has a place in the capacity's tiers."""

    def __init__(
        self,
        capacity: Capacity,
        faults: Faults | None = None,
        *,
        pace: Prior | None = None,
        longest: int = 1,
        disk: NullDisk | None = None,
    ) -> None:
        self.time = 0.0
        self.until = float("inf")
        self._pace: Prior = pace or (lambda work: 0.0)
        self._longest = longest
        self._next_work: StepWork | None = None
        self._capacity = capacity
        self._faults = faults or Faults()
        width = -(-capacity.max_model_len // capacity.block_size)
        shapes = [(blocks, capacity.block_size) for blocks in capacity.num_blocks]
        self._cells: list[npt.NDArray[np.uint64]] = [np.zeros(shape, np.uint64) for shape in shapes]
        below = capacity.tiers.host_blocks if capacity.tiers is not None else ()
        self._host: list[npt.NDArray[np.uint64]] = [np.zeros((n, capacity.block_size), np.uint64) for n in below]
        self._disk = disk
        self._tables = [np.zeros((capacity.num_slots, width), np.int32) for _ in capacity.num_blocks]
        self._joins: dict[int, SlotJoin] = {}
        self._tokens: dict[int, list[int]] = {}
        self._submitted: deque[Batch] = deque()

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def submit(self, batch: Batch) -> None:
        self._submitted.append(batch)

    def collect(self) -> BatchOutput:
        batch = self._submitted.popleft()
        if batch.steps == 1:
            return self._run(batch)
        outputs = [self._run(one) for one in batch.one_by_one()]
        tokens, failed = [output.tokens for output in outputs], [output.failed for output in outputs]
        return BatchOutput(batch.step, np.concatenate(tokens), np.concatenate(failed))

    def _run(self, batch: Batch) -> BatchOutput:
        self._apply_changes(batch)
        if batch.drafts is not None:
            self._write_drafts(batch.drafts)
        work = StepWork.of(batch)
        self.time += self._pace(work)
        self._next_work = work.later(1) if work.tokens == work.requests else None
        entries = list(zip(batch.slots.tolist(), batch.starts.tolist(), batch.counts.tolist(), strict=True))
        for slot, start, count in entries:
            if self._faults.crash_token in self._tokens[slot][start : start + count]:
                raise RuntimeError(f"slot {slot} computes token {self._faults.crash_token}")
        # after[e][i]: the state after the i-th position of entry e.
        after = [self._compute(slot, start, count) for slot, start, count in entries]
        num_rows, width = len(batch.logit_entry), max(0, int(batch.logit_top.max(initial=-1)))
        tokens: IntArray = np.zeros(num_rows, np.int32)
        failed = np.zeros(num_rows, np.bool_)
        logprob, rank = np.zeros(num_rows, np.float32), np.ones(num_rows, np.int32)
        top_ids: IntArray = np.full((num_rows, width), -1, np.int32)
        top_logprobs = np.full((num_rows, width), -np.inf, np.float32)
        for row, (entry, position) in enumerate(
            zip(batch.logit_entry.tolist(), batch.logit_position.tolist(), strict=True)
        ):
            slot, start, _ = entries[entry]
            state = after[entry][position - start]
            failed[row] = self._tokens[slot][position] == self._faults.nan_token
            if batch.logit_sample[row]:
                token = _sample(state, self._joins[slot], position + 1, self._capacity.vocab_size)
                self._tokens[slot][position + 1 :] = [token, *self._tokens[slot][position + 2 :]]
            tokens[row] = self._tokens[slot][position + 1]
            logprob[row], likeliest = likelihoods(state, int(tokens[row]), self._capacity.vocab_size, width)
            for column, (token, value) in enumerate(likeliest[: max(0, int(batch.logit_top[row]))]):
                top_ids[row, column], top_logprobs[row, column] = token, value
        if not (batch.logit_top >= 0).any():
            return BatchOutput(batch.step, tokens, failed)
        return BatchOutput(batch.step, tokens, failed, logprob, rank, top_ids, top_logprobs)

    def horizon(self) -> int:
        """How many steps like the last one begin before `until`, if none of them can bring a stop."""
        stops = any(join.eos_ids or join.params.stop_token_ids for join in self._joins.values())
        if self._longest == 1 or self._next_work is None or stops or self._faults != Faults():
            return 1
        steps, time = 0, self.time
        while steps < self._longest and time < self.until:
            time += self._pace(self._next_work.later(steps))
            steps += 1
        return max(1, steps)

    def _apply_changes(self, batch: Batch) -> None:
        for slot in batch.leaves:
            del self._joins[slot], self._tokens[slot]
        for join in batch.joins:
            self._joins[join.slot] = join
            self._tokens[join.slot] = join.tokens.tolist()
        edits = batch.edits
        for slot, group, index, block in zip(edits.slot, edits.group, edits.index, edits.block, strict=True):
            self._tables[group][slot, index] = block
        copies = batch.copies
        for kind, group, source, destination in zip(
            copies.kind, copies.group, copies.source, copies.destination, strict=True
        ):
            origin = self._host if kind == CopyKind.UP else self._cells
            target = self._host if kind == CopyKind.DOWN else self._cells
            target[group][destination] = origin[group][source]
        if self._disk is not None:
            self._disk.begin(batch.transfers, self._host)

    def _write_drafts(self, drafts: DraftTokens) -> None:
        columns = drafts.slot.tolist(), drafts.position.tolist(), drafts.token.tolist()
        for slot, position, token in zip(*columns, strict=True):
            del self._tokens[slot][position:]
            self._tokens[slot].append(token)

    def _compute(self, slot: int, start: int, count: int) -> list[int]:
        size = self._capacity.block_size
        sums = [0] * len(self._cells)
        for group, window in enumerate(self._capacity.windows):
            seen = np.arange(0 if window is None else max(0, start - window + 1), start)
            cells = self._cells[group][self._tables[group][slot, seen // size], seen % size]
            sums[group] = int((cells * (2 * seen + 1).astype(np.uint64)).sum(dtype=np.uint64))
        states = []
        for position in range(start, start + count):
            before = _mix(*sums)
            for group, cells in enumerate(self._cells):
                table = self._tables[group][slot]
                at = (table[position // size], position % size)
                cells[at] = _mix(before, self._tokens[slot][position], position, group)
                sums[group] += int(cells[at]) * (2 * position + 1)
            states.append(_mix(*sums))
            for group, window in enumerate(self._capacity.windows):
                if window is not None and (last := position - window + 1) >= 0:
                    cell = self._cells[group][self._tables[group][slot, last // size], last % size]
                    sums[group] -= int(cell) * (2 * last + 1)
        return states


def expected_tokens(request: Request, vocab_size: int, windows: Sequence[int | None] = (None,)) -> list[int]:
    """What NullExecutor must generate for this request after its output_ids, whatever runs beside it."""
    tokens = [*request.prompt_ids, *request.output_ids]
    first = len(tokens)
    limit = len(request.prompt_ids) + request.max_tokens
    join = SlotJoin(
        0,
        np.zeros(0, np.int32),
        len(request.prompt_ids),
        request.params,
        request.seed,
        request.choice,
        request.eos_ids,
    )
    cells: list[list[int]] = [[] for _ in windows]
    stops = {*request.eos_ids, *request.params.stop_token_ids}
    position = 0
    while len(tokens) < limit:
        before = _mix(*(_visible(c, position, w) for c, w in zip(cells, windows, strict=True)))
        for group, known in enumerate(cells):
            known.append(_mix(before, tokens[position], position, group))
        position += 1
        if position == len(tokens):
            state = _mix(
                *(_visible(c, position, None if w is None else w + 1) for c, w in zip(cells, windows, strict=True))
            )
            tokens.append(_sample(state, join, position, vocab_size))
            if tokens[-1] in stops and len(tokens) - join.prompt_len > request.params.min_tokens:
                break
    return tokens[first:]


def likelihoods(state: int, token: int, vocab_size: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """A made-up log-probability for a token, and the `top` likeliest tokens."""
    value = -(_mix(state, token) % 4096) / 512
    return value, [(_mix(state, rank) % vocab_size, -0.5 * rank) for rank in range(top)]


def _visible(cells: list[int], position: int, window: int | None) -> int:
    """The sum that a token at `position` reads back from the positions before it."""
    first = 0 if window is None else max(0, position - window + 1)
    return sum(cells[p] * (2 * p + 1) for p in range(first, position))


def _sample(state: int, join: SlotJoin, index: int, vocab_size: int) -> int:
    """Token `index` of a sequence. Stop tokens are passed over until min_tokens exist."""
    barred: set[int] = set()
    if index - join.prompt_len < join.params.min_tokens:
        barred = {*join.eos_ids, *join.params.stop_token_ids}
    token = _mix(state, join.seed, join.choice, index) % vocab_size
    while token in barred and len(barred) < vocab_size:
        token = (token + 1) % vocab_size
    return token


def _mix(*values: int) -> int:
    """A 64-bit hash of integers (splitmix64's finalizer, chained)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state ^ (value & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state
