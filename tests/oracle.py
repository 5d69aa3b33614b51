"""A drafter that knows what is coming."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.policy.speculation import Proposal


class Oracle:
    """texts: prompts with what the model generates. It is wrong at every `wrong`-th position (0: never), and sure of
    itself all the same; after a text's end it makes something up."""

    costly, copy = False, None

    def __init__(self, texts: Iterable[list[int]], wrong: int, vocab_size: int) -> None:
        self.texts = list(texts)
        self.wrong = wrong
        self.vocab_size = vocab_size

    def propose(self, contexts):
        return [self._guess(context.tokens.tolist(), context.most) for context in contexts]

    def remember(self, namespace, tokens, prompt_len):
        pass

    def _guess(self, tokens, most):
        ahead = next((text[len(tokens) :] for text in self.texts if text[: len(tokens)] == tokens), [])
        ahead = (ahead + [7 % self.vocab_size] * most)[:most]
        guessed = [
            (token + 1) % self.vocab_size if self.wrong and (len(tokens) + i) % self.wrong == 0 else token
            for i, token in enumerate(ahead)
        ]
        return Proposal(guessed, [0.99] * len(guessed))
