"""vLLM's own scheduler in steady decode with prefix caching on, as benchmarks/scheduler.py measures Headrace's. Runs
in vLLM's virtual environment: run_vllm_scheduler.py FOLDER RUNNING PROMPT_LEN STEPS. Prints one JSON object."""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192
WARM_UP = 20


def scheduler(folder: str, running: int, prompt_len: int, steps: int) -> Scheduler:
    budget = max(running * (prompt_len + BLOCK_SIZE), MAX_MODEL_LEN)
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    config = VllmConfig(
        model_config=ModelConfig(model=folder, dtype="bfloat16", max_model_len=MAX_MODEL_LEN),
        scheduler_config=SchedulerConfig(
            max_num_seqs=running,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        cache_config=cache,
    )
    cache.num_gpu_blocks = running * (prompt_len + steps + WARM_UP + 96) // BLOCK_SIZE + 100
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=3, head_size=64, dtype=torch.bfloat16)
    blocks = KVCacheConfig(
        num_blocks=cache.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["l"], spec)]
    )
    made = Scheduler(
        vllm_config=config,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=False,
    )
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    draw = random.Random(0)
    for index in range(running):
        params = SamplingParams(max_tokens=4096, temperature=0, ignore_eos=True)
        params.update_from_generation_config({}, None)
        prompt = [draw.randrange(40000) for _ in range(prompt_len + index % BLOCK_SIZE)]
        made.add_request(
            Request(
                request_id=str(index),
                prompt_token_ids=prompt,
                sampling_params=params,
                pooling_params=None,
                block_hasher=hasher,
            )
        )
    return made


def summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "mean": round(statistics.fmean(values), 2),
        "p50": round(statistics.median(values), 2),
        "p99": round(ordered[int(len(ordered) * 0.99)], 2),
    }


def main(folder: str, running: int, prompt_len: int, steps: int) -> None:
    made = scheduler(folder, running, prompt_len, steps)
    schedule, update = [], []
    for step in range(steps + WARM_UP):
        began = time.perf_counter()
        plan = made.schedule()
        scheduled = time.perf_counter()
        ids = list(plan.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: index for index, name in enumerate(ids)},
            sampled_token_ids=[[7] for _ in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        ready = time.perf_counter()
        made.update_from_output(plan, output)
        updated = time.perf_counter()
        if step >= WARM_UP:
            schedule.append(1e6 * (scheduled - began))
            update.append(1e6 * (updated - ready))
    both = [a + b for a, b in zip(schedule, update, strict=True)]
    report = {"schedule_us": summary(schedule), "update_us": summary(update), "step_us": summary(both)}
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
