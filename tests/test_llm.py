"""LLM, from arguments to outputs, on the real default model."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

from headrace import LLM, SamplingParams
from headrace.core.errors import ConfigError, RequestError
from headrace.engine.completion import Choice

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def llm(default_model):
    return LLM(model=str(default_model), max_model_len=256, num_kv_blocks=128)


def test_prompts_of_every_kind_are_answered_in_order(llm):
    text = "The capital of France is"
    ids = llm.get_tokenizer().encode(text)
    outputs = llm.generate([text, ids, {"prompt_token_ids": ids}, {"prompt": text}], GREEDY)
    assert [o.prompt for o in outputs] == [text, None, None, text]
    assert all(o.prompt_token_ids == ids for o in outputs)
    assert len({o.outputs[0].text for o in outputs}) == 1
    assert "Paris" in outputs[0].outputs[0].text
    assert outputs[0].outputs[0].finish_reason == "length"
    assert len(outputs[0].outputs[0].token_ids) == 8
    assert outputs[0].finished


@pytest.mark.parametrize("prompts", ["one text", [5, 6, 7], {"prompt": "one text"}])
def test_a_single_prompt_needs_no_list(llm, prompts):
    assert len(llm.generate(prompts, GREEDY)) == 1


def test_no_prompts_are_no_outputs(llm):
    assert llm.generate([], GREEDY) == []


def test_choices_are_reproducible_and_differ(llm):
    params = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=12)
    first, again = (llm.generate("Once upon a time", params)[0] for _ in range(2))
    assert [c.index for c in first.outputs] == [0, 1, 2]
    assert [c.token_ids for c in first.outputs] == [c.token_ids for c in again.outputs]
    assert len({c.text for c in first.outputs}) == 3
    alone = llm.generate("Once upon a time", SamplingParams(temperature=1.0, seed=7, max_tokens=12))[0]
    assert alone.outputs[0].token_ids == first.outputs[0].token_ids


def test_params_may_differ_by_prompt(llm):
    outputs = llm.generate(["a", "b"], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2, min_tokens=2)])
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 2]


def test_the_lower_priority_goes_first_and_changes_no_token(default_model, monkeypatch):
    alone = LLM(model=str(default_model), max_model_len=64, num_kv_blocks=16, max_num_seqs=1)
    prompts = [[5, 6, 7, n] for n in range(4)]
    plain = alone.generate(prompts, GREEDY)
    ended, push = [], Choice.push

    def watched(choice, delta):
        if delta.finish_reason is not None:
            ended.append(int(delta.request_id.partition("-")[0]) - 4)
        return push(choice, delta)

    monkeypatch.setattr(Choice, "push", watched)
    ranked = alone.generate(prompts, GREEDY, priority=[3, 0, 2, 1])
    assert ended == [1, 3, 2, 0]
    assert [o.outputs[0].token_ids for o in ranked] == [o.outputs[0].token_ids for o in plain]


@pytest.mark.parametrize("priority", [[1, 2], 5, [1, 2, "high"], [1, 2, 2**40]])
def test_priorities_that_do_not_fit_the_prompts_are_refused(llm, priority):
    with pytest.raises(RequestError) as refused:
        llm.generate([[5], [6], [7]], GREEDY, priority=priority)
    assert refused.value.param == "priority"


def test_logprobs_are_by_token_with_text_and_rank(llm):
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate("The capital of France is", params)
    choice = output.outputs[0]
    for token, found in zip(choice.token_ids, choice.logprobs, strict=True):
        assert found[token].rank == 1
        assert len(found) == 2
        assert found[token].logprob == max(entry.logprob for entry in found.values())
    assert choice.logprobs[0][choice.token_ids[0]].decoded_token == " Paris"
    assert math.isclose(
        choice.cumulative_logprob, sum(f[t].logprob for t, f in zip(choice.token_ids, choice.logprobs, strict=True))
    )
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert all(t in f for t, f in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True))


def test_a_stop_string_ends_only_its_own(llm):
    stopped, other = llm.generate(
        ["One, two, three,", "One, two, three,"],
        [SamplingParams(temperature=0, max_tokens=12, stop=" six"), SamplingParams(temperature=0, max_tokens=12)],
    )
    assert stopped.outputs[0].text == " four, five,"
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", " six")
    assert other.outputs[0].text.startswith(" four, five, six")
    assert llm.stats.blocks_used == 0


def test_a_conversation_is_answered_and_ends_by_itself(llm):
    params = SamplingParams(temperature=0, max_tokens=60)
    one = llm.chat([{"role": "user", "content": "What is 2+2?"}], params)
    two = llm.chat([[{"role": "user", "content": "What is 2+2?"}]] * 2, params)
    assert "4" in one[0].outputs[0].text
    assert one[0].outputs[0].finish_reason == "stop"
    assert one[0].outputs[0].stop_reason is None
    assert [o.outputs[0].text for o in two] == [one[0].outputs[0].text] * 2


def test_a_repeated_prompt_is_cached(llm):
    prompt = list(range(1000, 1040))
    cold, warm = (llm.generate(prompt, GREEDY)[0] for _ in range(2))
    assert warm.num_cached_tokens == len(prompt) - 1
    assert warm.outputs[0].token_ids == cold.outputs[0].token_ids


def test_progress_counts_prompts(llm):
    seen = []
    llm.generate([[5], [6], [7]], GREEDY, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("prompts", "params", "param"),
    [
        ([[]], GREEDY, "prompt"),
        ([[10**9]], GREEDY, "prompt"),
        ([[1] * 300], GREEDY, "prompt"),
        ([{"text": "a"}], GREEDY, "prompts"),
        (None, GREEDY, "prompts"),
        (iter(["a"]), GREEDY, "prompts"),
        (b"a", GREEDY, "prompts"),
        ([None], GREEDY, "prompts"),
        ({"prompt": None}, GREEDY, "prompts"),
        ({"prompt": 5}, GREEDY, "prompts"),
        ({"prompt_token_ids": "abc"}, GREEDY, "prompts"),
        ([1, 2.5], GREEDY, "prompts"),
        ([True], GREEDY, "prompts"),
        ("a", {"temperature": 0}, "sampling_params"),
        ("a", [None], "sampling_params"),
        ([[1], [2]], [GREEDY], "sampling_params"),
        ([[1]], SamplingParams(logit_bias={10**6: 1.0}), "logit_bias"),
    ],
)
def test_what_cannot_be_answered_is_refused_and_leaves_nothing(llm, prompts, params, param):
    with pytest.raises(RequestError) as caught:
        llm.generate(prompts, params)
    assert caught.value.param == param
    assert llm.stats.running == llm.stats.waiting == 0


@pytest.mark.parametrize("messages", [None, 5, "hi", [], [5], [[]], [[{"role": "user", "content": "a"}], [5]]])
def test_what_is_no_conversation_is_refused(llm, messages):
    with pytest.raises(RequestError) as caught:
        llm.chat(messages, GREEDY)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"tensor_parallel_size": 8}, "must be 1"),
        ({"kv_cache_dtype": "fp8"}, "bf16, fp32, int8"),
        ({"cpu_offload_gb": 4}, "kv_offloading_size"),
        ({"max_num_seq": 4}, "max_num_seqs"),
        ({"port": 8000}, "port is a setting of `headrace serve` alone"),
        ({"max_model_len": 10**9}, "at most 8192"),
        ({"max_model_len": 4096, "num_kv_blocks": 4}, "max_model_len to at most 64"),
    ],
)
def test_impossible_settings_are_refused_with_what_is_possible(default_model, setting, words):
    with pytest.raises(ConfigError, match=words):
        LLM(model=str(default_model), **setting)


def test_the_package_imports_nothing_until_asked():
    code = "import headrace, sys; print([m for m in sys.modules if m.startswith(('numpy', 'headrace.'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_names_are_refused():
    import headrace

    assert set(headrace.__all__) <= set(dir(headrace))
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = headrace.nothing_here


def test_a_bad_word_does_not_come_and_nothing_but_allowed_tokens_does(llm):
    prompt = "The capital of France is"
    assert " Paris" in llm.generate(prompt, GREEDY)[0].outputs[0].text
    kept_out = SamplingParams(temperature=0, max_tokens=8, bad_words=["Paris"])
    assert "Paris" not in llm.generate(prompt, kept_out)[0].outputs[0].text
    digits = [llm.get_tokenizer().id_of(digit) for digit in "0123456789"]
    only = SamplingParams(temperature=1, max_tokens=8, allowed_token_ids=digits, logprobs=1)
    output = llm.generate(prompt, only)[0].outputs[0]
    assert len(output.text) == 8 and output.text.isdigit()
    assert output.logprobs[0][output.token_ids[0]].rank > 1


def test_a_context_cut_by_a_small_cache_is_said(default_model, caplog):
    LLM(model=str(default_model), num_kv_blocks=4, max_num_seqs=1)
    assert "its context is cut from 8192 tokens to 64" in caplog.text
    caplog.clear()
    LLM(model=str(default_model), num_kv_blocks=4, max_model_len=64, max_num_seqs=1)
    assert "is cut" not in caplog.text


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_it_computes_on_the_cores_that_its_process_may_use_and_refuses_more(default_model):
    """In a process of its own, which is kept on one of them."""
    script = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.launch import build_engine
settings = {"model": sys.argv[1], "max_model_len": 64, "num_kv_blocks": 16}
print(build_engine(Config(**settings).resolve()).ready.describe["threads"])
try:
    build_engine(Config(**settings, threads=2).resolve())
except ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(default_model)], capture_output=True, text=True, check=True
    )
    used, refused = done.stdout.splitlines()
    assert used == "1"
    assert refused.startswith("threads must be at most 1, the cores that this process may use")
