"""The simulator in Python: the keywords of `headrace simulate` are its flags, and what comes back has its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.policy.memory import USABLE
from headrace.simulate.asking import all_replicas, ask_fleet, ask_load, ask_pools, link_names, natural_block_size
from headrace.simulate.faults import read_faults
from headrace.simulate.result import Result, Slo
from headrace.simulate.simulator import STARTUP_S
from headrace.simulate.simulator import simulate as _simulate


def simulate(
    model: str,
    gpu: str,
    *,
    trace: str | Path | None = None,
    workload: str | None = None,
    rate: float | None = None,
    users: int | None = None,
    requests: int | None = None,
    rate_multiplier: float = 1.0,
    replicas: int = 1,
    prefill_replicas: int | None = None,
    decode_replicas: int | None = None,
    transfer_min_tokens: int | None = None,
    transfer_dtype: str | None = None,
    incremental_transfer: bool | None = None,
    placement: str | None = None,
    rack_nodes: int | None = None,
    router: str = "round-robin",
    tensor_parallel_size: int = 1,
    precision: str = "bf16",
    kv_cache_dtype: str = "auto",
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    max_model_len: int | None = None,
    block_size: int | None = None,
    gpu_memory_utilization: float = USABLE,
    enable_prefix_caching: bool = True,
    num_speculative_tokens: int = 0,
    acceptance: float | None = None,
    speculative_model: str | None = None,
    slo_ttft_ms: float | None = None,
    slo_tpot_ms: float | None = None,
    seed: int = 0,
    fail: Sequence[str] = (),
    startup_s: float = STARTUP_S,
    kv_events_delay_ms: float | None = None,
) -> Result:
    """Latency, goodput and cache hits of a fleet under a trace or a workload. Raises ConfigError or ModelError, naming
    the field and what is allowed."""
    count = all_replicas(replicas, prefill_replicas, decode_replicas)
    demands = ask_load(trace, workload, rate=rate, users=users, requests=requests, replicas=count, seed=seed)
    fleet = ask_fleet(
        model,
        gpu,
        replicas=replicas,
        tensor_parallel_size=tensor_parallel_size,
        precision=precision,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size or natural_block_size(demands),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        gpu_memory_utilization=gpu_memory_utilization,
        enable_prefix_caching=enable_prefix_caching,
        num_speculative_tokens=num_speculative_tokens,
        acceptance=acceptance,
        speculative_model=speculative_model,
    )
    pools = ask_pools(
        fleet,
        prefill_replicas=prefill_replicas,
        decode_replicas=decode_replicas,
        transfer_min_tokens=transfer_min_tokens,
        transfer_dtype=transfer_dtype,
        incremental_transfer=incremental_transfer,
        placement=placement,
        rack_nodes=rack_nodes,
    )
    slo = Slo(slo_ttft_ms, slo_tpot_ms)
    return _simulate(
        demands,
        pools,
        router=router,
        seed=seed,
        rate_multiplier=rate_multiplier,
        slo=slo,
        faults=read_faults(fail, pools.replicas, link_names(pools)),
        startup_s=startup_s,
        kv_events_delay_s=None if kv_events_delay_ms is None else kv_events_delay_ms / 1e3,
    )
