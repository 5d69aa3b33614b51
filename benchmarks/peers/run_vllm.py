"""vLLM's CPU build, bf16, in this process. MODEL is a folder of safetensors."""

from __future__ import annotations

import os

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from protocol import Generate, Score, Task, run_child
from vllm import LLM, SamplingParams


def load(task: Task) -> tuple[Generate, Score]:
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{task.threads - 1}")
    llm = LLM(model=task.model, dtype="bfloat16", max_model_len=2560, enable_prefix_caching=False)

    def generate(prompts: list[list[int]], output_len: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def score(window: list[int]) -> list[float]:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        output = llm.generate([{"prompt_token_ids": window}], params, use_tqdm=False)[0]
        pairs = zip(output.prompt_logprobs[1:], window[1:], strict=True)
        return [logprobs[token].logprob for logprobs, token in pairs]

    return generate, score


if __name__ == "__main__":
    run_child(load)
