"""Pools: a fleet of two pools of replicas, of which the one computes prompts and the other answers, and what goes from
the one to the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.core.hardware import RACK_NODES
from headrace.core.model_spec import item_bytes
from headrace.engine.executor import Capacity
from headrace.policy.disaggregation import MIN_TOKENS
from headrace.policy.pace import Pace
from headrace.simulate.fleet import Fleet
from headrace.simulate.guesses import Guessing
from headrace.simulate.placement import NODES, PLACEMENTS, Wiring, place

AS_CACHED = "kv"
TRANSFER_DTYPES = (AS_CACHED, "fp8", "int8")


@dataclass(frozen=True, slots=True)
class Pools:
    """Replicas are numbered through, prefill first. min_tokens: left to compute, from which a prompt goes to prefill.
    dtype: of what is sent, AS_CACHED or another. incremental: what is computed is sent while the rest is, else when all
    is. placement: one of PLACEMENTS."""

    prefill: Fleet
    decode: Fleet
    min_tokens: int = MIN_TOKENS
    dtype: str = AS_CACHED
    incremental: bool = True
    placement: str = NODES
    rack_nodes: int = RACK_NODES

    def __post_init__(self) -> None:
        for field, value, allowed in (
            ("transfer_dtype", self.dtype, TRANSFER_DTYPES),
            ("placement", self.placement, PLACEMENTS),
        ):
            if value not in allowed:
                raise ConfigError(f"{field} must be one of {', '.join(allowed)}, got {value!r}", field=field)
        if self.min_tokens < 0:
            raise ConfigError(
                f"transfer_min_tokens must be at least 0, got {self.min_tokens}", field="transfer_min_tokens"
            )
        if self.rack_nodes < 1:
            raise ConfigError(f"rack_nodes must be at least 1, got {self.rack_nodes}", field="rack_nodes")
        if not (self.prefill.enable_prefix_caching and self.decode.enable_prefix_caching):
            raise ConfigError(
                "pools need enable_prefix_caching: what is sent is found as a cached prefix",
                field="enable_prefix_caching",
            )

    @property
    def replicas(self) -> int:
        return self.prefill.replicas + self.decode.replicas

    @property
    def block_size(self) -> int:
        return self.decode.block_size

    def of(self, replica: int) -> Fleet:
        """The pool of this replica."""
        return self.prefill if replica < self.prefill.replicas else self.decode

    def capacity(self) -> Capacity:
        return self.decode.capacity()

    def config(self) -> Config:
        return self.decode.config()

    @property
    def guessing(self) -> Guessing | None:
        return self.decode.guessing

    def pace(self) -> Pace:
        return self.decode.pace()

    def wiring(self) -> Wiring:
        """The links between all replicas."""
        servings = [self.of(replica).serving for replica in range(self.replicas)]
        prefill, decode = self.prefill.serving, self.decode.serving
        sites = place(
            (self.prefill.replicas, self.decode.replicas),
            (prefill.devices, decode.devices),
            prefill.hardware.per_node,
            self.placement,
            self.rack_nodes,
        )
        return Wiring(sites, servings, self.rack_nodes)

    def traffic(self) -> Traffic:
        """What goes from the one pool to the other."""
        dtype = self.prefill.serving.cache if self.dtype == AS_CACHED else self.dtype
        groups = self.prefill.spec.kv_groups
        each = (len(g.layers) * g.kv_heads * (g.k_dim + g.v_dim) * item_bytes(dtype) for g in groups)
        return Traffic(tuple(zip((group.window for group in groups), each, strict=True)))


@dataclass(frozen=True, slots=True)
class Traffic:
    """groups: the window of each KV group, and bytes of a token in it."""

    groups: tuple[tuple[int | None, float], ...]

    def size(self, tokens: int, here: int, total: int) -> float:
        """Bytes of the first `tokens` of a prompt of `total` that go to a replica that has the first `here`. What no
        later token sees does not."""
        return sum(
            each * max(0, tokens - (here if window is None else max(here, total - window)))
            for window, each in self.groups
        )
