"""LedgerDevice: a device that keeps books. Every KV cell holds the hash of the whole prefix that it stands for, salt
included, so a block shared wrongly, reused too early, not copied or copied wrongly is seen when it is read, or when
the tree is audited, and named. expected() says what a request must be sent, without blocks or batches.

Steps run when collected, as late as they may. What a step that follows a failed one writes is garbage, as it may be.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from headrace.core.batch import BatchOutput, CopyKind
from headrace.core.request import FinishReason

MASK = 2**61 - 1
GARBAGE = -1
COPIES = {
    CopyKind.DEVICE: "part of a block copied",
    CopyKind.DOWN: "swap: block copied down",
    CopyKind.UP: "swap: block copied up",
}


def step_hash(state: int, value: int) -> int:
    state = ((state ^ (value + 1)) * 0x9E3779B97F4A7C15 + 0x7F4A7C159E37) & MASK
    return state ^ (state >> 29)


def root_hash(salt: str) -> int:
    return step_hash(0, sum(ord(c) * 257**i for i, c in enumerate(salt)))


def chain_hashes(salt: str, tokens) -> list[int]:
    """chain[p]: what the KV cell of position p must hold."""
    state, chain = root_hash(salt), []
    for token in tokens:
        state = step_hash(state, token)
        chain.append(state)
    return chain


def sampled(state: int, request, index: int, vocab_size: int) -> int:
    """Token `index` of a request whose tokens before it hash to state. Stop tokens are passed over until min_tokens."""
    token = step_hash(step_hash(state, request.seed), request.choice) % vocab_size
    barred = ()
    if index - len(request.prompt_ids) < request.params.min_tokens:
        barred = {*request.eos_ids, *request.params.stop_token_ids}
    while token in barred and len(barred) < vocab_size:
        token = (token + 1) % vocab_size
    return token


def score(state: int, token: int) -> float:
    """A made-up log-probability, exact in float32."""
    return -(step_hash(state, token) % 4096) / 512


@dataclass(frozen=True)
class Expected:
    """tokens: all it must be sent. scores: prompt log-probabilities, for positions from 1 on."""

    tokens: list[int]
    reason: FinishReason
    logprobs: list[float]
    scores: list[float]


def expected(request, vocab_size: int) -> Expected:
    tokens = request.prompt_ids + request.output_ids
    first, limit = len(tokens), len(request.prompt_ids) + request.max_tokens
    chain = chain_hashes(request.cache_salt, tokens)
    scores = [score(chain[p - 1], tokens[p]) for p in range(1, len(request.prompt_ids))]
    stops = {*request.eos_ids, *request.params.stop_token_ids}
    logprobs, state, reason = [], chain[-1], FinishReason.LENGTH
    while len(tokens) < limit:
        token = sampled(state, request, len(tokens), vocab_size)
        logprobs.append(score(state, token))
        tokens.append(token)
        state = step_hash(state, token)
        if token in stops and len(tokens) - len(request.prompt_ids) > request.params.min_tokens:
            reason = FinishReason.STOP
            break
    return Expected(tokens[first:], reason, logprobs, scores)


@dataclass
class Tenant:
    """Who has a slot: tokens known to the device, their hashes, and the next position to compute. drafted: of the
    positions before that, how many may have to be computed again."""

    request: object
    tokens: list[int]
    chain: list[int]
    next: int | None = None
    drafted: int = 0

    def put(self, position: int, token: int) -> None:
        """What came after it means nothing."""
        del self.tokens[position:], self.chain[position:]
        self.tokens.append(token)
        self.chain.append(step_hash(self.chain[-1], token))


@dataclass
class Faults:
    """crash: seed -> position whose computing raises. nan: seed -> position whose row fails. flaky: steps that raise
    once, whatever they compute."""

    crash: dict[int, int] = field(default_factory=dict)
    nan: dict[int, int] = field(default_factory=dict)
    flaky: int = 0


class LedgerDevice:
    """requests: by seed, which is each request's own. wrong: what was found wrong; nothing raises, since an engine
    forgives a device that does. longest: most steps that may be taken as one, where none can bring a stop or fail.
    disk: a NullDisk or LateDisk below the host's memory, if the capacity has tiers."""

    def __init__(self, capacity, budget: int, longest: int = 1, disk=None) -> None:
        self._capacity = capacity
        self._budget = budget
        self._longest = longest
        self.faults = Faults()
        self.requests: dict[int, object] = {}
        self.wrong: list[str] = []
        self.joined: list[tuple[object, int]] = []
        self._seen: list[str] = []
        size, width = capacity.block_size, -(-capacity.max_model_len // capacity.block_size)
        self.cells = [np.full((n, size), GARBAGE, np.int64) for n in capacity.num_blocks]
        below = capacity.tiers.host_blocks if capacity.tiers is not None else ()
        self.host = [np.full((n, size), GARBAGE, np.int64) for n in below]
        self._disk = disk
        self._tables = [np.full((capacity.num_slots, width), -1, np.int32) for _ in capacity.num_blocks]
        self._table_epochs = [np.zeros((capacity.num_slots, width), np.int32) for _ in capacity.num_blocks]
        self._epochs = [np.zeros(n, np.int32) for n in capacity.num_blocks]
        self._writers: list[dict[int, tuple[int, Tenant]]] = [{} for _ in capacity.num_blocks]
        self._tenants: dict[int, Tenant] = {}
        self._submitted: deque = deque()
        self._void = 0
        self._epochs_hold = True

    @property
    def capacity(self):
        return self._capacity

    def arriving(self) -> set[tuple[int, int]]:
        """(group, block) that a step under way copies something to before it computes."""
        copies = [batch.copies for batch in self._submitted]
        return {pair for one in copies for pair in zip(one.group.tolist(), one.destination.tolist(), strict=True)}

    def take_seen(self) -> list[str]:
        """What came up since the last call."""
        seen, self._seen = self._seen, []
        return seen

    def horizon(self) -> int:
        asked = [tenant.request for tenant in self._tenants.values()]
        stops = any(r.eos_ids or r.params.stop_token_ids or r.seed in self.faults.nan for r in asked)
        return 1 if stops or self.faults.crash or self.faults.flaky else self._longest

    def submit(self, batch) -> None:
        self._submitted.append(batch)

    def collect(self) -> BatchOutput:
        batch = self._submitted.popleft()
        # Of several steps taken as one, all edits come first, also those of blocks that change hands on the way.
        self._epochs_hold = batch.steps == 1
        if batch.steps > 1:
            outputs = [self._run(one) for one in batch.one_by_one()]
            tokens, failed = [output.tokens for output in outputs], [output.failed for output in outputs]
            return BatchOutput(batch.step, np.concatenate(tokens), np.concatenate(failed))
        return self._run(batch)

    def _run(self, batch) -> BatchOutput:
        self._apply(batch)
        entries = list(zip(batch.slots.tolist(), batch.starts.tolist(), batch.counts.tolist(), strict=True))
        drafts = batch.drafts
        if drafts is not None:
            self._seen.append("tokens guessed ahead")
            columns = drafts.slot.tolist(), drafts.position.tolist(), drafts.token.tolist()
            for slot, position, token in zip(*columns, strict=True):
                self._tenants[slot].put(position, token)
        if self._void:
            self._void -= 1
            return self._spoil(batch, entries)
        if self.faults.flaky:
            self.faults.flaky -= 1
            self._fail("a fault of the moment")
        for slot, start, count in entries:
            at = self.faults.crash.get(self._tenants[slot].request.seed, -1)
            if start <= at < start + count:
                self._fail(f"slot {slot} computes position {at}")
        self._check(batch, entries)
        for slot, start, count in entries:
            self._compute(slot, start, count)
        return self._rows(batch, entries)

    def _fail(self, message: str) -> None:
        """The step has applied its changes and no more. Those begun after it run on what it did not compute."""
        self._void = len(self._submitted)
        raise RuntimeError(message)

    def _apply(self, batch) -> None:
        for slot in batch.leaves:
            if self._tenants.pop(slot, None) is None:
                self.wrong.append(f"slot {slot} is left but was not taken")
        for join in batch.joins:
            if join.slot in self._tenants:
                self.wrong.append(f"slot {join.slot} is taken before it was left")
            request, tokens = self.requests[join.seed], join.tokens.tolist()
            self._tenants[join.slot] = Tenant(request, tokens, chain_hashes(request.cache_salt, tokens))
        fresh = {join.slot for join in batch.joins}
        edits = batch.edits
        for slot, group, index, block, epoch in zip(
            *(getattr(edits, name).tolist() for name in ("slot", "group", "index", "block", "epoch")), strict=True
        ):
            if epoch < self._epochs[group][block]:
                self.wrong.append(f"block {group}:{block} goes back to epoch {epoch}")
            elif epoch == self._epochs[group][block] and slot not in fresh:
                self._seen.append("block turned to an equal one")
            self._epochs[group][block] = epoch
            self._tables[group][slot, index] = block
            self._table_epochs[group][slot, index] = epoch
        copies = batch.copies
        for kind, group, source, destination in zip(
            *(getattr(copies, name).tolist() for name in ("kind", "group", "source", "destination")), strict=True
        ):
            self._seen.append(COPIES[kind])
            origin = self.host if kind == CopyKind.UP else self.cells
            target = self.host if kind == CopyKind.DOWN else self.cells
            target[group][destination] = origin[group][source]
        if self._disk is not None:
            self._disk.begin(batch.transfers, self.host)

    def _check(self, batch, entries) -> None:
        # A step may do nothing but move blocks.
        moves = len(batch.copies.kind) or batch.transfers
        if not (batch.num_tokens > 0 or moves) or batch.num_tokens > self._budget:
            self.wrong.append(f"step {batch.step} computes {batch.num_tokens} tokens of {self._budget}")
        if len(set(batch.slots.tolist())) != len(entries):
            self.wrong.append(f"step {batch.step} has a slot twice")
        for slot, start, count in entries:
            tenant = self._tenants[slot]
            if tenant.next is None:
                self.joined.append((tenant.request, start))
            elif not tenant.next - tenant.drafted <= start <= tenant.next:
                self.wrong.append(f"slot {slot} computes position {start} instead of {tenant.next}")
            tenant.next = start + count
            tenant.drafted = 0 if batch.drafts is None else int((batch.drafts.slot == slot).sum())
            if start + count > len(tenant.tokens):
                self.wrong.append(f"slot {slot} computes position {start + count - 1} of {len(tenant.tokens)} tokens")

    def _compute(self, slot: int, start: int, count: int) -> None:
        """Read what the first position sees, write each position's hash."""
        size, tenant, end = self._capacity.block_size, self._tenants[slot], start + count
        for group, window in enumerate(self._capacity.windows):
            table, epochs = self._tables[group][slot], self._table_epochs[group][slot]
            first = 0 if window is None else max(0, start - window + 1)
            used = slice(first // size, -(-end // size))
            blocks = table[used]
            if (blocks < 0).any():
                self.wrong.append(f"slot {slot} has no block for some of positions {first} to {end - 1}")
                return
            if self._epochs_hold and (epochs[used] != self._epochs[group][blocks]).any():
                self.wrong.append(f"slot {slot} uses a block of group {group} that has changed hands")
            base = used.start * size
            seen = self.cells[group][blocks].reshape(-1)
            if seen[first - base : start - base].tolist() != tenant.chain[first:start]:
                self.wrong.append(f"slot {slot} reads what is not its own prefix before position {start}")
            for index in range(start // size, used.stop):
                self._write_to(group, int(table[index]), tenant, slot)
            at = np.arange(start, end)
            self.cells[group][table[at // size], at % size] = tenant.chain[start:end]

    def _write_to(self, group: int, block: int, tenant: Tenant, slot: int) -> None:
        """Whoever writes to a block first is its only writer until its epoch rises."""
        epoch = int(self._epochs[group][block])
        written, writer = self._writers[group].get(block, (0, None))
        if written == epoch and writer is not tenant:
            self.wrong.append(f"slot {slot} writes to block {group}:{block}, which is another's, or its epoch is old")
        self._writers[group][block] = epoch, tenant

    def _rows(self, batch, entries) -> BatchOutput:
        rows, width = len(batch.logit_entry), max(0, int(batch.logit_top.max(initial=-1)))
        tokens, failed = np.zeros(rows, np.int32), np.zeros(rows, np.bool_)
        logprob = np.zeros(rows, np.float32)
        # As they were computed, guesses included, of which those after the first wrong one are forgotten.
        before = {slot: (list(self._tenants[slot].tokens), list(self._tenants[slot].chain)) for slot, _, _ in entries}
        for row, (entry, position, samples) in enumerate(
            zip(batch.logit_entry.tolist(), batch.logit_position.tolist(), batch.logit_sample.tolist(), strict=True)
        ):
            slot, start, count = entries[entry]
            tenant = self._tenants[slot]
            if not start <= position < start + count:
                self.wrong.append(f"slot {slot} wants logits of position {position}, which is not computed")
            failed[row] = self.faults.nan.get(tenant.request.seed) == position
            known, chain = before[slot]
            state = chain[position]
            tokens[row] = token = (
                sampled(state, tenant.request, position + 1, self._capacity.vocab_size)
                if samples
                else known[position + 1]
            )
            if samples and tenant.tokens[position + 1 : position + 2] != [token] and position < len(tenant.tokens):
                if position + 1 < len(tenant.tokens):
                    self._seen.append("a wrong guess taken back")
                tenant.put(position + 1, token)
            logprob[row] = score(state, int(tokens[row]))
        return self._output(batch, tokens, failed, logprob, width)

    def _output(self, batch, tokens, failed, logprob, width) -> BatchOutput:
        if not (batch.logit_top >= 0).any():
            return BatchOutput(batch.step, tokens, failed)
        rank, shape = np.ones(len(tokens), np.int32), (len(tokens), width)
        none = np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32)
        return BatchOutput(batch.step, tokens, failed, logprob, rank, *none)

    def _spoil(self, batch, entries) -> BatchOutput:
        size = self._capacity.block_size
        for slot, start, count in entries:
            at = np.arange(start, start + count)
            for cells, tables in zip(self.cells, self._tables, strict=True):
                cells[tables[slot, at // size], at % size] = GARBAGE
        rows = len(batch.logit_entry)
        return self._output(batch, np.full(rows, 3, np.int32), np.zeros(rows, np.bool_), np.zeros(rows), 0)
