"""Foresight: a drafter that knows what each request is to be sent, and is wrong as often as it is told to be."""

from __future__ import annotations

from headrace.policy.speculation import Proposal


class FreeRows:
    """What rows cost where they cost nothing: every guess is worth computing."""

    draws = 0

    def observe(self, work, seconds, *, drafted=False):
        pass

    def knows(self, rows):
        return True

    def seconds(self, rows, *, drafted=False):
        return 1.0

    def reach(self, rows):
        return 512

    def relative(self, rows, most):
        return [1.0] * (most + 1)


class Foresight:
    """asked: by seed, what was asked for and what it must be sent. It is wrong at every `wrong`-th position (0: never),
    and checks that it is given blocks for what it is to guess."""

    costly, copy = True, None

    def __init__(self, asked, wrong: int, block_size: int) -> None:
        self._asked = asked
        self._wrong = wrong
        self._block_size = block_size

    def propose(self, contexts):
        return [self._guess(context) for context in contexts]

    def remember(self, namespace, tokens, prompt_len):
        pass

    def _guess(self, context):
        one = self._asked[context.seed]
        whole = one.request.prompt_ids + one.request.output_ids + one.expected.tokens
        at = len(context.tokens)
        if whole[:at] != context.tokens.tolist():
            raise AssertionError(f"{one.request.request_id} has {context.tokens.tolist()} of {whole}")
        if (context.blocks.shape[1] * self._block_size) < at + context.most:
            raise AssertionError(f"{one.request.request_id} lacks blocks for {context.most} tokens after {at}")
        ahead = (whole[at:] + [2] * context.most)[: context.most]
        guessed = [token ^ 1 if self._wrong and (at + i) % self._wrong == 0 else token for i, token in enumerate(ahead)]
        return Proposal(guessed, [0.99] * len(guessed))
