"""Every vocabulary here is learned by SentencePiece itself, which also says what the right ids are."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.vocabularies import HARD_TEXTS

from headrace.core.errors import ModelError
from headrace.models.text import load_text
from headrace.models.tokenizer import Tokenizer

USER_DEFINED = ["<ud>", "\n", "\n\n", "▁▁", "▁▁▁", "ab|c"]
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"},
    "gemma": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "user_defined_symbols": USER_DEFINED,
    },
    "bpe without bytes": {"model_type": "bpe", "remove_extra_whitespaces": True},
    "unigram": {"model_type": "unigram", "remove_extra_whitespaces": True},
    "unigram with bytes": {
        "model_type": "unigram",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "user_defined_symbols": ["<ud>"],
    },
    "unigram, composed": {"model_type": "unigram", "normalization_rule_name": "nfkc", "add_dummy_prefix": False},
    "bpe, lower case": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True},
}
TEXTS = (*HARD_TEXTS, "<s>", "a</s>b", "<0x41>", "▁", "x▁▁y", "<ud>a <ud>", "aaaaaaa abababab", " <unk>", "ﬁ ① Ⅷ ㎏")


@functools.cache
def learned(kind: str) -> bytes:
    options = {"remove_extra_whitespaces": False, "vocab_size": 420, "character_coverage": 0.99, **KINDS[kind]}
    options |= {"hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2, "max_sentence_length": 100_000}
    lines = [line for text in HARD_TEXTS[:7] for line in text.replace("\0", "").split("\n") if line.strip()]
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "and",
        "the",
        "dog",
        "ran",
        "to",
        "an",
        "old",
        "barn",
        "where",
        "rats",
        "ate",
        "grain",
        "all",
        "day",
        "long",
    ]
    lines += [" ".join(words[i % 7 :: (i % 3) + 1]) for i in range(60)]
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, **options)
    return out.getvalue()


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def folder_with(folder: Path, model: bytes, **config: Any) -> Path:
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", **config}))
    return folder


@pytest.fixture(scope="module", params=sorted(KINDS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    model = learned(request.param)
    folder = folder_with(tmp_path_factory.mktemp("model"), model)
    return load_text(folder).tokenizer, sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_of_hard_texts_are_sentencepieces(pair: tuple[Tokenizer, Any], text: str) -> None:
    tokenizer, theirs = pair
    assert tokenizer.encode(text, add_special_tokens=False) == theirs.encode(text)


pieces_of_text = st.one_of(
    st.text(max_size=4),
    st.text("ab ▁<ud>\n", max_size=8),
    st.sampled_from(["  ", "\n\n", "<s>", "<ud>", "the ", "ab|c", "e\u0301\u0327", "①", "<0x0A>", "</s>"]),
)


@given(text=st.lists(pieces_of_text, max_size=6).map("".join))
@settings(max_examples=60, deadline=None)
def test_ids_of_any_text_are_sentencepieces(pair: tuple[Tokenizer, Any], text: str) -> None:
    tokenizer, theirs = pair
    assert tokenizer.encode(text, add_special_tokens=False) == theirs.encode(text)


@given(text=st.lists(pieces_of_text, max_size=6).map("".join), data=st.data())
@settings(max_examples=60, deadline=None)
def test_streams_add_up_to_what_sentencepiece_decodes(
    pair: tuple[Tokenizer, Any], text: str, data: st.DataObject
) -> None:
    tokenizer, theirs = pair
    ids = [i for i in theirs.encode(text) if i not in tokenizer.special_ids]
    detokenizer, pieces, rest = tokenizer.detokenizer(), [], ids
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        pieces.append(detokenizer.push(rest[:count]))
        rest = rest[count:]
    streamed = "".join([*pieces, detokenizer.flush()])
    assert tokenizer.decode(ids) in (streamed, streamed[1:])
    assert tokenizer.decode(ids).lstrip(" ") == theirs.decode(ids).lstrip(" ")


def gguf_of(path: Path, model: bytes, **more: Any) -> Path:
    """The same vocabulary as a GGUF file holds it."""
    from headrace.models.sentencepiece_model import read_sentencepiece

    path.with_suffix(".model").write_bytes(model)
    pieces = read_sentencepiece(path.with_suffix(".model")).pieces
    names = [n.replace("▁", " ") if k == 4 else n for n, k in zip(pieces.names, pieces.kinds, strict=True)]
    entries: dict[str, Any] = {
        "model": {1: "t5", 2: "llama"}[pieces.algorithm.value],
        "tokens": names,
        "scores": pieces.scores,
        "token_type": pieces.kinds,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_space_prefix": pieces.dummy_prefix,
        "remove_extra_whitespaces": pieces.collapse_spaces,
        **({"precompiled_charsmap": list(pieces.charsmap)} if pieces.charsmap else {}),
        **more,
    }
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in entries.items():
        add = {bool: writer.add_bool, list: writer.add_array, str: writer.add_string, int: writer.add_uint32}
        if value is not None:
            add[type(value)](f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_same_vocabulary_in_a_gguf_file_gives_the_same_ids(tmp_path: Path, kind: str) -> None:
    model = learned(kind)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = load_text(gguf_of(tmp_path / "a.gguf", model)).tokenizer
    for text in TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False) == theirs.encode(text)
    begin, end = ([], [2]) if KINDS[kind]["model_type"] == "unigram" else ([1], [])
    assert tokenizer.encode("the cat") == [*begin, *theirs.encode("the cat"), *end]


def test_control_pieces_count_where_asked_and_text_after_them_begins_anew(tmp_path: Path) -> None:
    model = learned("llama")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    text, cat, dog = "<s>the cat</s>the dog", theirs.encode("the cat"), theirs.encode("the dog")
    every = load_text(folder_with(tmp_path, model)).tokenizer
    assert every.encode(text, add_special_tokens=False, parse_special=True) == [1, *cat, 2, *dog]
    assert every.encode_rendered(text.replace("cat", "cat\ue000/s>"), {0xE000: "<"}) == [
        1,
        *theirs.encode("the cat</s>"),
        2,
        *dog,
    ]
    first = load_text(folder_with(tmp_path, model, legacy=False)).tokenizer
    ids = first.encode("the cat</s>the dog", add_special_tokens=False, parse_special=True)
    assert ids[: len(cat) + 1] == [*cat, 2]
    assert first.decode(ids, skip_special_tokens=True) == "the catthe dog"
    assert every.encode("the cat") == [1, *cat]


def test_tokens_added_beside_the_pieces(tmp_path: Path) -> None:
    added = {
        "500": {"content": "<|end|>", "special": True, "rstrip": True},
        "501": {"content": "<tool>", "special": False},
    }
    tokenizer = load_text(folder_with(tmp_path, learned("llama"), added_tokens_decoder=added)).tokenizer
    plain = tokenizer.encode("a<tool>b", add_special_tokens=False)
    assert 501 in plain
    assert tokenizer.decode(plain) == "a<tool>b".replace("b", " b")
    assert 500 not in tokenizer.encode("a<|end|>")
    assert tokenizer.encode("<|end|> \n<|end|>", parse_special=True) == [1, 500, 500]
    assert (tokenizer.vocab_size, tokenizer.id_of("<|end|>"), tokenizer.name_of(500)) == (502, 500, "<|end|>")
    assert tokenizer.token_bytes(501) == b"<tool>"
    assert tokenizer.token_bytes(10**6) == b""


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_torn_models_are_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    from headrace.models.charsmap import Charsmap
    from headrace.models.sentencepiece_model import read_sentencepiece

    model = bytearray(learned("unigram, composed"))
    for _ in range(data.draw(st.integers(1, 4))):
        model[data.draw(st.integers(0, len(model) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(model)))
    path = tmp_path_factory.mktemp("torn") / "tokenizer.model"
    path.write_bytes(model[:cut])
    try:
        Charsmap(read_sentencepiece(path).pieces.charsmap, path)("e\u0301 ﬁ a")
    except ModelError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "char"}, "models of type char are not supported"),
        ({"model_type": "word"}, "models of type word are not supported"),
        ({"model_type": "bpe", "treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix is not supported"),
    ],
)
def test_settings_that_are_not_done_are_refused_by_name(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    out = io.BytesIO()
    options = {"vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2, **options}
    lines = iter(["the cat sat on the mat", "the dog ran"] * 5)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=out, **options)
    with pytest.raises(ModelError, match=message):
        load_text(folder_with(tmp_path, out.getvalue()))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"scores": [0.0]}, "scores has 1 entries"),
        ({"scores": None}, "scores is missing"),
        ({"token_type": None}, "token_type is missing"),
        ({"unknown_token_id": 10**6}, "unknown token must be below"),
        ({"add_space_prefix": "yes"}, "add_space_prefix must be true or false, got 'yes'"),
        ({"precompiled_charsmap": [1, 2, 3]}, "charsmap is torn"),
    ],
)
def test_a_gguf_vocabulary_that_cannot_be_right_is_refused_by_name(
    tmp_path: Path, entries: dict[str, Any], message: str
) -> None:
    path = gguf_of(tmp_path / "a.gguf", learned("llama"), **entries)
    with pytest.raises(ModelError, match=message):
        load_text(path)
