import json
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.vocabularies import HARD_TEXTS, SPECIALS, train, write_tokenizer

from headrace.core.errors import ModelError, RequestError
from headrace.models.json_vocabulary import JsonVocabulary
from headrace.models.tokenizer import Tokenizer

TOKENS, _ = train()
IDS = {token: index for index, token in enumerate(TOKENS)}
END = IDS["<|im_end|>"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer(JsonVocabulary(path), bos_id=1, eos_ids=(2,))


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_a_text_comes_back_from_its_ids(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text())
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back_from_its_ids(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_what_looks_special_is_text_unless_asked_for(tokenizer: Tokenizer) -> None:
    text = "a<|im_end|>b"
    assert tokenizer.encode(text, parse_special=True) == [IDS["a"], END, IDS["b"]]
    ids = tokenizer.encode(text)
    assert not set(ids) & tokenizer.special_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("parse_special", [False, True])
def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer, parse_special: bool) -> None:
    with pytest.raises(RequestError, match=r"prompt holds a lone surrogate \(U\+D800\) at character 2") as caught:
        tokenizer.encode("ab\ud800c", parse_special=parse_special, param="prompt")
    assert caught.value.param == "prompt"


id_lists = st.lists(st.integers(0, len(TOKENS) + 2), max_size=40)


@given(ids=id_lists, skip=st.booleans(), data=st.data())
@settings(max_examples=200, deadline=None)
def test_pieces_of_a_stream_add_up_to_the_whole(
    tokenizer: Tokenizer, ids: list[int], skip: bool, data: st.DataObject
) -> None:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    pieces, rest = [], ids
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        pieces.append(detokenizer.push(rest[:count]))
        rest = rest[count:]
    assert "".join([*pieces, detokenizer.flush()]) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(ids=id_lists, skip=st.booleans())
@settings(max_examples=200, deadline=None)
def test_decoding_equals_that_of_the_tokenizers_library(
    path: Path, tokenizer: Tokenizer, ids: list[int], skip: bool
) -> None:
    theirs = tokenizers.Tokenizer.from_file(str(path))
    assert tokenizer.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("text", ["한국어 텍스트", "👩‍👩‍👧‍👦😀", "日本語、中文"])
def test_a_stream_never_shows_part_of_a_character(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = tokenizer.detokenizer()
    ids = [IDS[c] for c in _characters(text)]
    assert len(ids) == len(text.encode())
    pieces = [detokenizer.push([i]) for i in ids]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == text
    assert detokenizer.flush() == ""


def _characters(text: str) -> list[str]:
    """The byte-level alphabet's characters for the bytes of a text."""
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [c for piece, _ in split.pre_tokenize_str(text) for c in piece]


def test_a_character_cut_short_shows_only_at_the_end(tokenizer: Tokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    first, second, *_ = (IDS[c] for c in _characters("😀"))
    assert detokenizer.push([IDS["a"], first, second]) == "a"
    assert detokenizer.flush() == "\ufffd"


def test_a_token_without_a_name_is_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([IDS["a"], 10**6, -1, 2**40]) == "a"


def test_bytes_of_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(END) == b"<|im_end|>"
    assert tokenizer.token_bytes(IDS["Ġ"]) == b" "
    assert tokenizer.token_text(IDS[_characters("😀")[0]]) == "\ufffd"
    assert (tokenizer.vocab_size, tokenizer.id_of("<|im_end|>"), tokenizer.id_of("nope")) == (len(TOKENS), END, None)


def test_many_threads_may_encode(path: Path) -> None:
    tokenizer = Tokenizer(JsonVocabulary(path))
    texts = [f"{text} <|im_end|> {i}" for i, text in enumerate(HARD_TEXTS * 4)]
    found: dict[int, list[int]] = {}

    def work(i: int) -> None:
        found[i] = tokenizer.encode(texts[i], parse_special=i % 2 == 0)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: tokenizer.encode(t, parse_special=i % 2 == 0) for i, t in enumerate(texts)}


def sentence_pieces(folder: Path, **changes: Any) -> Path:
    """A vocabulary of the Llama 2 kind: ▁ for spaces, bytes as <0xAB>."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "▁ab", "ab"]
    model = {
        "type": "BPE",
        "vocab": {piece: i for i, piece in enumerate(pieces)},
        "merges": ["▁ a", "a b", "▁a b"],
        "unk_token": "<unk>",
        "byte_fallback": True,
        "fuse_unk": True,
    }
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    settings = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": i,
                "content": pieces[i],
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for i in range(3)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": model,
        **changes,
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(settings))
    return path


def test_pieces_with_byte_fallback(tmp_path: Path) -> None:
    tokenizer = Tokenizer(JsonVocabulary(sentence_pieces(tmp_path)))
    ids = tokenizer.encode("ab é a")
    assert tokenizer.decode(ids) == "ab é a"
    assert tokenizer.detokenizer().push(ids) == " ab é a"
    assert tokenizer.token_bytes(ids[2]) in (b"\xc3", b" ")


def test_a_decoder_that_is_not_known_is_refused(tmp_path: Path) -> None:
    path = sentence_pieces(tmp_path, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    with pytest.raises(ModelError, match=r"decodes by .*WordPiece"):
        Tokenizer(JsonVocabulary(path))


@pytest.mark.parametrize("text", ["", "{", '{"version": "1.0"}'])
def test_a_torn_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match="not a valid tokenizer"):
        Tokenizer(JsonVocabulary(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize("text", ["x <mask> y", "x<mask>y", "<mask>", "a  <mask>  <|im_end|> <mask>"])
def test_special_tokens_that_take_space_along_do_so_beside_stand_ins(path: Path, tmp_path: Path, text: str) -> None:
    backend = tokenizers.Tokenizer.from_file(str(path))
    mask = tokenizers.AddedToken("<mask>", special=True, lstrip=True, rstrip=True, normalized=False)
    backend.add_special_tokens([mask])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(JsonVocabulary(tmp_path / "tokenizer.json"))
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    expected = reference.encode(text + "Z", add_special_tokens=False)
    assert tokenizer.encode_rendered(text + "\ue000", {0xE000: "Z"}) == expected
    assert all(special in tokenizer.special_texts for special in (*SPECIALS, "<mask>"))
