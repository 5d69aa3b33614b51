"""Which requests are taken at all, and what becomes of their claims. What can never fit is the client's to change
(RequestError, naming the field); what does not fit now may be tried later (OverloadedError, with an estimate of when).
It follows requests by the scheduler's moves, so that it always knows what waits, who is past a deadline, and what each
tenant has used.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import OverloadedError, RequestError
from headrace.core.request import FinishReason, Request, RequestState
from headrace.policy.backlog import Backlog, Waiting
from headrace.policy.block_manager import BlockManager
from headrace.policy.deadlines import Deadlines
from headrace.policy.limits import Limits
from headrace.policy.moves import Move
from headrace.policy.quotas import Charge, Quotas
from headrace.policy.waiting_time import WaitingTime

_SHORTEST_RETRY = 1.0
_LONGEST_RETRY = 600.0


@dataclass(slots=True)
class _Taken:
    """A request that was taken and has not ended. known: tokens it came with; tokens, outputs: its share of the
    backlog while it waits."""

    charge: Charge
    priority: int
    known: int
    tokens: int
    outputs: int
    waits: bool = True
    ran: bool = False


class Admission:
    """max_queued_requests and max_queued_tokens (prompt tokens; None: any) bound the queue. Times are seconds on the
    clock that the engine is driven with."""

    def __init__(
        self,
        *,
        max_model_len: int,
        vocab_size: int,
        max_queued_requests: int,
        max_queued_tokens: int | None,
        limits: Limits,
        waiting_time: WaitingTime,
    ) -> None:
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._max_requests = max_queued_requests
        self._max_tokens = max_queued_tokens
        self._quotas = Quotas(limits)
        self._waiting_time = waiting_time
        self._deadlines = Deadlines()
        self._taken: dict[str, _Taken] = {}
        self.backlog = Backlog()

    @property
    def has_deadlines(self) -> bool:
        """Whether a request waits that is given up at some time."""
        return len(self._deadlines) > 0

    def check_possible(self, request: Request, blocks: BlockManager) -> None:
        """Raises RequestError if the request can never run."""
        self._check_tokens(request)
        prompt_len = len(request.prompt_ids)
        total = prompt_len + request.max_tokens
        if prompt_len > self._max_model_len:
            raise RequestError(
                f"prompt has {prompt_len} tokens, but this model takes at most {self._max_model_len}: shorten it",
                param="prompt",
                code="context_length_exceeded",
            )
        if total > self._max_model_len:
            raise RequestError(
                f"max_tokens ({request.max_tokens}) and the prompt's {prompt_len} tokens make {total}, but this model "
                f"takes at most {self._max_model_len} together: set max_tokens to at most "
                f"{self._max_model_len - prompt_len} or shorten the prompt",
                param="max_tokens",
                code="context_length_exceeded",
            )
        # The last token is never computed, so it needs no place.
        positions = blocks.most_positions()
        if positions is not None and total - 1 > positions:
            most = positions + 1
            raise RequestError(
                f"max_tokens ({request.max_tokens}) and the prompt's {prompt_len} tokens make {total}, but the KV "
                f"cache holds at most {most} tokens of one request: lower max_tokens, shorten the prompt, or run with "
                "a larger --kv-cache-memory-bytes",
                param="max_tokens" if prompt_len < most else "prompt",
                code="context_length_exceeded",
            )

    def check_load(self, request: Request, *, running: int, free_slots: int, now: float) -> None:
        """Raises OverloadedError if the request cannot be taken now. Those that the next step can take do not
        queue, and an empty queue takes one of any length."""
        prompt_len, tenant = len(request.prompt_ids), request.tenant
        # A prompt with several choices is one request, and its prompt is computed once.
        first = request.choice == 0
        self._quotas.check(
            tenant,
            requests=int(first),
            tokens=prompt_len if first else 0,
            choices=request.params.n if first else 1,
            now=now,
            end_after=lambda: _bounded(self._waiting_time.of_one()),
        )
        waiting, tokens = self.backlog.requests, self.backlog.tokens
        if waiting >= self._max_requests + free_slots:
            raise OverloadedError(
                f"{waiting} requests are waiting and at most {self._max_requests} may (--max-queued-requests): "
                "try again later",
                retry_after=_bounded((waiting - self._max_requests + 1) * self._waiting_time.of_one()),
            )
        if self._max_tokens is not None and waiting >= max(1, free_slots) and tokens + prompt_len > self._max_tokens:
            raise OverloadedError(
                f"prompts of {tokens} tokens are waiting and with this one's {prompt_len} they would be more than "
                f"{self._max_tokens} (--max-queued-tokens): try again later",
                retry_after=_bounded(self._waiting_time.of_one()),
            )
        if request.deadline is not None:
            wait = self.predicted_wait(running, request.priority, tenant)
            if wait > request.deadline:
                raise OverloadedError(
                    f"this request would wait about {_told(wait)}, but its deadline is {_told(request.deadline)}",
                    retry_after=_bounded(wait - request.deadline),
                    code="deadline_exceeded",
                )

    def take(self, request: Request, now: float) -> None:
        """The scheduler has queued this request."""
        first = request.choice == 0
        prompt_len, known = len(request.prompt_ids), len(request.prompt_ids) + len(request.output_ids)
        charge = self._quotas.take(request.tenant, requests=int(first), tokens=prompt_len if first else 0, now=now)
        outputs = request.max_tokens - len(request.output_ids)
        self._taken[request.request_id] = _Taken(charge, request.priority, known, known, outputs)
        self.backlog.add(request.priority, request.tenant, known, outputs)
        # One that comes with outputs had begun elsewhere.
        if request.deadline is not None and not request.output_ids:
            self._deadlines.add(request.request_id, now + request.deadline)

    def follow(self, moves: Iterable[Move], now: float) -> None:
        """Moves of requests that were taken, in order."""
        for move in moves:
            sequence = move.sequence
            taken = self._taken.get(sequence.request_id)
            if taken is None:
                continue
            if move.state is RequestState.RUNNING:
                self._stop_waiting(taken)
                taken.ran = True
                self._deadlines.remove(sequence.request_id)
            elif move.state is RequestState.PREEMPTED:
                taken.tokens = len(sequence.tokens)
                taken.outputs = sequence.limit - taken.tokens
                taken.waits = True
                self.backlog.add(taken.priority, taken.charge.tenant, taken.tokens, taken.outputs)
            elif move.state is RequestState.FINISHED:
                self._stop_waiting(taken)
                self._deadlines.remove(sequence.request_id)
                del self._taken[sequence.request_id]
                generated = len(sequence.tokens) - taken.known
                self._quotas.end(taken.charge, ran=taken.ran, generated=generated, now=now)
                if move.reason in (FinishReason.STOP, FinishReason.LENGTH):
                    self._waiting_time.ended(sequence.prompt_len, generated)

    def late(self, now: float) -> list[tuple[str, str]]:
        """Requests that have not begun and whose deadline has passed, each once, with what to tell its client."""
        return [
            (
                request_id,
                f"this request waited {_told(now - self._taken[request_id].charge.at)} for its turn, past its "
                "deadline: send it again, or with a later one",
            )
            for request_id in self._deadlines.passed(now)
        ]

    def predicted_wait(self, running: int, priority: int, tenant: str) -> float:
        """Seconds until a request that came now would begin."""
        ahead = self.backlog.ahead(priority, tenant)
        return self._waiting_time.predict(ahead, running=running, waiting=self.backlog.requests)

    def wait_behind(self, ahead: Waiting, running: int) -> float:
        """Seconds until one that waits begins, with this ahead of it."""
        return self._waiting_time.predict(ahead, running=running, waiting=self.backlog.requests)

    def _stop_waiting(self, taken: _Taken) -> None:
        if taken.waits:
            taken.waits = False
            self.backlog.remove(taken.priority, taken.charge.tenant, taken.tokens, taken.outputs)

    def _check_tokens(self, request: Request) -> None:
        if not request.prompt_ids:
            raise RequestError("prompt must have at least one token", param="prompt")
        known = (request.prompt_ids, request.output_ids)
        strange = next((token for ids in known for token in _outside(ids, self._vocab_size)), None)
        if strange is not None:
            raise RequestError(
                f"prompt: {strange} is not a token id of this model (0 to {self._vocab_size - 1})",
                param="prompt",
            )
        request.params.check_vocabulary(self._vocab_size)


def _outside(tokens: Sequence[int], size: int) -> Sequence[int]:
    """Of these tokens the least and the greatest that are no ids of a vocabulary of this size."""
    if not tokens:
        return ()
    # As unsigned numbers, negative ones are the greatest.
    if isinstance(tokens, array) and int(np.frombuffer(tokens, np.uint32).max()) < size:
        return ()
    return [token for token in (min(tokens), max(tokens)) if not 0 <= token < size]


def _told(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.1f} s"


def _bounded(seconds: float) -> float:
    return min(max(seconds, _SHORTEST_RETRY), _LONGEST_RETRY)
