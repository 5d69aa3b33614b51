"""A Question from what somebody wrote: names of models and GPUs, milliseconds, dtypes; the command's flags and the
Python API's keywords are the same.
"""

from __future__ import annotations  # errors show a keyword's type as it is written

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pvariance, quantiles

from headrace.core.errors import ConfigError
from headrace.core.hardware import Hardware, known_hardware
from headrace.models.published import published_model
from headrace.plan.question import POOLS, Limits, Load, Question, Slo
from headrace.policy.draft_model import ACCEPTANCE, DraftModel, check_guessing
from headrace.workload.demand import Demand
from headrace.workload.summary import times_of
from headrace.workload.traces import read_trace

_LENGTH = 200  # tokens of a prompt and of an answer, where nothing is said
_PARTS = 10  # equal spans of a trace, of which the busiest counts
_SAME = {"bfloat16": "bf16", "float16": "bf16", "fp16": "bf16", "auto": ""}


def ask(
    model: str,
    gpu: str | Sequence[str] = "h100",
    *,
    qps: float | None = None,
    input_len: float | None = None,
    output_len: float | None = None,
    prefix_len: int = 0,
    trace: str | Path | None = None,
    rate_multiplier: float | None = None,
    concurrent_users: float | None = None,
    think_time_s: float = 0.0,
    slo_ttft_ms: float = 1000.0,
    slo_tpot_ms: float = 50.0,
    slo_percentile: float = 99.0,
    price: Mapping[str, float] | None = None,
    precision: str | Sequence[str] = (),
    kv_cache_dtype: str | Sequence[str] = (),
    max_tp: int = 8,
    max_pp: int = 8,
    max_num_batched_tokens: int | None = None,
    num_speculative_tokens: int | None = None,
    acceptance: float | None = None,
    speculative_model: str | None = None,
    pools: str | None = None,
    headroom: float = 0.1,
    seed: int = 0,
    simulate: bool = True,
) -> Question:
    """gpu, precision, kv_cache_dtype: one, several, or several with commas between. price: US dollars
    an hour by GPU."""
    if trace is None:
        if rate_multiplier is not None:
            raise ConfigError("rate_multiplier goes with trace; without one say qps", field="rate_multiplier")
        prompt, answer = (_LENGTH if length is None else length for length in (input_len, output_len))
        load = Load(qps, prompt, answer, prefix_len, concurrent_users, think_time_s)
    else:
        for name, value in (("qps", qps), ("input_len", input_len), ("output_len", output_len)):
            if value is not None:
                raise ConfigError(f"a trace has its own times and lengths: leave out {name}", field=name)
        if prefix_len or concurrent_users is not None:
            raise ConfigError("prefix_len and concurrent_users do not go with trace", field="trace")
        load = recorded(read_trace(Path(trace)), 1.0 if rate_multiplier is None else rate_multiplier)
    check_guessing(num_speculative_tokens, acceptance, speculative_model)
    limits = Limits(
        weights=_dtypes(precision),
        caches=_dtypes(kv_cache_dtype),
        max_tp=max_tp,
        max_pp=max_pp,
        chunks=Limits().chunks if max_num_batched_tokens is None else (max_num_batched_tokens,),
        drafts=Limits().drafts if num_speculative_tokens is None else (num_speculative_tokens,),
        accepted=ACCEPTANCE if acceptance is None else acceptance,
        drafted=acceptance is not None or bool(num_speculative_tokens) or speculative_model is not None,
        drafter=None if speculative_model is None else DraftModel(published_model(speculative_model)),
        speculative_model=speculative_model or "",
        pools=POOLS if pools is None else (pools,),
        headroom=headroom,
    )
    return Question(
        model,
        published_model(model),
        _hardware(_listed(gpu), price or {}),
        load,
        Slo(slo_ttft_ms / 1e3, slo_tpot_ms / 1e3, slo_percentile),
        limits,
        seed,
        simulate,
    )


def recorded(demands: Sequence[Demand], rate_multiplier: float) -> Load:
    """The load of a trace: its lengths, and the rate of its busiest tenth. A request that follows another counts as if
    answers took no time."""
    if not 0 < rate_multiplier < math.inf:
        raise ConfigError(f"rate_multiplier must be above 0, got {rate_multiplier}", field="rate_multiplier")
    times = times_of(demands)
    lasts = times[-1] - times[0]
    if not lasts:
        raise ConfigError("all requests of the trace come at once: it has no rate; say qps and lengths", field="trace")
    busiest = max(Counter(min(int(_PARTS * (at - times[0]) / lasts), _PARTS - 1) for at in times).values())
    prompts = [one.input_len for one in demands]
    mean = fmean(prompts)
    return Load(
        busiest * _PARTS / lasts * rate_multiplier,
        mean,
        fmean(one.output_len for one in demands),
        spread=pvariance(prompts, mean) / mean**2,
        longest=max(one.input_len + one.output_len for one in demands),
        short=quantiles([one.output_len for one in demands], n=50, method="inclusive")[0],
        demands=tuple(demands),
    )


def _hardware(names: Sequence[str], prices: Mapping[str, float]) -> tuple[Hardware, ...]:
    gpus = {gpu.name: gpu for gpu in map(known_hardware, names)}
    for name, price in prices.items():
        gpu = known_hardware(name, "price")
        if gpu.name not in gpus:
            raise ConfigError(
                f"there is a price for {name}, which is not among the GPUs ({', '.join(gpus)})", field="price"
            )
        if not (math.isfinite(price) and price > 0):
            raise ConfigError(f"price of {name} must be above 0, got {price}", field="price")
        gpus[gpu.name] = replace(gpu, price_per_hour=price, priced="as given")
    return tuple(gpus.values())


def _listed(names: str | Sequence[str]) -> list[str]:
    """Names that may be one string with commas between."""
    return [name.strip() for name in (names.split(",") if isinstance(names, str) else names) if name.strip()]


def _dtypes(names: str | Sequence[str]) -> tuple[str, ...]:
    plain = (_SAME.get(name.lower(), name.lower()) for name in _listed(names))
    return tuple(dict.fromkeys(name for name in plain if name))
