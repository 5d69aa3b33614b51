"""Headrace in this process, through the same face as a user's script."""

from __future__ import annotations

from protocol import Generate, Score, Task, run_child

from headrace import LLM, SamplingParams


def load(task: Task) -> tuple[Generate, Score]:
    llm = LLM(
        model=task.model,
        threads=task.threads,
        enable_prefix_caching=False,
        speculate="suffix" if task.guessing else "none",
    )

    def generate(prompts: list[list[int]], output_len: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def score(window: list[int]) -> list[float]:
        params = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=0)
        output = llm.generate([{"prompt_token_ids": window}], params)[0]
        pairs = zip(output.prompt_logprobs[1:], window[1:], strict=True)
        return [logprobs[token].logprob for logprobs, token in pairs]

    return generate, score


if __name__ == "__main__":
    run_child(load)
