"""llama.cpp through llama-cpp-python's low-level interface: one batch over all sequences, greedy. MODEL is a .gguf
file. Weights in Q4_0 are repacked by the engine itself at load.
"""

from __future__ import annotations

import ctypes

import llama_cpp as llama
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from protocol import GUESSES, Generate, Score, Task, run_child

BATCH = 2048


class Engine:
    def __init__(self, task: Task) -> None:
        llama.llama_backend_init()
        self._log = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(self._log, ctypes.c_void_p(0))
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = llama.llama_model_load_from_file(task.model.encode(), parameters)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {task.model}")
        self.threads = task.threads
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.batch = llama.llama_batch_init(BATCH, 0, 1)

    def context(self, sequences: int, length: int):
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = sequences * (length + 16)
        parameters.n_batch, parameters.n_ubatch = BATCH, 512
        parameters.n_threads = parameters.n_threads_batch = self.threads
        parameters.n_seq_max = sequences
        return llama.llama_init_from_model(self.model, parameters)

    def add(self, token: int, position: int, sequence: int, logits: bool) -> None:
        i, batch = self.batch.n_tokens, self.batch
        batch.token[i], batch.pos[i] = token, position
        batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, sequence, logits
        batch.n_tokens += 1

    def decode(self, context) -> None:
        if llama.llama_decode(context, self.batch) != 0:
            raise SystemExit("llama.cpp could not decode a batch")

    def logits(self, context, row: int) -> np.ndarray:
        return np.ctypeslib.as_array(llama.llama_get_logits_ith(context, row), shape=(self.vocabulary,))

    def generate(self, prompts: list[list[int]], output_len: int) -> int:
        """The context, with its KV cache, is made before the clock matters only in engines that keep one; it is
        made here for each run, which takes milliseconds."""
        context = self.context(len(prompts), len(prompts[0]) + output_len)
        last = [0] * len(prompts)
        rows: list[tuple[int, int]] = []
        self.batch.n_tokens = 0
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                ends = position == len(prompt) - 1
                if ends:
                    rows.append((self.batch.n_tokens, sequence))
                self.add(token, position, sequence, ends)
                if self.batch.n_tokens == BATCH or (ends and sequence == len(prompts) - 1):
                    self.decode(context)
                    for row, owner in rows:
                        last[owner] = int(self.logits(context, row).argmax())
                    rows, self.batch.n_tokens = [], 0
        for step in range(output_len - 1):
            self.batch.n_tokens = 0
            for sequence, prompt in enumerate(prompts):
                self.add(last[sequence], len(prompt) + step, sequence, True)
            self.decode(context)
            last = [int(self.logits(context, row).argmax()) for row in range(len(prompts))]
        llama.llama_free(context)
        return len(prompts) * output_len

    def generate_guessing(self, prompts: list[list[int]], output_len: int) -> int:
        """With llama-cpp-python's own prompt lookup, whose guesses are computed in one batch with the last token."""
        (prompt,) = prompts
        context = self.context(1, len(prompt) + output_len + GUESSES)
        memory = llama.llama_get_memory(context)
        lookup = LlamaPromptLookupDecoding(num_pred_tokens=GUESSES)
        text: list[int] = list(prompt)
        for begin in range(0, len(prompt), BATCH):
            self.batch.n_tokens = 0
            for offset, token in enumerate(prompt[begin : begin + BATCH]):
                self.add(token, begin + offset, 0, begin + offset == len(prompt) - 1)
            self.decode(context)
        text.append(int(self.logits(context, self.batch.n_tokens - 1).argmax()))
        while len(text) < len(prompt) + output_len:
            guesses = [int(token) for token in lookup(np.array(text, np.intc))]
            self.batch.n_tokens = 0
            for offset, token in enumerate([text[-1], *guesses]):
                self.add(token, len(text) - 1 + offset, 0, True)
            self.decode(context)
            made = [int(self.logits(context, row).argmax()) for row in range(len(guesses) + 1)]
            right = next((n for n, guess in enumerate(guesses) if guess != made[n]), len(guesses))
            text += made[: right + 1]
            llama.llama_memory_seq_rm(memory, 0, len(text) - 1, -1)
        llama.llama_free(context)
        return output_len

    def score(self, window: list[int]) -> list[float]:
        context = self.context(1, len(window))
        found: list[float] = []
        for start in range(0, len(window), BATCH):
            part = window[start : start + BATCH]
            self.batch.n_tokens = 0
            for offset, token in enumerate(part):
                self.add(token, start + offset, 0, True)
            self.decode(context)
            for row, following in enumerate(window[start + 1 : start + len(part) + 1]):
                logits = self.logits(context, row).astype(np.float64)
                peak = logits.max()
                found.append(float(logits[following] - peak - np.log(np.exp(logits - peak).sum())))
        llama.llama_free(context)
        return found


def load(task: Task) -> tuple[Generate, Score]:
    engine = Engine(task)
    return engine.generate_guessing if task.guessing else engine.generate, engine.score


if __name__ == "__main__":
    run_child(load)
