"""Plan: a question's answer as data: how many GPUs, what they cost and why so many, and the candidates that were
weighed. `to_dict` is what `headrace plan --json` writes; nothing is computed here.
"""

from dataclasses import dataclass, field
from typing import Any

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """gpus, nodes: of all replicas. cost: US dollars. ttft, tpot: milliseconds by percentile (p50, p99). gpu_bytes: of
    one GPU's memory by what takes it. concurrency: requests that a replica holds at once. limit: what binds
    (arithmetic, bandwidth, memory, network). interval: GPUs at least and at most. details: everything else that is
    printed, by section. candidates: all that were weighed, the best first."""

    gpu: str
    gpus: int
    nodes: int
    replicas: int
    cost_per_hour: float
    cost_per_million: float
    ttft: Figures
    tpot: Figures
    gpu_bytes: dict[str, int]
    concurrency: int
    limit: str
    interval: tuple[int, int]
    details: Figures = field(default_factory=dict)
    candidates: tuple[Figures, ...] = ()

    def to_dict(self) -> Figures:
        """The same with the units in the names, as --json writes it."""
        return {
            "gpu": self.gpu,
            "gpus": self.gpus,
            "gpus_interval": list(self.interval),
            "nodes": self.nodes,
            "replicas": self.replicas,
            "cost_per_hour_usd": self.cost_per_hour,
            "cost_per_million_output_tokens_usd": self.cost_per_million,
            "ttft_ms": self.ttft,
            "tpot_ms": self.tpot,
            "per_gpu_bytes": self.gpu_bytes,
            "max_concurrency_per_replica": self.concurrency,
            "binding_limit": self.limit,
            **self.details,
            "candidates": list(self.candidates),
        }
