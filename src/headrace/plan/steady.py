"""The steady state of one replica: what rate of requests it bears under the question's times, and the latencies there.

With n requests decoding, Little's law gives the rate: each makes a token a step, so n = rate * output * step. Prompts
then bring n * input / output tokens a step beside them, and the step's length follows from both. So one number, n, says
everything, and the largest n whose times and memory are within bounds is the replica's capacity.

Around its mean n varies: arrivals are random, and more requests make longer steps, which keep requests longer. To first
order its variance is n * step / (step - n * d(step)/dn), as of a birth-death process. A share of requests, the
question's percentile, has to keep its times at n plus so many deviations. Behind a router that knows the replicas'
load, deviations are those of `pooled` replicas together.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from headrace.core.model_spec import ModelSpec
from headrace.plan.closed_loop import VLLM
from headrace.plan.memory import Memory
from headrace.plan.question import Load, Slo
from headrace.policy.latency import Prior, StepWork
from headrace.policy.roofline import Parts, Roofline, Serving

_BUSIEST = 0.97  # share of a step's room for prompts that they may take in the mean
_HALVINGS = 18
_LEAST = 1e-3  # requests running, where a search begins


@dataclass(frozen=True, slots=True)
class Way:
    """How a replica works. chunk: tokens of a step at most. drafts: draft tokens a step for each request, of which a
    share `accepted` holds. does: both, or only prefill or decode of split pools."""

    serving: Serving
    chunk: int = 2048
    drafts: int = 0
    accepted: float = 0.0
    does: str = "both"

    @property
    def tokens_per_step(self) -> float:
        """Of each request: the drafts that hold up to the first that does not, and one more."""
        return sum(self.accepted**ahead for ahead in range(self.drafts + 1))


@dataclass(frozen=True, slots=True)
class Point:
    """A replica in its steady state. rate: requests a second. running: decoding, in the mean; peak: at the percentile.
    Seconds in the mean and at the percentile; itl: the longest step that is not rare. prefill: tokens of prompts a
    step. work: of a mean step."""

    rate: float
    running: float
    peak: float
    step: float
    ttft: tuple[float, float]
    tpot: tuple[float, float]
    itl: float
    prefill: float
    work: StepWork


class Replica:
    """One way to serve a model under a load. drafting: seconds of a step of who guesses, if anybody does."""

    def __init__(
        self,
        spec: ModelSpec,
        way: Way,
        load: Load,
        memory: Memory,
        drafting: Prior,
        roofline: Roofline | None = None,
    ) -> None:
        self.way, self.memory, self.spec = way, memory, spec
        self._load = load
        self._roofline = roofline or Roofline(spec, way.serving)
        self._drafting = drafting
        self._context = int(load.prefix_len + load.input_len + load.output_len / 2)
        # Steps that an answer takes.
        self._steps = load.output_len / way.tokens_per_step

    def capacity(self, slo: Slo, pooled: int = 1) -> Point | None:
        """The point of the highest rate that keeps the times. None where there is none."""
        most = self._most()
        low = self.at(_LEAST, slo, pooled)
        if not self._keeps(low, slo):
            return None
        at, best, high = _LEAST, low, most
        for _ in range(_HALVINGS):
            middle = math.sqrt(at * high) if high > 2 * at else (at + high) / 2
            point = self.at(middle, slo, pooled)
            if self._keeps(point, slo):
                at, best = middle, point
            else:
                high = middle
            if high - at < 0.002 * at:
                break
        return best

    def bears(self, rate: float, slo: Slo, pooled: int, capacity: Point) -> Point:
        """The point at this rate, which is at most the capacity's."""
        low, high = 0.0, capacity.running if self.way.does != "prefill" else capacity.prefill
        point = capacity
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            found = self.at(max(middle, _LEAST), slo, pooled)
            if found.rate >= rate:
                high, point = middle, found
            else:
                low = middle
        return point

    def alone(self) -> tuple[float, float]:
        """Seconds to the first token and for each after it of one request that has the replica to itself."""
        return self._prompt_alone(), self._step(1.0, 0.0) / self.way.tokens_per_step

    def parts(self, point: Point) -> Parts:
        """What a mean step's seconds go to."""
        return self._roofline.parts(point.work)

    def _most(self) -> float:
        """Requests running (tokens of prompts a step, where there is only prefill) beyond which nothing is tried."""
        if self.way.does == "prefill":
            return _BUSIEST * self.way.chunk
        return min(self.memory.most_running, self.way.chunk / (1 + self.way.drafts) - 1)

    def at(self, running: float, slo: Slo, pooled: int) -> Point:
        """With so many requests decoding in the mean; of a prefill replica, so many tokens of prompts a step."""
        if self.way.does == "prefill":
            return self._prefill_at(running, slo)
        deviations = NormalDist().inv_cdf(slo.percentile / 100)
        step, fewer = self._mean_step(running), self._mean_step(0.9 * running)
        growth = min(max((step - fewer) / (0.1 * step), 0.0), 0.99)
        spread = math.sqrt(running / (1 - growth) / pooled)
        peak = running + deviations * spread + (1.0 if pooled > 1 else 0.0)
        longest = self._mean_step(peak, deviations)
        per = self.way.tokens_per_step
        rate = running / (self._steps * step)
        prefill = self._prefill(running)
        ttft = (step, 2 * step)
        itl = longest
        if prefill:
            room = self._room(running)
            busy = rate * self._load.computed * self._step(running, room) / room if room > 0 else math.inf
            itl = self._step(peak, self._lump(peak)) if self._room(peak) >= 1 else math.inf
            ttft = self._first(busy, room, running, peak, slo)
        work = self._work(running, prefill)
        return Point(rate, running, peak, step, ttft, (step / per, longest / per), itl, prefill, work)

    def _prefill_at(self, tokens: float, slo: Slo) -> Point:
        """Prompts alone, of which so many tokens come in a step."""
        step = self._step(0.0, tokens)
        rate = tokens / step / self._load.computed
        room = float(self.way.chunk)
        busy = rate * self._load.computed * self._step(0.0, room) / room
        ttft = self._first(busy, room, 0.0, 0.0, slo, tokens)
        return Point(rate, 0.0, 0.0, step, ttft, (0.0, 0.0), step, tokens, self._work(0.0, tokens))

    def _first(
        self, busy: float, room: float, running: float, peak: float, slo: Slo, lump: float = 0.0
    ) -> tuple[float, float]:
        """Seconds to the first token: what is left of the step under way, the prompts before it, and its own steps. The
        prompts' queue is one server's whose steps are full, Poisson arrivals, with an exponential tail."""
        share = slo.percentile / 100
        if not busy < _BUSIEST:
            return math.inf, math.inf
        full = self._step(running, room)
        service = self._load.computed / room * full
        queued = service * (1 + self._load.spread) / (2 * (1 - busy))
        late = max(math.log(busy / (1 - share)), 0.0) * queued if busy > 0 else 0.0
        long = self._long_prompt(share)
        own = self._step(running, max(min(self._load.computed, room), lump))
        last = self._step(peak, max(min(long, room), lump))
        more = math.ceil(self._load.computed / room) - 1, math.ceil(long / room) - 1
        return busy * queued + own / 2 + own + more[0] * full, late + 2 * last + more[1] * full

    def _long_prompt(self, share: float) -> float:
        """Tokens of a prompt at the percentile."""
        mean = self._load.computed
        most = self._load.longest or mean
        return min(mean * (1 + NormalDist().inv_cdf(share) * math.sqrt(self._load.spread)), max(most, mean))

    def _prompt_alone(self) -> float:
        tokens = self._load.computed
        whole, rest = divmod(tokens, self.way.chunk)
        return whole * self._step(0.0, self.way.chunk) + (self._step(0.0, rest) if rest else 0.0)

    def _keeps(self, point: Point, slo: Slo) -> bool:
        fits = point.peak <= max(self.memory.most_running, 1.0) or self.way.does == "prefill"
        return fits and point.ttft[1] <= slo.ttft and point.tpot[1] <= slo.tpot

    def _prefill(self, running: float) -> float:
        """Tokens of prompts a step, in the mean."""
        return running * self._load.computed / self._steps if self.way.does == "both" else 0.0

    def _room(self, running: float) -> float:
        """Tokens of prompts that a step has room for."""
        return self.way.chunk - running * (1 + self.way.drafts)

    def _lump(self, running: float) -> float:
        """Tokens of prompts in a step that has any."""
        return min(self._room(running), max(self._prefill(running), self._load.computed))

    def _mean_step(self, running: float, deviations: float = 0.0) -> float:
        """Seconds of a step, in the mean over those with prompts and those without; of a short answer whose steps have
        so many deviations more of the former."""
        alone, prefill = self._step(running, 0.0), self._prefill(running)
        if not prefill:
            return alone
        lump = self._lump(running)
        if lump < 1:
            return math.inf
        share = min(prefill / lump, 1.0)
        steps = (self._load.short or self._load.output_len) / self.way.tokens_per_step
        share = min(share + deviations * math.sqrt(share * (1 - share) / max(steps, 1.0)), 1.0)
        return alone + share * (self._step(running, lump) - alone)

    def _step(self, running: float, prefill: float) -> float:
        """Seconds of one step as a client sees it: the devices', the host's, and the drafting."""
        work, numbers = self._work(running, prefill), VLLM
        seconds = numbers.kernels * self._roofline(work)
        if self.way.drafts and running:
            # Who guesses reads prompts too, and takes a step for each token ahead.
            seconds += self.way.drafts * self._drafting(_decodes(max(round(running), 1), self._context))
            if prompts := self._prompts(prefill):
                seconds += self._drafting(prompts)
        return seconds + numbers.step + numbers.request * work.requests

    def _work(self, running: float, prefill: float) -> StepWork:
        """Whole requests and tokens, as many as nearest."""
        decoding = max(round(running), 1) if running else 0
        if not self.way.drafts and prefill < 0.5:
            return _decodes(max(decoding, 1), self._context)
        drafts, read = self.way.drafts, self._prompts(prefill)
        tokens, pairs, prompts = (read.tokens, read.prefill_pairs, read.longer) if read else (0, 0.0, 0)
        entries, rows = decoding + prompts, decoding * (1 + drafts)
        if not drafts:
            return StepWork(tokens + decoding, entries, decoding * self._context, pairs, entries, entries, prompts)
        return StepWork(
            tokens + rows, entries, 0, pairs + rows * self._context, rows + prompts, rows + prompts, entries
        )

    def _prompts(self, prefill: float) -> StepWork | None:
        """Of prompts alone, so many tokens."""
        if prefill < 0.5:
            return None
        load, tokens = self._load, round(prefill)
        prompts = math.ceil(prefill / load.computed - 1e-9)
        pairs = tokens * (load.prefix_len + load.cached + load.computed * (1 + load.spread) / 2)
        return StepWork(tokens, prompts, 0, pairs, prompts, prompts, prompts)


def _decodes(requests: int, context: int) -> StepWork:
    return StepWork(requests, requests, requests * context, 0.0, requests, requests)
