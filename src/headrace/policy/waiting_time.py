"""How long a new request will wait for a slot, by the latency model: what goes before it and one request that has to
end first, at the price of a prompt's token and of a generated one with as many requests running as there may be.
"""

from headrace.policy.backlog import Waiting
from headrace.policy.latency import LatencyModel, StepWork

_SMOOTHING = 0.1


class WaitingTime:
    """slots, budget: most requests that run and most tokens in a step."""

    def __init__(self, latency: LatencyModel, *, slots: int, budget: int) -> None:
        self._latency = latency
        self._slots = slots
        self._budget = budget
        # Tokens of requests that ran to their end, smoothed. Until one has, outputs are taken for nothing, so that
        # no request is refused for what nobody has seen.
        self._prompt: float | None = None
        self._output = 0.0

    def ended(self, prompt: int, generated: int) -> None:
        """Learn how long requests are."""
        if self._prompt is None:
            self._prompt, self._output = prompt, generated
        self._prompt += _SMOOTHING * (prompt - self._prompt)
        self._output += _SMOOTHING * (generated - self._output)

    def predict(self, ahead: Waiting, *, running: int, waiting: int) -> float:
        """Seconds until a request begins to run that has this ahead of it; 0 if there is a slot that nobody waits for.
        If requests wait beside a free slot, memory is short, and no more will run than do."""
        if running < self._slots and not waiting:
            return 0.0
        together = running if waiting and running else self._slots
        return self._seconds(ahead.plus(self._typical()), together)

    def of_one(self) -> float:
        """Seconds from one request's end to the next one's when all slots are taken."""
        return self._seconds(self._typical(), self._slots)

    def _typical(self) -> Waiting:
        return Waiting(1, round(self._prompt or 1), round(self._output or 1))

    def _seconds(self, work: Waiting, together: int) -> float:
        prompt = self._prompt or 1
        outputs = min(work.outputs, work.requests * self._output)
        chunk = StepWork(self._budget, 1, prefill_pairs=self._budget * prompt / 2, logit_rows=1, sampled_rows=1)
        context = round(together * (prompt + self._output / 2))
        decode = StepWork(together, together, context, logit_rows=together, sampled_rows=together)
        per_prompt_token = self._latency.predict(chunk) / self._budget
        per_output_token = self._latency.predict(decode) / together
        return work.tokens * per_prompt_token + outputs * per_output_token
