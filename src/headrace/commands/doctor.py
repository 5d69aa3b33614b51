"""headrace doctor: what this machine lends, what a model takes of it, and what to change where that does not fit."""

import dataclasses
import platform
import sys
from pathlib import Path
from typing import Any

import click

from headrace.commands.report import json_option, show
from headrace.commands.settings import takes_config
from headrace.core.config import Config
from headrace.core.errors import HeadraceError
from headrace.launch import BuiltEngine, build_engine
from headrace.models.sources import locate_model
from headrace.ops.cpu import available_isas
from headrace.ops.cpu_ceilings import measure_ceilings
from headrace.worker.machine import available_memory, this_machine


@click.command()
@click.option("--measure", is_flag=True, help="Also measure what the machine does at best; takes a second.")
@json_option
@takes_config()
def doctor(measure: bool, json_file: Path | None, config: Config) -> int:
    """Show this machine, and MODEL's engine on it: kernels, threads, and where the memory goes."""
    report: dict[str, Any] = {"machine": _machine()}
    if measure:
        threads = this_machine().threads if config.threads is None else config.threads
        report["ceilings"] = dataclasses.asdict(measure_ceilings(threads, config.isa))
    try:
        built = build_engine(locate_model(config))
    except HeadraceError as error:
        report["problem"] = str(error)
    else:
        report |= {"engine": _engine(built), "memory": _memory(built)}
    show(report, json_file)
    return 1 if "problem" in report else 0


def _machine() -> dict[str, Any]:
    machine = this_machine()
    return {
        "processor": machine.name,
        "features": list(machine.features),
        "kernel_sets": available_isas(),
        "cores": machine.threads,
        "memory_bytes": machine.memory_bytes,
        "available_bytes": available_memory(),
        "python": platform.python_version(),
        "system": f"{sys.platform} {platform.machine()}",
    }


def _engine(built: BuiltEngine) -> dict[str, Any]:
    return {
        **built.ready.describe,
        "fingerprint": built.ready.fingerprint,
        "max_num_seqs": built.config.max_num_seqs,
        "max_num_batched_tokens": built.config.max_num_batched_tokens,
    }


def _memory(built: BuiltEngine) -> dict[str, Any]:
    plan = built.plan
    planned = plan.weight_bytes + plan.activation_bytes + plan.kv_bytes
    return {
        "weights_bytes": plan.weight_bytes,
        "activations_bytes": plan.activation_bytes,
        "kv_cache_bytes": plan.kv_bytes,
        "total_bytes": planned,
        "left_bytes": plan.available_bytes - planned,
        "kv_blocks": sum(plan.num_blocks),
        "kv_block_bytes": list(plan.block_bytes),
        "max_model_len": plan.max_model_len,
        "longest_sequences_at_once": plan.longest_sequences,
        **_draft_model(built),
    }


def _draft_model(built: BuiltEngine) -> dict[str, Any]:
    """What of that a draft model takes, whose KV groups come last."""
    if built.config.speculative_model is None:
        return {}
    plan, own = built.plan, len(built.spec.kv_groups)
    blocks = zip(plan.num_blocks[own:], plan.block_bytes[own:], strict=True)
    return {
        "draft_model_weights_bytes": plan.draft_weight_bytes,
        "draft_model_kv_cache_bytes": sum(n * size for n, size in blocks),
    }
