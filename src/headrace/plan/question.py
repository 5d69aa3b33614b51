"""Question: what a plan is asked for: a model, the GPUs that may be used, a load, the times that it must keep, and
what of the search is decided beforehand. Everything is checked here, so that the search meets no nonsense.
"""

import math
from dataclasses import dataclass, field

from headrace.core.errors import ConfigError
from headrace.core.hardware import Hardware
from headrace.core.model_spec import ITEM_BYTES, ModelSpec
from headrace.policy.draft_model import ACCEPTANCE, DraftModel, check_guessing, layer_on_top
from headrace.workload.demand import Demand

CACHE_DTYPES = ("bf16", "fp8", "int8")
POOLS = ("unified", "split")
_MOST = 1e12


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds to the first token and for each token after it, that a share `percentile` of requests must keep."""

    ttft: float
    tpot: float
    percentile: float = 99.0

    def __post_init__(self) -> None:
        _within("slo_ttft_ms", self.ttft * 1e3, 0)
        _within("slo_tpot_ms", self.tpot * 1e3, 0)
        if not 50 <= self.percentile < 100:
            raise ConfigError(f"slo_percentile must be 50 to below 100, got {self.percentile}", field="slo_percentile")


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked. Either rate (requests a second) or users, each of whom waits think_time seconds after an answer.
    input_len, output_len: tokens of a prompt and an answer, in the mean. prefix_len: tokens before them with which
    every prompt begins. spread: variance of the prompts' lengths over their mean squared. longest: tokens of the
    longest prompt and answer together, prefix not counted; 0: the mean's. cached: tokens of a prompt that are
    counted on to be in a cache, in the mean. short: tokens of
    an answer than which 98 of 100 are longer; 0: the mean's. demands: a trace's requests, if it is one."""

    rate: float | None = None
    input_len: float = 200
    output_len: float = 200
    prefix_len: int = 0
    users: float | None = None
    think_time: float = 0.0
    spread: float = 0.0
    longest: int = 0
    cached: float = 0.0
    short: float = 0.0
    demands: tuple[Demand, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.users is None):
            raise ConfigError("give either qps or concurrent_users", field="qps")
        if self.rate is not None:
            _within("qps", self.rate, 0)
        if self.users is not None:
            _within("concurrent_users", self.users, 0)
        _within("think_time_s", self.think_time, 0, inclusive=True)
        _within("input_len", self.input_len, 1, inclusive=True)
        _within("output_len", self.output_len, 1, inclusive=True)
        _within("prefix_len", self.prefix_len, 0, inclusive=True)

    @property
    def computed(self) -> float:
        """Tokens of a prompt that are to be computed, in the mean."""
        return max(self.input_len - self.cached, 1.0)

    @property
    def whole(self) -> int:
        """Tokens that the longest request keeps of its own, prefix not counted."""
        return self.longest or math.ceil(self.input_len + self.output_len)


@dataclass(frozen=True, slots=True)
class Limits:
    """What of the search is decided beforehand. weights, caches: dtypes to try, empty for those that keep the quality
    of 16 bits. chunks: tokens of a step at most. drafts: draft tokens to try, 0 is no speculation; accepted: share of
    draft tokens that hold; drafted: whether speculation may be the answer; drafter: who guesses, None for a layer on
    top of the model, called speculative_model. headroom: replicas more than the load needs,
    as a share of them."""

    weights: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    max_tp: int = 8
    max_pp: int = 8
    chunks: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    drafts: tuple[int, ...] = (0, 3)
    accepted: float = ACCEPTANCE
    drafted: bool = False
    drafter: DraftModel | None = None
    speculative_model: str = ""
    pools: tuple[str, ...] = POOLS
    headroom: float = 0.1

    def __post_init__(self) -> None:
        _among("precision", self.weights, tuple(ITEM_BYTES))
        _among("kv_cache_dtype", self.caches, CACHE_DTYPES)
        _among("pools", self.pools, POOLS)
        _within("max_tp", self.max_tp, 1, inclusive=True)
        _within("max_pp", self.max_pp, 1, inclusive=True)
        for chunk in self.chunks:
            _within("max_num_batched_tokens", chunk, 16, inclusive=True)
        most = max(self.drafts)
        check_guessing(most, self.accepted if most else None, self.drafter)
        if not 0 <= self.headroom <= 10:
            raise ConfigError(f"headroom must be 0 to 10, a share, got {self.headroom}", field="headroom")


@dataclass(frozen=True, slots=True)
class Question:
    """A model on some of the GPUs, prices already replaced by the asker's. name: the model's."""

    name: str
    model: ModelSpec
    gpus: tuple[Hardware, ...]
    load: Load
    slo: Slo
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    simulate: bool = True
    """Whether the best few are tried with the real scheduler."""

    def __post_init__(self) -> None:
        tokens = self.load.prefix_len + self.load.whole
        if tokens > self.model.max_position:
            raise ConfigError(
                f"a prompt and its answer have {tokens:,} tokens, more than the {self.model.max_position:,} of "
                f"{self.name}'s context",
                field="input_len",
            )
        if self.limits.drafter is not None:
            self.limits.drafter.check(self.model)
        if not self.gpus:
            raise ConfigError("give at least one gpu", field="gpu")

    @property
    def drafter(self) -> DraftModel:
        """Who guesses ahead, if anybody does."""
        return self.limits.drafter or layer_on_top(self.model)


def _within(name: str, value: float, least: float, *, inclusive: bool = False) -> None:
    """ConfigError unless the value is a number from `least` (itself only if inclusive) to _MOST."""
    if not (math.isfinite(value) and (value >= least if inclusive else value > least) and value <= _MOST):
        bound = f"at least {least:g}" if inclusive else f"above {least:g}"
        raise ConfigError(f"{name} must be {bound} and at most {_MOST:g}, got {value:g}", field=name)


def _among(name: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    for value in values:
        if value not in known:
            raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}", field=name)
