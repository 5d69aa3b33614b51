"""What can be planned without anything at hand: the models and the GPUs that are known by name, as a report."""

from typing import Any

from headrace.core.hardware import KNOWN
from headrace.models.published import CONFIGS, published_model
from headrace.policy.fitted_kernels import measured

Report = dict[str, dict[str, dict[str, Any]]]


def catalogue() -> Report:
    """{"models": {name: sizes}, "gpus": {name: limits}}, in the order in which they are kept."""
    return {"models": {name: _model(name) for name in CONFIGS}, "gpus": {name: _gpu(name) for name in KNOWN}}


def _model(name: str) -> dict[str, Any]:
    spec = published_model(name)
    return {
        "parameters": spec.num_parameters,
        "active_parameters": spec.active_parameters,
        "layers": len(spec.layers),
        "weight_bytes": {dtype: spec.weight_bytes(dtype) for dtype in ("bf16", "fp8", "int4")},
        "kv_bytes_per_token": {dtype: spec.kv_bytes(1, dtype) for dtype in ("bf16", "fp8")},
        "max_position": spec.max_position,
    }


def _gpu(name: str) -> dict[str, Any]:
    gpu = KNOWN[name]
    return {
        "memory_bytes": gpu.memory_bytes,
        "bandwidth_bytes_per_s": gpu.bandwidth,
        "operations_per_s": dict(gpu.peaks),
        "link_bytes_per_s": gpu.link,
        "per_node": gpu.per_node,
        "pcie_bytes_per_s": gpu.pcie,
        "nic_bytes_per_s": gpu.nic,
        "host_memory_bytes": gpu.host_memory_bytes,
        "price_per_hour_usd": gpu.price_per_hour,
        "priced": gpu.priced,
        "kernels_measured": measured(name),
    }
