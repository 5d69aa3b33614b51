"""What a fleet needs beside its GPUs: processors and memory of the hosts, and the networks to clients and between the
nodes. Rough, from what was measured of this server (docs/performance.md) and the bytes that must move.
"""

import math

from headrace.plan.answer import Figures
from headrace.plan.candidate import Candidate
from headrace.plan.question import Question

_STREAMED = 250.0  # bytes of one token as a server-sent event, headers of the packet included
_ASKED = 6.0  # bytes of one token of a prompt in JSON
_SECONDS_PER_TOKEN = 36e-6  # of a core, in the process that speaks HTTP
_CORES_PER_GPU = 2  # the engine's process and its workers
_HOST_GB_BESIDE = 16e9  # bytes of a node's operating system and processes


def host_needs(candidate: Candidate, question: Question) -> Figures:
    """Of one node."""
    nodes, gpu = candidate.nodes, candidate.gpu
    tokens = candidate.rate * question.load.output_len / nodes
    weights = question.model.weight_bytes(candidate.pools[-1].replica.way.serving.weights)
    return {
        "cores_per_node": math.ceil(_CORES_PER_GPU * gpu.per_node + tokens * _SECONDS_PER_TOKEN),
        "memory_per_node_bytes": int(weights + _HOST_GB_BESIDE),
        "memory_per_node_known_bytes": gpu.host_memory_bytes * gpu.per_node,
        "weights_to_load_bytes": weights,
        "weights_from_host_s": weights / gpu.per_node / gpu.pcie,
    }


def network_needs(candidate: Candidate, question: Question) -> Figures:
    """Bytes a second to clients, and of keys and values between the pools."""
    load, rate = question.load, candidate.rate
    out = rate * load.output_len * _STREAMED
    into = rate * (load.input_len + load.prefix_len) * _ASKED
    moved = rate * candidate.transfer_bytes
    prefill = candidate.replicas[0] * candidate.pools[0].devices
    return {
        "to_clients_bytes_per_s": out,
        "from_clients_bytes_per_s": into,
        "per_node_gbit_per_s": (out + into) * 8 / 1e9 / candidate.nodes,
        "kv_transfer_bytes_per_request": candidate.transfer_bytes,
        "kv_transfer_bytes_per_s": moved,
        "kv_transfer_gbit_per_s_per_gpu": moved * 8 / 1e9 / prefill,
        "kv_transfer_ms": candidate.transfer_seconds * 1e3,
        "nic_gbit_per_s_per_gpu": candidate.gpu.nic * 8 / 1e9,
    }
