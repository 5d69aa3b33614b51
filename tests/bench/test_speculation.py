"""What `headrace bench speculation` says, over a device in a page and a drafter that knows what comes."""

from __future__ import annotations

import gzip
from itertools import count

import pytest
from tests.oracle import Oracle

from headrace.bench.edits import edited_twice
from headrace.bench.prompt_files import Prompt, read_prompts
from headrace.bench.speculation import Asked, InVain, count_groups, groups, looped, measure_speculation
from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.engine.null_executor import NullExecutor, expected_tokens

VOCAB = 50
HAS = Capacity(num_slots=4, block_size=4, num_blocks=(80,), windows=(None,), max_model_len=80, vocab_size=VOCAB)


def test_speedups_are_those_of_the_steps_saved():
    prompts = {"a": [Asked([1, 2]), Asked([3, 4]), Asked([5, 6])], "b": [Asked([7]), Asked([8])]}
    texts = [
        one.ids + expected_tokens(Request("r", one.ids, SamplingParams(temperature=0), 40, seed=0), VOCAB)
        for one in (*prompts["a"], *prompts["b"])
    ]
    engines = {
        "none": Engine(NullExecutor(HAS), Config()),
        "right": Engine(NullExecutor(HAS), Config(num_speculative_tokens=3), drafter=Oracle(texts, 0, VOCAB)),
        "wrong": Engine(NullExecutor(HAS), Config(num_speculative_tokens=3), drafter=Oracle(texts, 1, VOCAB)),
        "in_vain": Engine(NullExecutor(HAS), Config(), drafter=InVain(Oracle(texts, 0, VOCAB), VOCAB)),
    }
    ticks = count()
    done = []
    report = measure_speculation(
        engines, prompts, (1, 2), output_len=40, clock=lambda: float(next(ticks)), progress=done.append
    )
    rows = {(row["method"], row["category"], row["batch"]): row for row in report["rows"]}
    assert len(rows) == 8
    assert sum(done) == count_groups(prompts, (1, 2)) == 3 + 2 + 1 + 1
    right, wrong = rows["right", "a", 1], rows["wrong", "a", 1]
    assert (right["acceptance_rate"], wrong["acceptance_rate"]) == (1.0, 0.0)
    assert (right["groups"], rows["right", "a", 2]["groups"]) == (3, 1)
    assert right["acceptance_length"] > 2
    assert right["speedup"] > 2 > wrong["speedup"]
    assert right["latency_speedup"] > 2
    assert report["turn_on"] == "right"
    assert 0 <= report["looping_share"] <= 1
    assert engines["in_vain"].drafting.proposed > engines["in_vain"].drafting.accepted == 0
    assert set(report["overhead_in_vain"]) == {"1", "2"}
    assert {one["method"] for one in report["step_ms_by_rows"]} == {"right", "wrong"}
    assert all(one["ms"] > 0 and one["comparisons"] > 0 for one in report["step_ms_by_rows"])


def test_of_several_rounds_a_group_counts_by_its_median():
    prompts = {"a": [Asked([1, 2]), Asked([3, 4])]}
    engines = {"none": Engine(NullExecutor(HAS), Config()), "other": Engine(NullExecutor(HAS), Config())}
    now, calls = 0.0, 0

    def clock():
        """Every call takes a second; in one round of three the machine is slow while one of the two runs."""
        nonlocal now, calls
        calls += 1
        now += 50.0 if 400 < calls < 500 else 1.0
        return now

    done = []
    report = measure_speculation(engines, prompts, (1,), output_len=20, rounds=3, clock=clock, progress=done.append)
    (row,) = report["rows"]
    assert (row["groups"], len(done)) == (2, 6)
    assert [row[name] for name in ("speedup", "decode_speedup", "latency_speedup")] == pytest.approx([1.0] * 3)


def test_a_batch_is_full_however_few_prompts_there_are():
    few = [Asked([n]) for n in range(3)]
    assert [[one.ids[0] for one in group] for group in groups(few, 2)] == [[0, 1]]
    assert [[one.ids[0] for one in group] for group in groups(few, 4, 1)] == [[0, 1, 2, 0]]
    assert [len(group) for group in groups([Asked([n]) for n in range(9)], 2, 6)] == [2, 2, 2]


def test_a_file_is_edited_twice():
    text = "\n".join(f"line {n}" for n in range(12))
    first, second = edited_twice([text, "too short"], lambda messages: [len(messages)], len, 400)
    assert (first.ids, second.ids) == ([1], [3])
    (once,), (twice,) = first.form.choice, second.form.choice
    assert [line for line in twice.splitlines() if "#" in line] == ["line 4  # checked", "line 8  # to do"]
    assert [a for a, b in zip(once.splitlines(), text.splitlines(), strict=True) if a != b] == ["line 4  # checked"]
    assert len(edited_twice([text], len, len, 100)[0].form.choice[0]) < 100


@pytest.mark.parametrize(
    ("tokens", "loops"),
    [
        ([1, 2, 3] * 40, True),
        (list(range(100)), False),
        ([5] * 63, False),
        ([5] * 64, True),
        ([*range(33)] * 4, False),
        ([9, *[1, 2] * 32], True),
    ],
)
def test_a_loop_is_one_period_to_the_end(tokens, loops):
    assert looped(tokens) is loops


def test_prompts_are_read_by_category(tmp_path):
    file = tmp_path / "mine.jsonl.gz"
    lines = [
        '{"prompt": "def f("}',
        '{"category": "qa", "turns": ["Who?", "And?"]}',
        "",
        '{"category": "qa", "messages": [{"role": "user", "content": "When?"}]}',
        '{"category": "qa", "turns": ["What?"]}',
    ]
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert read_prompts(file, 2) == [
        Prompt("mine", "def f(", True),
        Prompt("qa", "Who?", False),
        Prompt("qa", "When?", False),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no prompts"),
        (b"{", "line 1 of .* is not JSON"),
        (b'{"text": 1}', "line 1 of .* must have a prompt, turns or messages"),
        (b"[1]", "must have a prompt"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_files_of_other_things_are_refused(tmp_path, content, words):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_prompts(file)
