"""A sequence's token ids become text, piece by piece. TextStream owns the incremental detokenizer and the stop
strings of one sequence: it holds back text that may turn into a stop string, cuts at the first one that is
complete, and says which tokens still count. It never decides what is generated; whoever drives it aborts the
request once `stopped` is set.
"""

from functools import lru_cache
from typing import Protocol

import msgspec

from headrace.core.request import ErrorCode, FinishReason, OutputDelta, SamplingParams, TokenLogprobs


class Detokenizer(Protocol):
    """Text of one sequence. push returns the text that is certain now, never half a character; flush the rest."""

    def push(self, ids: list[int]) -> str: ...

    def flush(self) -> str: ...


class TextDelta(msgspec.Struct, frozen=True):
    """What one OutputDelta adds for the client: text may lag behind tokens, tokens past a stop are gone.
    stop_reason is the stop string, or the id of the stop token unless that was EOS."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    code: ErrorCode | None = None


class StopStrings:
    """Finds stop strings in text that arrives in pieces. One Knuth-Morris-Pratt automaton per string: its state is
    the length of the longest end of the text that begins the string, which is exactly what must be held back.
    The string that is complete first wins, the longest of those that end together; how the text was cut into
    pieces changes nothing."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._failures = [_failure_table(s) for s in strings]
        self._states = [0] * len(strings)

    @property
    def held(self) -> int:
        """Length of the longest end of the text so far that may become a stop string."""
        return max(self._states, default=0)

    def feed(self, text: str, *, armed: bool) -> tuple[int, str] | None:
        """Advance over text; return (end, string) for the first one complete, end being an index into text.
        Unless armed, a complete string is passed over (it may still be part of a later one)."""
        for index, char in enumerate(text):
            found = ""
            for i, string in enumerate(self._strings):
                state = self._states[i]
                while state and string[state] != char:
                    state = self._failures[i][state - 1]
                state += string[state] == char
                if state == len(string):
                    if armed and state > len(found):
                        found = string
                    state = self._failures[i][state - 1]
                self._states[i] = state
            if found:
                return index + 1, found
        return None


@lru_cache(maxsize=256)
def _failure_table(string: str) -> tuple[int, ...]:
    """table[i]: length of the longest proper prefix of string that is also an end of string[: i + 1]. Remembered,
    since all choices of a request have the same strings."""
    table = [0] * len(string)
    state = 0
    for i in range(1, len(string)):
        while state and string[state] != string[i]:
            state = table[state - 1]
        state += string[state] == string[i]
        table[i] = state
    return tuple(table)


class TextStream:
    """Text of one sequence. A stop string counts only once min_tokens tokens exist."""

    def __init__(self, detokenizer: Detokenizer, params: SamplingParams, *, eos_ids: tuple[int, ...] = ()) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(tuple(params.stop))
        self._has_stops = bool(params.stop)
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._eos_ids = eos_ids
        self._held = ""
        self._tokens = 0
        self._stop_string = ""
        self.stopped = False
        """A stop string ended the text: what the engine still sends is overrun, and the request should be aborted."""

    def push(self, delta: OutputDelta) -> TextDelta:
        """Take the engine's next delta. After a stop string everything is ignored."""
        if self.stopped:
            return TextDelta("", [])
        ids, end_token = delta.token_ids, delta.stop_token
        text_ids = ids if end_token is None or self._include_stop else ids[:-1]
        text, used = self._feed_tokens(text_ids)
        if not self.stopped:
            self._tokens += len(ids) - len(text_ids)
            used = len(ids)
            if delta.finish_reason is not None:
                text += self._feed(self._detokenizer.flush())
                if not self.stopped:
                    text, self._held = text + self._held, ""
        logprobs = delta.logprobs if delta.logprobs is None else delta.logprobs[:used]
        reason, stop_reason = delta.finish_reason, end_token if end_token not in self._eos_ids else None
        if self.stopped:
            reason, stop_reason = FinishReason.STOP, self._stop_string
        return TextDelta(
            text, ids[:used], logprobs, delta.prompt_logprobs, reason, stop_reason, delta.error, delta.code
        )

    def _feed_tokens(self, ids: list[int]) -> tuple[str, int]:
        """Text of ids, and how many of them count: with stop strings one after another, so that the token that
        completes a string is known."""
        if not self._has_stops:
            self._tokens += len(ids)
            return self._detokenizer.push(ids), len(ids)
        pieces = []
        for index, token in enumerate(ids):
            self._tokens += 1
            pieces.append(self._feed(self._detokenizer.push([token])))
            if self.stopped:
                return "".join(pieces), index + 1
        return "".join(pieces), len(ids)

    def _feed(self, text: str) -> str:
        """Add detokenized text; return what may be shown now."""
        if not self._has_stops:
            return text
        match = self._stops.feed(text, armed=self._tokens >= self._min_tokens)
        if match is None:
            known = self._held + text
            cut = len(known) - self._stops.held
            self._held = known[cut:]
            return known[:cut]
        end, self._stop_string = match
        known = self._held + text[:end]
        self.stopped, self._held = True, ""
        return known if self._include_stop else known[: len(known) - len(self._stop_string)]
