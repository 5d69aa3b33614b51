"""Guessing ahead with real drafters and the real default model, through LLM and the server: the same text, fewer steps.
Models guess that know everything, or nothing but are sure of it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import gguf
import httpx
import pytest
import torch
import transformers
from tests.gguf_models import write_family_gguf
from tests.models_for_tests import make_checkpoint
from tests.test_serving import complete, free_port, serving

from headrace import LLM, SamplingParams
from headrace.core.errors import ConfigError, ModelError
from headrace.models.formats.gguf_metadata import GGUFMetadata
from headrace.policy.row_cost import RowCost

PROMPT = "Once upon a time, in a small village, there lived a cat. " * 3 + "Once upon"
SETTINGS = {"max_model_len": 512, "num_kv_blocks": 128, "max_num_seqs": 4}


def answers(params, **settings):
    """Texts, log-probabilities, and what guessing ahead brought."""
    llm = LLM(**SETTINGS, **settings)
    outputs = llm.generate([PROMPT, "The answer is"], params)
    told = [(o.outputs[0].token_ids, o.outputs[0].logprobs, o.outputs[0].finish_reason) for o in outputs]
    return told, llm.stats


GREEDY = SamplingParams(temperature=0, max_tokens=48, logprobs=2, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=32, presence_penalty=0.5, logprobs=0)


@pytest.mark.usefixtures("free_rows")
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_the_same_whoever_guesses(params, default_model):
    plain, stats = answers(params)
    assert stats.drafted_tokens == stats.accepted_tokens == 0
    for settings in ({"speculate": "ngram"}, {"speculate": "suffix"}, {"speculative_model": str(default_model)}):
        told, stats = answers(params, **settings)
        assert told == plain, settings
        assert stats.drafted_tokens > 0, settings


@pytest.mark.usefixtures("free_rows")
def test_a_model_that_guesses_for_itself_is_always_right(default_model):
    _, stats = answers(GREEDY, speculative_model=str(default_model), num_speculative_tokens=5)
    assert stats.accepted_tokens == stats.drafted_tokens > 0


@pytest.fixture(scope="module")
def stranger(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stranger(tmp_path_factory.mktemp("stranger") / "stranger.gguf", default_model)


def write_stranger(path: Path, like: Path, *, context: int = 512, sure: float = 100.0, turn: int = 0) -> Path:
    """A small random model with the tokens of another, turned so far. sure: how large its logits are."""
    vocabulary = GGUFMetadata(like)

    def tokens(writer: gguf.GGUFWriter) -> None:
        names = vocabulary.strings("tokenizer.ggml.tokens")
        writer.add_token_list(names[turn:] + names[:turn])
        writer.add_token_merges(vocabulary.strings("tokenizer.ggml.merges"))
        writer.add_token_types(vocabulary.numbers("tokenizer.ggml.token_type"))
        writer.add_tokenizer_model(vocabulary.get("tokenizer.ggml.model"))
        writer.add_tokenizer_pre(vocabulary.get("tokenizer.ggml.pre"))
        writer.add_eos_token_id(vocabulary.get("tokenizer.ggml.eos_token_id"))

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary.length("tokenizer.ggml.tokens"),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=context,
    )
    model = transformers.LlamaForCausalLM(config)
    torch.nn.init.constant_(model.model.norm.weight, sure)
    write_family_gguf(path, model, gguf.GGMLQuantizationType.Q8_0, more=tokens)
    return path


LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True, logprobs=0)


def test_a_model_that_is_always_wrong_is_turned_off_within_a_few_steps(default_model, stranger, tmp_path, monkeypatch):
    """Where rows are cheap and asking is free: by its odds, if it knows how little it knows, or by its failures."""
    monkeypatch.setattr(RowCost, "seconds", lambda cost, rows, drafted=False: 1 + 0.2 * rows)
    monkeypatch.setattr(RowCost, "knows", lambda cost, rows: True)
    plain, _ = answers(LONG)
    unsure = write_stranger(tmp_path / "unsure.gguf", default_model, sure=1.0)
    for guesser in (unsure, stranger):
        llm = LLM(**SETTINGS, speculative_model=str(guesser))
        outputs = llm.generate([PROMPT, "The answer is"], LONG)
        assert [(o.outputs[0].token_ids, o.outputs[0].logprobs, o.outputs[0].finish_reason) for o in outputs] == plain
        stats, drafter = llm.stats, llm._engine._speculation.drafter
        assert stats.accepted_tokens <= 1
        assert (stats.drafted_tokens > 0) == (guesser is stranger)
        assert stats.drafted_tokens < 24
        assert 0 < drafter.num_steps < 60


@contextlib.contextmanager
def guessing(model: Path, guesser: Path):
    """The URL of a server, and a function that asks it for its metrics and steps."""
    admin = free_port()

    def ask(path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{admin}{path}")

    def counted(name: str) -> float:
        lines = ask("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"headrace:spec_decode_{name}_total"))

    settings = {"speculate": "draft_model", "speculative_model": str(guesser)}
    with serving(model, **settings, admin_port=admin) as (url, _):
        yield url, counted, lambda: ask("/debug/steps?limit=64").json()["steps"]


def test_a_server_says_how_a_model_guesses_for_itself(default_model):
    (plain,) = LLM(**SETTINGS).generate(PROMPT, GREEDY)[0].outputs
    with guessing(default_model, default_model) as (url, counted, steps):
        asked = {"prompt": PROMPT, "max_tokens": 48, "ignore_eos": True}
        # A crowded machine may make guesses look dear at first: they are tried again.
        for _ in range(20):
            answer = complete(url, **asked).json()
            assert answer["choices"][0]["text"] == plain.text
            if guessed := counted("num_draft_tokens"):
                break
        assert guessed == counted("num_accepted_tokens") > 0
        details = {"accepted_prediction_tokens": guessed, "rejected_prediction_tokens": 0}
        assert answer["usage"]["completion_tokens_details"] == details
        assert sum(step["tokens"] - 1 for step in steps() if step["tokens"] < 10) == guessed
        answer = complete(url, **asked, num_speculative_tokens=0).json()
        assert answer["choices"][0]["text"] == plain.text
        assert "completion_tokens_details" not in answer["usage"]
        assert counted("num_draft_tokens") == guessed


def test_a_server_soon_asks_no_more_who_is_always_wrong(default_model, stranger):
    with guessing(default_model, stranger) as (url, counted, steps):
        complete(url, prompt=PROMPT, max_tokens=200, ignore_eos=True)
        assert counted("num_accepted_tokens") <= 1
        assert counted("num_draft_tokens") < 24
        latest = steps()
        assert len(latest) == 64
        assert sum(step["tokens"] > step["requests"] for step in latest) <= 2


@pytest.mark.usefixtures("free_rows")
def test_texts_longer_than_a_guesser_reads_are_answered_without_it(default_model, tmp_path, caplog):
    plain, _ = answers(GREEDY)
    guesser = write_stranger(tmp_path / "short.gguf", default_model, context=50)
    told, stats = answers(GREEDY, speculative_model=str(guesser))
    assert told == plain
    assert stats.drafted_tokens > 0
    assert f"{guesser}: it reads at most 50 tokens" in caplog.text


def test_a_broken_guesser_is_refused_by_its_name(default_model, stranger, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(stranger.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"cut.gguf: not a valid GGUF file: tensor '.*' of shape .* exceeds the file"):
        LLM(**SETTINGS, speculative_model=str(cut))


def test_a_model_of_other_tokens_is_refused(default_model, tmp_path):
    make_checkpoint(tmp_path, "llama")
    with pytest.raises(ConfigError, match=r"speculative_model must have the model's own 49152 tokens, .* has 320"):
        LLM(**SETTINGS, speculative_model=str(tmp_path))
    turned = write_stranger(tmp_path / "turned.gguf", default_model, turn=1)
    with pytest.raises(ConfigError, match=r"the model's own 49152 tokens, .*turned.gguf has others"):
        LLM(**SETTINGS, speculative_model=str(turned))
