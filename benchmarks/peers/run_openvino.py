"""OpenVINO GenAI's continuous batching. MODEL is a folder that benchmarks/convert_default_model.py, or optimum-intel,
made. Log-probabilities come from the plain runtime over the same compiled model, as the pipeline reports none.
"""

from __future__ import annotations

import numpy as np
import openvino
import openvino_genai
from protocol import GUESSES, Generate, Score, Task, run_child


def load(task: Task) -> tuple[Generate, Score]:
    properties = {"INFERENCE_NUM_THREADS": task.threads}
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 4
    scheduler.max_num_batched_tokens = 2048
    scheduler.max_num_seqs = 256
    scheduler.enable_prefix_caching = False
    if task.guessing:
        properties["prompt_lookup"] = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(task.model, scheduler, "CPU", properties)

    def generate(prompts: list[list[int]], output_len: int) -> int:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = output_len, True, False
        if task.guessing:
            config.num_assistant_tokens, config.max_ngram_size = GUESSES, 3
        tensors = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = pipeline.generate(tensors, [config] * len(prompts))
        return sum(len(result.m_generation_ids[0]) for result in results)

    runtime = openvino.Core()

    def score(window: list[int]) -> list[float]:
        model = runtime.compile_model(f"{task.model}/openvino_model.xml", "CPU", properties)
        request = model.create_infer_request()
        count = len(window)
        inputs = {
            "input_ids": np.array([window], np.int64),
            "attention_mask": np.ones((1, count), np.int64),
            "position_ids": np.arange(count, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        named = {name for port in model.inputs for name in port.names}
        logits = request.infer({k: v for k, v in inputs.items() if k in named})[0][0, :-1].astype(np.float64)
        peak = logits.max(axis=1)
        norm = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))
        return list(logits[np.arange(count - 1), window[1:]] - norm)

    return generate, score


if __name__ == "__main__":
    run_child(load)
