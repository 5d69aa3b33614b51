"""A Fleet and a load from what somebody wrote: names of a model and a GPU, dtypes, sizes, a trace or a workload; the
command's flags and the Python API's keywords are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.core.hardware import known_hardware
from headrace.core.model_spec import ModelSpec
from headrace.models.loader import load_model
from headrace.models.published import published_model
from headrace.policy.draft_model import DraftModel
from headrace.policy.memory import USABLE
from headrace.policy.roofline import Serving
from headrace.simulate.fleet import ACCEPTANCE, Fleet
from headrace.simulate.pools import Pools
from headrace.workload.demand import Demand
from headrace.workload.synthetic import named
from headrace.workload.traces import HASHED, read_trace

_SAME = {"bfloat16": "bf16", "float16": "bf16", "fp16": "bf16", "auto": "bf16", "none": "bf16"}
_PRECISIONS = ("bf16", "fp8", "int8", "int4", "fp4")
_DRAWN = 1000
"""Requests of a workload, if nobody says how many."""
_BLOCK_SIZE = 16
_CACHES = ("bf16", "fp8", "int8")
_FLAGS = {"min_tokens": "transfer_min_tokens", "dtype": "transfer_dtype", "incremental": "incremental_transfer"}


def ask_fleet(
    model: str,
    gpu: str,
    *,
    replicas: int = 1,
    tensor_parallel_size: int = 1,
    precision: str = "bf16",
    kv_cache_dtype: str = "auto",
    block_size: int = 16,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    max_model_len: int | None = None,
    gpu_memory_utilization: float = USABLE,
    enable_prefix_caching: bool = True,
    num_speculative_tokens: int = 0,
    acceptance: float | None = None,
    speculative_model: str | None = None,
) -> Fleet:
    """model, speculative_model: published ones by name, or paths of some that are here. Raises ConfigError or
    ModelError, naming the field, what is allowed and the nearest."""
    serving = Serving(
        known_hardware(gpu),
        tensor_parallel_size,
        weights=_one_of("precision", precision, _PRECISIONS),
        cache=_one_of("kv_cache_dtype", kv_cache_dtype, _CACHES),
    )
    if acceptance is not None and not num_speculative_tokens:
        raise ConfigError("acceptance goes with num_speculative_tokens above 0", field="acceptance")
    return Fleet(
        _spec(model),
        serving,
        replicas,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        gpu_memory_utilization=gpu_memory_utilization,
        enable_prefix_caching=enable_prefix_caching,
        num_speculative_tokens=num_speculative_tokens,
        acceptance=ACCEPTANCE if acceptance is None else acceptance,
        drafter=None if speculative_model is None else DraftModel(_spec(speculative_model)),
    )


def ask_pools(
    fleet: Fleet,
    *,
    prefill_replicas: int | None = None,
    decode_replicas: int | None = None,
    transfer_min_tokens: int | None = None,
    transfer_dtype: str | None = None,
    incremental_transfer: bool | None = None,
    placement: str | None = None,
    rack_nodes: int | None = None,
) -> Fleet | Pools:
    """The fleet, or two pools of so many of its replicas. Raises ConfigError, also for what goes with pools alone."""
    given = {
        "min_tokens": transfer_min_tokens,
        "dtype": transfer_dtype,
        "incremental": incremental_transfer,
        "placement": placement,
        "rack_nodes": rack_nodes,
    }
    told = {name: value for name, value in given.items() if value is not None}
    if prefill_replicas is None and decode_replicas is None:
        for name in told:
            flag = _FLAGS.get(name, name)
            raise ConfigError(f"{flag} goes with prefill_replicas and decode_replicas", field=flag)
        return fleet
    if fleet.replicas != 1:
        raise ConfigError("replicas are of a fleet without pools: leave it out", field="replicas")
    for name, count in (("prefill_replicas", prefill_replicas), ("decode_replicas", decode_replicas)):
        if count is None or count < 1:
            raise ConfigError(f"{name} must be at least 1 where the other is given, got {count}", field=name)
    assert prefill_replicas is not None and decode_replicas is not None
    return Pools(replace(fleet, replicas=prefill_replicas), replace(fleet, replicas=decode_replicas), **told)  # type: ignore[arg-type]


def all_replicas(replicas: int, prefill_replicas: int | None, decode_replicas: int | None) -> int:
    """Of the pools together, or of the fleet without them."""
    return (prefill_replicas or 0) + (decode_replicas or 0) or replicas


def link_names(fleet: Fleet | Pools) -> list[str]:
    """Of the links that may fail."""
    return fleet.wiring().network.names if isinstance(fleet, Pools) else []


def ask_load(
    trace: str | Path | None = None,
    workload: str | None = None,
    *,
    rate: float | None = None,
    users: int | None = None,
    requests: int | None = None,
    replicas: int = 1,
    seed: int = 0,
) -> list[Demand]:
    """A trace's requests, or a workload's, at one a second for each replica if neither rate nor users are given.
    requests: only the first so many. Raises ConfigError."""
    if (trace is None) == (workload is None):
        raise ConfigError("give either trace, a file of recorded requests, or workload, a name", field="trace")
    if trace is not None:
        if rate is not None or users is not None:
            raise ConfigError("rate and users go with workload; a trace has rate_multiplier", field="rate")
        return read_trace(Path(trace), requests)
    assert workload is not None
    if rate is None and users is None:
        rate = float(replicas)
    return named(workload, requests=requests or _DRAWN, rate=rate, users=users, seed=seed)


def natural_block_size(demands: Sequence[Demand]) -> int:
    """That of a trace which names its prompts' blocks, since nothing smaller is known to be shared."""
    lengths = {length for one in demands for _, length in one.prompt[:-1]}
    return HASHED if lengths == {HASHED} else _BLOCK_SIZE


def _spec(model: str) -> ModelSpec:
    path = Path(model).expanduser()
    return load_model(path).spec if path.exists() else published_model(model)


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> str:
    plain = _SAME.get(value.lower(), value.lower())
    if plain not in allowed:
        raise ConfigError(f"{field} must be one of {', '.join(allowed)}, got {value!r}", field=field)
    return plain
