"""Commands on the default model, through the front door: they print what LLM says, and report what they promise."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import LLM, SamplingParams, cli
from headrace.bench.startup import answers, free_port, running_server
from headrace.commands import local
from headrace.models.text import TextModel

SMALL = ["--max-model-len", "256", "--num-kv-blocks", "64", "--max-num-seqs", "4"]
SETTINGS = {"max_model_len": 256, "num_kv_blocks": 64, "max_num_seqs": 4}
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def llm(default_model: Path) -> LLM:
    return LLM(model=str(default_model), **SETTINGS)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(*arguments: str) -> int:
    return cli.run([*arguments, *SMALL])


def test_generate_prints_what_llm_generates(default_model, llm, capsys):
    expected = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=6))[0].outputs[0].text
    assert run("generate", str(default_model), "-p", PROMPT, "--temperature", "0", "--max-tokens", "6") == 0
    assert capsys.readouterr().out == expected + "\n"


def test_generate_reads_standard_input_and_repeats_itself(default_model, monkeypatch, capsys):
    seen = []
    for _ in range(2):
        monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
        assert run("generate", str(default_model), "-p", "-", "--max-tokens", "5") == 0
        seen.append(capsys.readouterr().out)
    assert seen[0] == seen[1] != "\n"


def test_generate_refuses_a_bad_parameter(default_model, capsys):
    assert run("generate", str(default_model), "-p", PROMPT, "--temperature", "5") == 2
    assert capsys.readouterr().err == "error: temperature must be from 0 to 2, got 5.0\n"


def test_chat_answers_line_by_line(default_model, llm, monkeypatch, capsys):
    lines = iter(["What is the capital of France?", "And of Italy?"])

    def read(prompt: str) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("sys.stdin", Terminal())
    assert run("chat", str(default_model), "--temperature", "0", "--max-tokens", "6") == 0
    params = SamplingParams(temperature=0, max_tokens=6)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    first = llm.chat(messages, params)[0].outputs[0].text
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "And of Italy?"}]
    second = llm.chat(messages, params)[0].outputs[0].text
    assert capsys.readouterr().out == f"{first}\n{second}\n\n"


def test_bench_reports_its_keys(default_model, tmp_path, capsys):
    file = tmp_path / "report.json"
    shape = ["--num-prompts", "3", "--input-len", "8", "--output-len", "4", "--json", str(file)]
    assert run("bench", "throughput", str(default_model), *shape) == 0
    report = json.loads(file.read_text())
    assert set(report) == {"output_tokens_per_s", "total_tokens_per_s", "elapsed_s", "requests"}
    assert report["output_tokens_per_s"] * report["elapsed_s"] == pytest.approx(3 * 4)
    assert report["total_tokens_per_s"] * report["elapsed_s"] == pytest.approx(3 * 12)
    assert run("bench", "latency", str(default_model), *shape) == 0
    report = json.loads(file.read_text())
    assert set(report) == {
        "ttft_ms", "tpot_ms", "itl_ms", "max_stall_ms", "prefill_tokens_per_s", "decode_tokens_per_s",
    }  # fmt: skip
    assert set(report["itl_ms"]) == {"p50", "p99"}
    assert report["ttft_ms"] > 0 < report["tpot_ms"] <= report["max_stall_ms"]
    assert "decode_tokens_per_s" in capsys.readouterr().out


def test_bench_refuses_what_does_not_fit(default_model, capsys):
    assert run("bench", "latency", str(default_model), "--input-len", "250", "--output-len", "7") == 2
    assert "must fit max_model_len (256) together" in capsys.readouterr().err


def test_bench_startup_times_a_real_server(default_model, tmp_path):
    file = tmp_path / "report.json"
    assert run("bench", "startup", str(default_model), "--rounds", "1", "--json", str(file)) == 0
    report = json.loads(file.read_text())
    assert set(report) == {"ready_ms"}
    assert report["ready_ms"] > 0


def test_perplexity_is_that_of_the_prompt_logprobs(default_model, llm, tmp_path):
    text, file = tmp_path / "text.txt", tmp_path / "report.json"
    text.write_text("The water ran down the race and turned the wheel. " * 8)
    windows = ["--window", "24", "--windows", "2"]
    command = ["eval", "perplexity", str(default_model), "--text", str(text), *windows, "--json", str(file)]
    assert run(*command) == 0
    report = json.loads(file.read_text())
    ids = llm.get_tokenizer().encode(text.read_text(), add_special_tokens=False)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    outputs = llm.generate([ids[:24], ids[24:48]], params)
    logprobs = [
        at[token].logprob
        for o in outputs
        for at, token in zip(o.prompt_logprobs, o.prompt_token_ids, strict=True)
        if at
    ]
    assert report["tokens"] == len(logprobs) == 46
    assert report["perplexity"] == pytest.approx(2.718281828459045 ** (-sum(logprobs) / 46), rel=1e-9)


def test_doctor_adds_up_the_memory(default_model, tmp_path):
    file = tmp_path / "report.json"
    assert run("doctor", str(default_model), "--json", str(file)) == 0
    memory = json.loads(file.read_text())["memory"]
    assert memory["kv_blocks"] == 64
    assert memory["kv_cache_bytes"] == 64 * memory["kv_block_bytes"][0]
    parts = memory["weights_bytes"] + memory["activations_bytes"] + memory["kv_cache_bytes"]
    assert memory["total_bytes"] == parts
    assert memory["longest_sequences_at_once"] == 4


def test_doctor_says_what_a_draft_model_takes(default_model, tmp_path):
    file = tmp_path / "report.json"
    assert run("doctor", str(default_model), "--speculative-model", str(default_model), "--json", str(file)) == 0
    memory = json.loads(file.read_text())["memory"]
    own, drafts = memory["kv_block_bytes"]
    assert drafts == own + 128
    assert memory["draft_model_kv_cache_bytes"] == 64 * drafts
    assert memory["kv_cache_bytes"] == 64 * (own + drafts)
    assert memory["draft_model_weights_bytes"] * 2 == memory["weights_bytes"]


def test_doctor_says_what_would_not_fit_and_what_would(default_model, capsys):
    assert cli.run(["doctor", str(default_model), "--max-model-len", "4096", "--num-kv-blocks", "16"]) == 1
    out = capsys.readouterr().out
    assert "machine.processor" in out
    assert "Set max_model_len to at most 256" in out


def test_a_server_needs_no_torch_and_chat_reaches_it(default_model, tmp_path):
    """torch is replaced by a module that ends whoever imports it."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"model": str(default_model), "served_model_name": "small", **SETTINGS}))
    port, log = free_port(), tmp_path / "log"
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with running_server(settings, port, log) as child:
            while not answers(port):
                assert child.poll() is None, log.read_text()
            command = [sys.executable, "-m", "headrace", "chat", "--url", f"127.0.0.1:{port}", "--max-tokens", "4"]
            done = subprocess.run(
                command, input="What is a mill?\n", capture_output=True, text=True, timeout=120, check=False
            )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip("> \n")) > 0
    assert child.returncode == 0, log.read_text()


def test_chat_through_a_pipe_fails_if_a_line_was_refused(default_model, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n" + "word " * 400 + "\n"))
    assert run("chat", str(default_model), "--max-tokens", "2") == 1
    said = capsys.readouterr()
    assert "context is 256 tokens" in said.err
    assert "> " not in said.out


def test_chat_with_a_model_that_cannot_is_refused_at_once(default_model, monkeypatch, capsys):
    monkeypatch.setattr(local, "load_text", lambda path: TextModel(None, None, {}))
    monkeypatch.setattr(local, "build_engine", lambda config: pytest.fail("its weights were loaded"))
    assert run("chat", str(default_model)) == 2
    assert "has no chat template: use `headrace generate`" in capsys.readouterr().err
