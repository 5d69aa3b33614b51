"""Recipe: how a fleet is run, as far as optimizations change it, from naive on; and the replica that suits it best: how
many GPUs it takes and how many requests run on it at once, so that tokens come within the question's time.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.hardware import Hardware
from headrace.core.model_spec import WeightTypes
from headrace.plan.question import Load, Question
from headrace.policy.latency import Prior, StepWork
from headrace.policy.memory import cache_bytes
from headrace.policy.pace import VLLM_HOST, Host, Pace
from headrace.policy.pipeline import Stage
from headrace.policy.roofline import Roofline, Serving

BLOCK = 16
WHOLE = 16384
"""Tokens of a step where prompts are not cut."""

_RESERVED = 2048  # tokens that a contiguous reservation has room for, where requests are not longer

_MOST_AT_ONCE = 512
_PACKED = 0.95  # share of blocks that running requests can have


@dataclass(frozen=True, slots=True)
class Recipe:
    """static: a batch begins when the one before has ended. contiguous: each request has memory for the longest from
    its start on, not pages. caching: of prefixes. chunk: tokens of a step at most. drafts: tokens guessed ahead in each
    step. split: prefill and decode on GPUs of their own. urgent: share of requests that go before the others, which
    fill what they leave. offload: blocks go to the host's memory. elastic: replicas follow the day."""

    static: bool = True
    contiguous: bool = True
    caching: bool = False
    weights: str | WeightTypes = "bf16"
    cache: str = "bf16"
    chunk: int = WHOLE
    drafts: int = 0
    split: bool = False
    urgent: float = 0.0
    offload: bool = False
    elastic: bool = False


@dataclass(frozen=True, slots=True)
class Replica:
    """slots: requests at once at most; blocks: of the KV cache. block_bytes: of one, on all of its GPUs."""

    serving: Serving
    slots: int
    blocks: int
    block_bytes: int


def room(load: Load) -> int:
    """Tokens that the longest request of a load may have, and that a contiguous reservation has room for."""
    longest = load.longest or math.ceil(2 * (load.input_len + load.output_len))
    return max(_RESERVED, load.prefix_len + longest)


class Folded:
    """A Prior: seconds of a step with drafts, folded: each decoding entry takes what its drafts do for each token that
    they bring, of which a share `accepted` holds; no drafts where that is less. drafting: of who guesses."""

    def __init__(self, pace: Prior, drafting: Prior, drafts: int, accepted: float) -> None:
        self._pace, self._drafting, self._drafts = pace, drafting, drafts
        self._brings = sum(accepted**i for i in range(drafts + 1))

    def __call__(self, work: StepWork) -> float:
        plain, decodes = self._pace(work), work.requests - work.long_entries
        if not decodes:
            return plain
        rows, context = decodes * (self._drafts + 1), work.decode_context
        alone = self._pace(StepWork(rows, decodes, 0, (self._drafts + 1) * context, rows, rows, decodes))
        alone += self._drafts * self._drafting(StepWork(decodes, decodes, context, 0.0, decodes, decodes))
        prompts = 0.0
        if work.long_entries:
            prompts = plain - self._pace(StepWork(decodes, decodes, context, 0.0, decodes, decodes))
        return min(plain, max(prompts, 0.0) + alone / self._brings)


def pace_of(question: Question, recipe: Recipe, serving: Serving) -> Pace:
    """Seconds of a replica's steps."""
    pace = Pace(Roofline(question.model, serving), VLLM_HOST)
    if not recipe.drafts:
        return pace
    drafting = question.drafter.pace(serving)
    return Pace(Folded(pace, drafting, recipe.drafts, question.limits.accepted), Host())


def best_replica(question: Question, gpu: Hardware, recipe: Recipe, *, prompts: bool = True) -> Replica:
    """The replica that serves most for each GPU. prompts: whether it computes them. ConfigError where the weights fit
    none, or no token comes in time."""
    found: list[tuple[float, int, Replica]] = []
    reasons: list[str] = []
    fastest = math.inf
    for ranks in (1 << power for power in range(gpu.per_node.bit_length())):
        if ranks > min(gpu.per_node, question.limits.max_tp):
            break
        serving = Serving(gpu, ranks, recipe.weights, recipe.cache)
        try:
            left = cache_bytes(Stage(question.model), serving)
        except ConfigError as error:
            reasons.append(str(error))
            continue
        size = question.model.kv_bytes(BLOCK, recipe.cache, ranks)
        blocks = int(left / size)
        token = _token_seconds(question.load, recipe, pace_of(question, recipe, serving), prompts)
        fastest = min(fastest, token(1))
        # The most requests at once, of those that fit, whose tokens come in time.
        slots = bisect_right(range(1, _held(question.load, recipe, blocks) + 1), question.slo.tpot, key=token)
        if slots:
            found.append((slots / token(slots) / ranks, -ranks, Replica(serving, slots, blocks, size * ranks)))
    if not found and fastest < math.inf:
        raise ConfigError(
            f"slo_tpot_ms must be at least {math.ceil(1e3 * fastest)} for {question.name} on {gpu.name}, got "
            f"{1e3 * question.slo.tpot:g}: a token takes that long for one request alone",
            field="slo_tpot_ms",
        )
    if not found:
        raise ConfigError(reasons[-1], field="gpu")
    return max(found, key=lambda one: one[:2])[2]


def _held(load: Load, recipe: Recipe, blocks: int) -> int:
    """Requests that the cache holds at once, in the mean, and that may run."""
    tokens = blocks * BLOCK
    if recipe.contiguous:
        return min(tokens // room(load), _MOST_AT_ONCE)
    shared = load.prefix_len if recipe.caching else 0
    each = load.prefix_len + load.input_len + load.output_len / 2 - shared
    return min(int(max(_PACKED * tokens - shared, 0) / each), _MOST_AT_ONCE)


def _token_seconds(load: Load, recipe: Recipe, pace: Pace, prompts: bool) -> Callable[[int], float]:
    """Of a token, by requests at once: continuous batches do a share of somebody's prompt in each step."""
    own = load.computed if recipe.caching else load.input_len + load.prefix_len
    before = load.prefix_len + load.cached if recipe.caching else 0
    pairs = own * (before + own / 2)

    def seconds(requests: int) -> float:
        context = int(requests * (load.prefix_len + load.input_len + load.output_len / 2))
        begun = 0.0 if recipe.static or not prompts else requests / load.output_len
        new = math.ceil(begun)
        entries = requests + new
        return pace(StepWork(requests + math.ceil(begun * own), entries, context, begun * pairs, entries, entries, new))

    return seconds
