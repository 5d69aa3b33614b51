"""Asked: a fleet, a load and how they meet, as somebody wrote them: names of a model and a GPU, dtypes, sizes, a trace
or a workload. The command's flags and the Python API's keywords are its fields.
"""

from __future__ import annotations  # errors show a keyword's type as it is written

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.core.hardware import known_hardware
from headrace.core.model_spec import ModelSpec
from headrace.models.loader import load_model
from headrace.models.published import published_model
from headrace.policy.draft_model import ACCEPTANCE, DraftModel, check_guessing
from headrace.policy.memory import USABLE
from headrace.policy.roofline import Serving
from headrace.simulate.faults import read_faults
from headrace.simulate.fleet import Fleet
from headrace.simulate.pools import Pools
from headrace.simulate.result import Result, Slo
from headrace.simulate.simulator import STARTUP_S, simulate
from headrace.simulate.watch import Watch
from headrace.workload.demand import Demand
from headrace.workload.summary import summarize
from headrace.workload.synthetic import KINDS, named
from headrace.workload.traces import HASHED, read_trace

_SAME = {"bfloat16": "bf16", "float16": "bf16", "fp16": "bf16", "auto": "bf16", "none": "bf16"}
_PRECISIONS = ("bf16", "fp8", "int8", "int4", "fp4")
_DRAWN = 1000
"""Requests of a workload, if nobody says how many."""
_BLOCK_SIZE = 16
_CACHES = ("bf16", "fp8", "int8")
_FLAGS = {"min_tokens": "transfer_min_tokens", "dtype": "transfer_dtype", "incremental": "incremental_transfer"}


@dataclass(frozen=True, slots=True)
class Asked:
    """model, speculative_model: published ones by name, or paths of some that are here. trace or workload: what is
    served, by `requests` only the first so many; a workload comes at one a second for each replica if neither rate nor
    users are given. Methods raise ConfigError or ModelError, naming the field, what is allowed and the nearest."""

    model: str
    gpu: str
    _: KW_ONLY
    trace: str | Path | None = None
    workload: str | None = None
    rate: float | None = None
    users: int | None = None
    requests: int | None = None
    rate_multiplier: float = 1.0
    replicas: int = 1
    prefill_replicas: int | None = None
    decode_replicas: int | None = None
    transfer_min_tokens: int | None = None
    transfer_dtype: str | None = None
    incremental_transfer: bool | None = None
    placement: str | None = None
    rack_nodes: int | None = None
    router: str = "round-robin"
    tensor_parallel_size: int = 1
    precision: str = "bf16"
    kv_cache_dtype: str = "auto"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float = USABLE
    enable_prefix_caching: bool = True
    num_speculative_tokens: int = 0
    acceptance: float | None = None
    speculative_model: str | None = None
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    seed: int = 0
    fail: Sequence[str] = ()
    startup_s: float = STARTUP_S
    kv_events_delay_ms: float | None = None

    @property
    def unit(self) -> str:
        """Of how much is offered."""
        return "requests/s" if self.users is None else "users"

    def times(self, multiplier: float) -> tuple[Sequence[Demand], float, float]:
        """So many times this load: demands, by how much they come faster than they say, and how much is offered. A
        recorded load comes faster, a drawn one is drawn anew at that rate or for that many users, since its pauses do
        not shrink."""
        if self.trace is not None:
            demands = self.demands()
            return demands, multiplier, multiplier * (summarize(demands)["rate_per_s"] or 0.0)
        if self.users is not None:
            users = max(min(1, self.users), round(multiplier * self.users))
            return replace(self, users=users).demands(), 1.0, users
        # Of the pools together, or of the fleet without them.
        replicas = (self.prefill_replicas or 0) + (self.decode_replicas or 0) or max(self.replicas, 1)
        rate = multiplier * (float(replicas) if self.rate is None else self.rate)
        return replace(self, rate=rate).demands(), 1.0, rate

    def demands(self) -> list[Demand]:
        """A trace's requests, or a workload's at its rate or of its users."""
        if (self.trace is None) == (self.workload is None):
            drawn = ", ".join(KINDS)
            raise ConfigError(f"give either trace, a file of recorded requests, or workload: {drawn}", field="trace")
        if self.requests is not None and self.requests < 1:
            raise ConfigError(f"requests must be at least 1, got {self.requests}", field="requests")
        if self.trace is not None:
            if self.rate is not None or self.users is not None:
                raise ConfigError("rate and users go with workload; a trace has rate_multiplier", field="rate")
            return read_trace(Path(self.trace), self.requests)
        assert self.workload is not None
        requests = _DRAWN if self.requests is None else self.requests
        return named(self.workload, requests=requests, rate=self.rate, users=self.users, seed=self.seed)

    def fleet(self, demands: Sequence[Demand] = ()) -> Fleet | Pools:
        """What serves these demands, whose blocks it has if nobody says how large."""
        check_guessing(self.num_speculative_tokens, self.acceptance, self.speculative_model)
        serving = Serving(
            known_hardware(self.gpu),
            self.tensor_parallel_size,
            weights=_one_of("precision", self.precision, _PRECISIONS),
            cache=_one_of("kv_cache_dtype", self.kv_cache_dtype, _CACHES),
        )
        fleet = Fleet(
            _spec(self.model),
            serving,
            self.replicas,
            block_size=natural_block_size(demands) if self.block_size is None else self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            gpu_memory_utilization=self.gpu_memory_utilization,
            enable_prefix_caching=self.enable_prefix_caching,
            num_speculative_tokens=self.num_speculative_tokens,
            acceptance=ACCEPTANCE if self.acceptance is None else self.acceptance,
            drafter=None if self.speculative_model is None else DraftModel(_spec(self.speculative_model)),
        )
        return self._pools(fleet)

    def run(
        self,
        demands: Sequence[Demand],
        fleet: Fleet | Pools,
        *,
        faster: float = 1.0,
        progress: Callable[[int], object] = lambda ended: None,
        watch: Watch | None = None,
    ) -> Result:
        """What comes of it where demands come so many times as fast. progress, watch: as simulator.py takes them."""
        links = fleet.wiring().network.names if isinstance(fleet, Pools) else []
        return simulate(
            demands,
            fleet,
            router=self.router,
            seed=self.seed,
            rate_multiplier=self.rate_multiplier * faster,
            slo=Slo(self.slo_ttft_ms, self.slo_tpot_ms),
            progress=progress,
            watch=watch,
            faults=read_faults(self.fail, fleet.replicas, links),
            startup_s=self.startup_s,
            kv_events_delay_s=None if self.kv_events_delay_ms is None else self.kv_events_delay_ms / 1e3,
        )

    def _pools(self, fleet: Fleet) -> Fleet | Pools:
        """The fleet, or two pools of so many of its replicas."""
        given = {
            "min_tokens": self.transfer_min_tokens,
            "dtype": self.transfer_dtype,
            "incremental": self.incremental_transfer,
            "placement": self.placement,
            "rack_nodes": self.rack_nodes,
        }
        told = {name: value for name, value in given.items() if value is not None}
        prefill, decode = self.prefill_replicas, self.decode_replicas
        if prefill is None and decode is None:
            for name in told:
                flag = _FLAGS.get(name, name)
                raise ConfigError(f"{flag} goes with prefill_replicas and decode_replicas", field=flag)
            return fleet
        if fleet.replicas != 1:
            raise ConfigError("replicas are of a fleet without pools: leave it out", field="replicas")
        for name, count in (("prefill_replicas", prefill), ("decode_replicas", decode)):
            if count is None or count < 1:
                raise ConfigError(f"{name} must be at least 1 where the other is given, got {count}", field=name)
        assert prefill is not None and decode is not None
        return Pools(replace(fleet, replicas=prefill), replace(fleet, replicas=decode), **told)  # type: ignore[arg-type]


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
