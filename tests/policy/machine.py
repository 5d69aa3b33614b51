"""The machine: an engine's policy over a LedgerDevice, driven by operations in any order, beside a simple model that
knows no block, slot or queue, only what each request must be sent and what must hold. Every operation ends with
check(); drain() ends a world and asks that nothing is left. What was done and seen is counted by name.

worlds.py draws operations from seeds; test_machine.py also has hypothesis draw them, which shrinks.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from tests.policy.audit import check_blocks, check_tree
from tests.policy.foresight import Foresight, FreeRows
from tests.policy.late_disk import LateDisk
from tests.policy.late_forms import LateForms
from tests.policy.ledger_device import Expected, LedgerDevice, chain_hashes, expected
from tests.policy.order import Order

from headrace.core.config import Config
from headrace.core.disk import TierSizes
from headrace.core.errors import OverloadedError, RequestError
from headrace.core.request import ErrorCode, FinishReason, Request, RequestState, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity

MAX_LEN = 40
MAX_QUEUED = 12
STEMS = ([1, 2, 3, 0, 1, 2] * 6, [2, 2, 1, 0, 3, 3] * 6)
PATIENCE = 40
FIELDS = ("eos_ids", "cache_salt", "choice", "priority", "tenant", "deadline", "cache_hint")


class Wrong(AssertionError):
    """Something that must hold does not."""


@dataclass(frozen=True)
class Shape:
    """What an engine is made of."""

    slots: int = 4
    block_size: int = 4
    blocks: tuple[int, ...] = (14,)
    windows: tuple[int | None, ...] = (None,)
    vocab_size: int = 4
    budget: int = 16
    depth: int = 1
    caching: bool = True
    longest: int = 1
    host: int = 0
    disk: int = 0
    wrong: int | None = None
    """Every how many-th token is guessed wrongly, 0 for none; None: nothing is guessed."""

    @classmethod
    def drawn(cls, draw: random.Random) -> Shape:
        size, depth, budget = draw.choice([2, 4, 16]), draw.choice([1, 2, 2, 3]), draw.choice([1, 3, 5, 16, 64])
        windows = draw.choice([(None,), (None,), (None,), (None, 5), (7,), (None, 17)])
        least = -(-MAX_LEN // size)
        blocks = least + draw.choice([0, 1, 3, 6, 500])
        counts = tuple(blocks if w is None else max(blocks, (w + budget * depth) // size + 3) for w in windows)
        slots, vocab = draw.choice([1, 2, 4, 6]), draw.choice([4, 1000])
        caching, longest = draw.random() < 0.85, draw.choice([1, 1, 7])
        host, disk = draw.choice([(0, 0), (0, 0), (6, 0), (30, 0), (12, 20), (8, 200)])
        wrong = draw.choice([None, None, 0, 2, 3, 7])
        return cls(slots, size, counts, windows, vocab, budget, depth, caching, longest, host, disk, wrong)


@dataclass
class Asked:
    """A request, what it must be sent, and what it was sent. turn: operations since it last moved on."""

    request: Request
    expected: Expected
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    aborted: bool = False
    cached: int = 0


class World:
    """One engine and everything that was asked of it. seen: how often each operation and state came up."""

    def __init__(self, shape: Shape, seen: Counter | None = None) -> None:
        self.shape = shape
        self.seen = Counter() if seen is None else seen
        self.asked: list[Asked] = []
        self.by_id: dict[str, Asked] = {}
        self.live: dict[str, Asked] = {}
        self.operations = 0
        self.under_way = 0
        self.now = 0.0
        # Hashes of the prefixes that finished requests left behind.
        self.kept: set[int] = set()
        self.least: dict[str, int] = {}
        self.disk = LateDisk(seed=shape.budget)
        self._begin_engine()

    def _begin_engine(self) -> None:
        shape = self.shape
        groups, size = len(shape.windows), shape.block_size * 8
        tiers = None
        if shape.host:
            tiers = TierSizes((shape.host,) * groups, (size,) * groups, shape.disk * size, idle_s=0.05)
        has = Capacity(shape.slots, shape.block_size, shape.blocks, shape.windows, MAX_LEN, shape.vocab_size, tiers)
        disk = self.disk if shape.disk else None
        self.device = LedgerDevice(has, shape.budget, shape.longest, disk)
        self.forms = LateForms(seed=shape.slots)
        self.engine = Engine(
            self.device,
            Config(
                max_num_batched_tokens=shape.budget,
                pipeline_depth=shape.depth,
                enable_prefix_caching=shape.caching,
                max_queued_requests=MAX_QUEUED,
            ),
            disk=disk,
            forms=self.forms,
            drafter=None if shape.wrong is None else Foresight(self.asked, shape.wrong, shape.block_size),
            fingerprint="machine",
        )
        if self.engine._speculation is not None:
            self.engine._speculation.cost = FreeRows()
        # No block was ever wanting, so none was ever evicted.
        self.roomy = True
        self.order = Order(self.engine, shape.budget, min(shape.blocks) > 150)
        self.under_way = 0

    # Operations

    def add(self, *, fault: str = "", replayed: int = 0, **asked) -> bool:
        """Ask for one sequence. fault: crash or nan, at its last prompt position or later."""
        self._did("add")
        prompt = asked.pop("prompt")
        max_tokens = asked.pop("max_tokens")
        fields = {k: asked.pop(k) for k in FIELDS if k in asked}
        stops = tuple(t for t in asked.pop("stop_token_ids", ()) if t < self.shape.vocab_size)
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=stops, **asked)
        seed = len(self.asked)
        request = Request(f"r{seed}", list(prompt), params, max_tokens, seed, **fields)
        whole = expected(request, self.shape.vocab_size)
        if 0 < replayed < len(whole.tokens):
            self._did("replay")
            request = Request(
                f"r{seed}", list(prompt), params, max_tokens, seed, output_ids=whole.tokens[:replayed], **fields
            )
            whole = expected(request, self.shape.vocab_size)
        one = Asked(request, whole)
        self.asked.append(one)
        self.device.requests[seed] = request
        try:
            self.engine.add(request, self._clock())
        except OverloadedError:
            self._saw("refused: queue full" if request.deadline is None else "refused: too late")
            if len(self.live) < MAX_QUEUED and request.deadline is None:
                raise Wrong("refused though few wait") from None
            return False
        if fault == "crash":
            self.device.faults.crash[seed] = len(prompt) + len(request.output_ids) - 1 + seed % 3
        elif fault == "nan":
            self.device.faults.nan[seed] = len(prompt) + len(request.output_ids) - 1 + seed % 3
        self.by_id[request.request_id] = self.live[request.request_id] = one
        self.check()
        return True

    def add_too_long(self) -> None:
        self._did("add_too_long")
        params = SamplingParams(max_tokens=MAX_LEN)
        try:
            self.engine.add(Request("long", [1, 2], params, MAX_LEN, 0), self._clock())
        except RequestError:
            self._saw("refused: never fits")
            return
        raise Wrong("a request that can never fit was taken")

    def abort(self, index: int) -> None:
        """Abort any request that was ever asked for."""
        self._did("abort")
        if not self.asked:
            return
        one = self.asked[index % len(self.asked)]
        name = one.request.request_id
        self._saw(f"abort: {self._state(one)}")
        if name in self.live:
            one.aborted = True
        self.engine.abort([name, "unknown"], self._clock())
        self.check()

    def abort_live(self, index: int) -> None:
        if self.live:
            self.abort(list(self.live.values())[index % len(self.live)].request.seed)

    def begin(self) -> bool:
        self.order.before()
        preempted = self.engine._scheduler.counters.preemptions
        cached = self._num_cached()
        began = self.engine.begin_step(self._clock())
        if self._num_cached() < cached:
            self._saw("cached block evicted")
        self.roomy = self.roomy and all(pool.num_free for pool in self.engine._blocks.pools)
        if began:
            self._did("begin")
            self.under_way += 1
            batch = self.engine._scheduler.steps[-1].batch
            self._expect_hits(batch)
            self._expect_forms(batch)
            seen, wrong = self.order.after(batch)
            for name in seen:
                self._saw(name)
            if wrong:
                raise Wrong(wrong)
            self._check_admission(preempted)
        elif not self.under_way and self._waits_for_nothing():
            raise Wrong("requests wait and nothing is begun")
        if self.under_way > 1:
            self._saw("steps under way: 2 or more")
        return began

    def finish(self) -> None:
        self._did("finish" if self.under_way else "finish nothing")
        flaky, crashes = self.device.faults.flaky, self.under_way
        for delta in self.engine.finish_step(self._clock):
            self._take(delta)
        self.under_way = len(self.engine._scheduler.steps)
        if crashes > self.under_way + 1:
            self._saw("recovery: several steps under way")
        if flaky > self.device.faults.flaky:
            self._saw("recovery: nobody at fault")
        self.check()

    def step(self) -> None:
        while self.begin():
            pass
        self.finish()

    def flaky(self) -> None:
        """The next step raises once."""
        self._did("flaky")
        self.device.faults.flaky = 1

    def restart(self) -> None:
        """The engine dies; a new one is given every request with what it has got."""
        self._did("restart")
        faults = self.device.faults
        again = list(self.live.values())
        self.disk.reopen()
        if self.shape.disk and self.disk.held:
            self._saw("restart with blocks on disk")
        self._begin_engine()
        self.device.faults.nan, self.device.faults.crash = faults.nan, faults.crash
        self.kept.clear()
        self.least.clear()
        for one in again:
            request = one.request
            done = request.output_ids + one.tokens
            replay = Request(
                request.request_id,
                request.prompt_ids,
                request.params,
                request.max_tokens,
                request.seed,
                request.choice,
                request.eos_ids,
                done,
                request.cache_salt,
                request.priority,
                request.tenant,
            )
            one.request = replay
            one.expected = expected(replay, self.shape.vocab_size)
            one.tokens, one.logprobs, one.scores = [], [], []
            self.device.requests[request.seed] = replay
            if one.aborted:
                # Its end was on its way when the engine died; nobody asks for it again.
                one.reason = FinishReason.ABORT
                del self.live[request.request_id]
                continue
            self.engine.add(replay, self._clock())
        self.check()

    def drain(self) -> None:
        """Run until nothing is left, in bounded time, and find everything free."""
        live = list(self.live.values())
        most = PATIENCE + 4 * sum(len(one.request.prompt_ids) + one.request.max_tokens + 4 for one in live)
        while self.engine.has_work:
            self.step()
            most -= 1
            if most < 0:
                raise Wrong(f"no end in sight: {self.engine.stats()}")
        if self.live:
            raise Wrong(f"never ended: {sorted(self.live)}")
        stats = self.engine.stats()
        if stats.blocks_used or stats.running or stats.waiting:
            raise Wrong(f"something is left: {stats}")
        if self.forms.held:
            raise Wrong(f"forms are held for nobody: {self.forms.held}")
        self._saw("drained")

    # What must hold

    def check(self) -> None:
        self.operations += 1
        if self.device.wrong:
            raise Wrong("; ".join(self.device.wrong[:3]))
        for name in (*self.device.take_seen(), *self.disk.seen):
            self._saw(name)
        self.disk.seen.clear()
        self._check_joins()
        self._audit()

    def _take(self, delta) -> None:
        one = self.live.get(delta.request_id)
        if one is None:
            raise Wrong(f"{delta.request_id} was sent something after its end, or was never asked for")
        one.tokens += delta.token_ids
        one.logprobs += [scored.logprob for scored in delta.logprobs or ()]
        one.scores += [scored.logprob for scored in delta.prompt_logprobs or ()]
        one.cached = max(one.cached, delta.cached_tokens)
        whole = one.expected
        if one.tokens != whole.tokens[: len(one.tokens)]:
            raise Wrong(f"{delta.request_id} was sent {one.tokens} instead of {whole.tokens}")
        if delta.finish_reason is not None:
            del self.live[delta.request_id]
            self._end(one, delta)

    def _end(self, one: Asked, delta) -> None:
        request, whole, reason = one.request, one.expected, delta.finish_reason
        one.reason = reason
        self._saw(f"end: {reason.value}")
        if reason is FinishReason.ERROR:
            if delta.code is ErrorCode.DEADLINE_EXCEEDED:
                if request.deadline is None or one.tokens:
                    raise Wrong(f"{request.request_id} was given up for a deadline")
                self._saw("end: deadline")
                return
            if request.seed not in self.device.faults.crash and request.seed not in self.device.faults.nan:
                raise Wrong(f"{request.request_id} ended with an error that was not its own: {delta.error}")
            self._saw("end: nan" if request.seed in self.device.faults.nan else "end: crash")
            return
        if reason is FinishReason.ABORT:
            if not one.aborted:
                raise Wrong(f"{request.request_id} was aborted by nobody")
            return
        if (one.tokens, reason) != (whole.tokens, whole.reason):
            raise Wrong(f"{request.request_id} ended by {reason} after {one.tokens}, expected {whole}")
        if request.params.logprobs is not None and one.logprobs != whole.logprobs:
            raise Wrong(f"{request.request_id} was sent log-probabilities {one.logprobs}, not {whole.logprobs}")
        owed = request.params.prompt_logprobs is not None and len(request.output_ids) < request.max_tokens
        owed |= request.params.prompt_logprobs is not None and not request.output_ids
        if owed and one.scores != whole.scores:
            raise Wrong(f"{request.request_id} was sent prompt scores {one.scores}, not {whole.scores}")
        if one.scores:
            self._saw("prompt scored")
        if not whole.tokens:
            self._saw("end: no token wanted")
        if one.tokens or one.scores:
            tokens = request.prompt_ids + request.output_ids + one.tokens
            self.kept.update(chain_hashes(request.cache_salt, tokens[:-1]))

    def _check_joins(self) -> None:
        """Hits are at least what finished requests left, to the token."""
        joined, self.device.joined = self.device.joined, []
        for request, start in joined:
            one = self.by_id[request.request_id]
            tokens = request.prompt_ids + request.output_ids + one.tokens
            if start:
                self._saw("prefix hit")
                if not self.shape.caching:
                    raise Wrong(f"{request.request_id} hit a cache that is off")
            if start >= len(tokens) + self.under_way:
                raise Wrong(f"{request.request_id} begins at {start} of {len(tokens)} tokens")
            least = self.least.pop(request.request_id, 0)
            if start < least:
                raise Wrong(f"{request.request_id} found {start} tokens cached, {least} are kept")

    def _expect_hits(self, batch) -> None:
        """Where nothing was ever evicted, a request that joins finds at least what finished ones left."""
        if not self.shape.caching or not self.roomy or self.shape.windows != (None,):
            return
        for join in batch.joins:
            one = self.by_id[f"r{join.seed}"]
            self.least[one.request.request_id] = self._longest_kept(one, join.tokens.tolist())

    def _expect_forms(self, batch) -> None:
        """Nobody joins before its form is there, and nobody without a form waits for one."""
        if self.engine._scheduler.num_forming:
            self._saw("a wait for a form")
        for join in batch.joins:
            if join.params.structured_outputs is not None and not self.forms.held[f"r{join.seed}"]:
                raise Wrong(f"r{join.seed} joined before its form was ready")
        for sequence in self.engine._scheduler._roster.parking.forming:
            if sequence.params.structured_outputs is None:
                raise Wrong(f"{sequence.request_id} waits for a form that it does not have")

    def _longest_kept(self, one: Asked, tokens) -> int:
        request = one.request
        if request.params.prompt_logprobs is not None:
            return 0
        chain = chain_hashes(request.cache_salt, tokens)
        known = next((p for p, state in enumerate(chain) if state not in self.kept), len(chain))
        return min(known, len(tokens) - 1)

    def _audit(self) -> None:
        wrong = check_blocks(self.engine, self._saw)
        if not wrong and self.operations % 8 == 0:
            wrong = check_tree(self.engine, self.device.cells, self.device.arriving())
        if wrong:
            raise Wrong(wrong)

    def _check_admission(self, preemptions: int) -> None:
        """Nobody waits beside a free slot, plenty of blocks and budget that is left."""
        engine = self.engine
        scheduler = engine._scheduler
        if scheduler.counters.preemptions > preemptions:
            return
        batch = scheduler.steps[-1].batch
        if batch.steps > 1:
            self._saw("steps taken as one")
        if batch.num_tokens > self.shape.budget * batch.steps:
            raise Wrong(f"{batch.num_tokens} tokens in a step of at most {self.shape.budget}")
        parked, waiting = len(scheduler._roster.parking), scheduler.num_waiting
        if parked:
            self._saw("a wait for another's prefix")
        if waiting == parked or not engine._slots.num_free or batch.num_tokens >= self.shape.budget:
            return
        if parked - scheduler.num_forming >= self.shape.slots:
            return  # No more are set aside than can run.
        # Those that run may each be promised as much as they can grow to.
        most = -(-MAX_LEN // self.shape.block_size)
        if all(pool.available > (most + 1) * (self.shape.slots + 1) for pool in engine._blocks.pools):
            raise Wrong(f"{waiting - parked} wait beside free slots, blocks and budget")

    def _num_cached(self) -> int:
        cache = self.engine._blocks.cache
        return 0 if cache is None else len(cache)

    def _waits_for_nothing(self) -> bool:
        tiers = self.engine._blocks.tiers
        if tiers is not None and tiers.busy and self.engine._scheduler.num_waiting:
            self._saw("a wait for the disk")
            return False
        if self.engine._scheduler.num_forming == self.engine._scheduler.num_waiting:
            return bool(self.engine._scheduler.num_running)
        return bool(self.engine._scheduler.num_running or self.engine._scheduler.num_waiting)

    def _state(self, one: Asked) -> str:
        if one.request.request_id not in self.live:
            return "ended" if one.reason else "refused"
        sequence = self.engine._scheduler._roster._sequences.get(one.request.request_id)
        if sequence is None:
            return "end not sent yet"
        if sequence in self.engine._scheduler._roster.parking:
            return (
                "waiting for a form"
                if sequence in self.engine._scheduler._roster.parking.forming
                else "waiting for a prefix"
            )
        if sequence.state is not RequestState.RUNNING:
            return sequence.state.value
        slots, slot = self.engine._slots, sequence.slot
        where = "prompt" if slots.done[slot] < slots.start[slot] else "decode"
        return f"{where}, under way" if slots.computed[slot] > slots.done[slot] else where

    def _clock(self) -> float:
        self.now += 0.001
        return self.now

    def _did(self, name: str) -> None:
        self.seen[f"rule: {name}"] += 1

    def _saw(self, name: str) -> None:
        self.seen[name] += 1
