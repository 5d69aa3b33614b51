import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.vocabularies import HARD_TEXTS, SPECIALS, SPLITS, ReferenceBPE, train, write_vocabulary

from headrace.core.errors import ModelError
from headrace.models.formats.gguf import GGUFFile
from headrace.models.gguf_tokenizer import build, cached_tokenizer_json
from headrace.models.json_vocabulary import JsonVocabulary
from headrace.models.tokenizer import Tokenizer

TOKENS, MERGES = train()
IDS = {token: index for index, token in enumerate(TOKENS)}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))


def tokenizer_of(folder: Path, split: str, **settings: Any) -> Tokenizer:
    path = write_vocabulary(folder / f"{split}.gguf", TOKENS, MERGES, split, **settings)
    return Tokenizer(JsonVocabulary(cached_tokenizer_json(GGUFFile(path))))


@pytest.fixture(scope="module", params=sorted(SPLITS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, ReferenceBPE]:
    folder = tmp_path_factory.mktemp("vocabulary")
    path = write_vocabulary(folder / "a.gguf", TOKENS, MERGES, request.param)
    (folder / "tokenizer.json").write_text(build(GGUFFile(path)).to_str())
    return Tokenizer(JsonVocabulary(folder / "tokenizer.json")), ReferenceBPE(IDS, MERGES, request.param)


def normal(text: str, tokenizer: Tokenizer) -> str:
    """The text as the tokenizer sees it: composed, where its model was trained so."""
    composes = tokenizer.decode(tokenizer.encode("e\u0301")) != "e\u0301"
    return unicodedata.normalize("NFC", text) if composes else text


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_ids_of_hard_texts_follow_the_definition(pair: tuple[Tokenizer, ReferenceBPE], text: str) -> None:
    tokenizer, reference = pair
    assert tokenizer.encode(text) == reference.encode(normal(text, tokenizer))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.lists(
        st.one_of(st.text(max_size=5), st.sampled_from(["  ", "\n\n", "'s", "'S", "123", " a", "<|im_end|>", "\r\n"])),
        max_size=6,
    ).map("".join)
)
def test_ids_of_any_text_follow_the_definition(pair: tuple[Tokenizer, ReferenceBPE], text: str) -> None:
    tokenizer, reference = pair
    assert tokenizer.encode(text) == reference.encode(normal(text, tokenizer))


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_ids_equal_those_of_transformers_from_the_same_vocabulary(tmp_path: Path, text: str) -> None:
    vocabulary = {token: IDS[token] for token in TOKENS}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    theirs = {
        "gpt-2": transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges, unk_token=SPECIALS[0]),
        "qwen2": transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges),
    }
    for split, tokenizer in theirs.items():
        assert tokenizer_of(tmp_path, split).encode(text) == tokenizer.encode(text, add_special_tokens=False)


def test_the_default_vocabulary_gives_the_ids_of_its_definition(default_model: Path) -> None:
    file = GGUFFile(default_model)
    tokens = file.strings("tokenizer.ggml.tokens")
    ids = {token: index for index, token in enumerate(tokens)}
    reference = ReferenceBPE(ids, file.strings("tokenizer.ggml.merges"), "smollm")
    tokenizer = Tokenizer(JsonVocabulary(cached_tokenizer_json(file)))
    for text in (*HARD_TEXTS[:-2], Path(__file__).read_text()):
        unknown = {c for c in set(text) if not all(byte in ids for byte in _bytes_of(c))}
        known = "".join(c for c in text if c not in unknown)
        assert tokenizer.encode(known) == reference.encode(known)
        assert tokenizer.decode(tokenizer.encode(known)) == known


def _bytes_of(character: str) -> list[str]:
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [c for piece, _ in split.pre_tokenize_str(character) for c in piece]


def test_control_tokens_are_special_and_user_defined_ones_are_not(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, "smollm")
    assert tokenizer.special_ids == {IDS[token] for token in SPECIALS}
    assert tokenizer.encode("a<think>b<|im_end|>", parse_special=True) == [
        IDS["a"],
        IDS["<think>"],
        IDS["b"],
        IDS["<|im_end|>"],
    ]
    as_text = tokenizer.encode("<think><|im_end|>")
    assert as_text[0] == IDS["<think>"]
    assert IDS["<|im_end|>"] not in as_text


@pytest.mark.parametrize(
    ("split", "settings", "begin", "end"),
    [
        ("smollm", {}, [], []),
        ("smollm", {"add_bos_token": True}, [1], []),
        ("smollm", {"add_eos_token": True}, [], [2]),
        ("llama-bpe", {"add_bos_token": None}, [1], []),
        ("llama-bpe", {"add_bos_token": False}, [], []),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(
    tmp_path: Path, split: str, settings: dict[str, Any], begin: list[int], end: list[int]
) -> None:
    tokenizer = tokenizer_of(tmp_path, split, **settings)
    assert tokenizer.encode("a") == [*begin, IDS["a"], *end]
    assert tokenizer.encode("a <|im_end|>")[: len(begin)] == begin
    assert tokenizer.encode("a", add_special_tokens=False) == [IDS["a"]]


def test_a_vocabulary_is_converted_once(tmp_path: Path) -> None:
    first = write_vocabulary(tmp_path / "a.gguf", TOKENS, MERGES, "smollm")
    path = cached_tokenizer_json(GGUFFile(first))
    written = path.stat().st_mtime_ns
    assert cached_tokenizer_json(GGUFFile(first)) == path
    assert path.stat().st_mtime_ns == written
    other = write_vocabulary(tmp_path / "b.gguf", TOKENS, MERGES[:-1], "smollm")
    assert cached_tokenizer_json(GGUFFile(other)) != path


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model 'llama' is not supported"),
        ({"pre": "mystery"}, "tokenizer.ggml.pre 'mystery' is not known; known are .*smollm"),
        ({"pre": None}, "tokenizer.ggml.pre None is not known"),
        ({"tokens": [*TOKENS, "a"]}, "a token twice"),
        ({"token_type": [1]}, "token_type has 1 entries"),
        ({"token_type": None}, "token_type is missing"),
        ({"merges": ["a zz"]}, "merges: 'a zz' joins what is not in the vocabulary"),
        ({"merges": ["ab"]}, "merges: 'ab'"),
        ({"add_bos_token": True, "bos_token_id": 10**6}, "bos_token_id must be from 0 to"),
        ({"add_space_prefix": True}, "add_space_prefix"),
    ],
)
def test_a_vocabulary_that_cannot_be_right_is_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    arguments = {"split": settings.pop("pre", "smollm"), "tokens": settings.pop("tokens", TOKENS)}
    merges = settings.pop("merges", MERGES)
    path = write_vocabulary(tmp_path / "a.gguf", merges=merges, **arguments, **settings)
    with pytest.raises(ModelError, match=message):
        build(GGUFFile(path))
