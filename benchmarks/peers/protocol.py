"""What every engine's child script shares, over the standard library alone, since each runs in its own virtual
environment. A child reads a Task (JSON, on standard input), loads its engine once, runs what the task names and
prints one JSON line of figures; whatever else it or its engine writes goes to standard error.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

TEXT_TOKENS = 256
GUESSES = 3
"""Tokens that a peer guesses ahead at most: more of them are slower on processors."""


@dataclass
class Task:
    """model: what the engine loads. windows: token ids to score, empty for none. started: when the parent began this
    process (time.time()). shapes: (name, requests, prompt tokens, generated tokens). texts: prompts to answer one after
    the other, in TEXT_TOKENS each; guessing: whether the engine is to guess ahead by looking up."""

    model: str
    threads: int
    shapes: list[tuple[str, int, int, int]]
    windows: list[list[int]] = field(default_factory=list)
    started: float = 0.0
    seed: int = 0
    vocabulary: tuple[int, int] = (100, 40000)
    texts: list[list[int]] = field(default_factory=list)
    guessing: bool = False

    def dump(self) -> str:
        return json.dumps(asdict(self))

    def prompts(self, requests: int, length: int, salt: int) -> list[list[int]]:
        """Random token ids: the same for every engine, others for each workload."""
        draw = random.Random(f"{self.seed} {requests} {length} {salt}")
        return [[draw.randrange(*self.vocabulary) for _ in range(length)] for _ in range(requests)]


Generate = Callable[[list[list[int]], int], int]
"""Runs all prompts at once, greedily, to exactly so many tokens each; returns how many were generated."""
Score = Callable[[list[int]], list[float]]
"""Natural log-probability of each token of a window but the first."""


def run_child(load: Callable[[Task], tuple[Generate, Score | None]]) -> None:
    """A child's main. load(task) returns how to generate and, where the engine can, how to score."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    read = json.loads(sys.stdin.read())
    task = Task(**read)
    generate, score = load(task)
    figures: dict[str, float] = {"ready_s": time.time() - task.started}
    for index, (name, requests, prompt_len, output_len) in enumerate(task.shapes):
        generate(task.prompts(1, prompt_len, salt=1000 + index), min(output_len, 8))
        prompts = task.prompts(requests, prompt_len, salt=index)
        begun = time.perf_counter()
        made = generate(prompts, output_len)
        elapsed = time.perf_counter() - begun
        if made != requests * output_len:
            raise SystemExit(f"{name}: {made} tokens were generated, not {requests * output_len}")
        # A workload of one token each measures its prompts.
        figures[name] = (requests * prompt_len if output_len == 1 else made) / elapsed
    if task.texts:
        generate(task.texts[:1], 8)
        begun = time.perf_counter()
        made = sum(generate([text], TEXT_TOKENS) for text in task.texts)
        figures["texts"] = made / (time.perf_counter() - begun)
    if task.windows and score is not None:
        scores = [score(window) for window in task.windows]
        figures["perplexity"] = math.exp(-math.fsum(map(math.fsum, scores)) / sum(map(len, scores)))
    answer.write(json.dumps(figures) + "\n")
    answer.flush()
