"""Which requests are taken at all. What can never fit is the client's to change (RequestError, naming the field);
what does not fit now may be tried later (OverloadedError, with an estimate of when).
"""

from __future__ import annotations

from headrace.core.errors import OverloadedError, RequestError
from headrace.core.request import Request
from headrace.policy.block_manager import BlockManager

_SHORTEST_WAIT = 1.0
_LONGEST_WAIT = 60.0
_SMOOTHING = 0.1


class Admission:
    """max_queued_requests bounds the queue. Times are seconds on the clock that the engine is driven with."""

    def __init__(self, *, max_model_len: int, vocab_size: int, max_queued_requests: int) -> None:
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._max_queued = max_queued_requests
        self._interval: float | None = None
        self._last_finish: float | None = None

    def check(self, request: Request, blocks: BlockManager, *, waiting: int, free_slots: int) -> None:
        """Raises RequestError if the request can never run, OverloadedError if too many wait already."""
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
        # Those that the next step can take do not queue.
        if waiting >= self._max_queued + free_slots:
            raise OverloadedError(
                f"{waiting} requests are waiting and at most {self._max_queued} may (--max-queued-requests): "
                "try again later",
                retry_after=self.expected_wait(waiting),
            )

    def finished(self, now: float) -> None:
        """A request ended: learn how often that happens."""
        if self._last_finish is not None:
            interval = max(0.0, now - self._last_finish)
            old = interval if self._interval is None else self._interval
            self._interval = old + _SMOOTHING * (interval - old)
        self._last_finish = now

    def expected_wait(self, waiting: int) -> float:
        """Seconds until one of `waiting` queued requests has left, as far as can be told from recent ones."""
        if self._interval is None:
            return _SHORTEST_WAIT
        return min(max(self._interval * max(1, waiting - self._max_queued + 1), _SHORTEST_WAIT), _LONGEST_WAIT)

    def _check_tokens(self, request: Request) -> None:
        if not request.prompt_ids:
            raise RequestError("prompt must have at least one token", param="prompt")
        tokens = request.prompt_ids + request.output_ids
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self._vocab_size:
            raise RequestError(
                f"prompt: {low if low < 0 else high} is not a token id of this model (0 to {self._vocab_size - 1})",
                param="prompt",
            )
        request.params.check_vocabulary(self._vocab_size)
