"""Small byte-level vocabularies for tests, as GGUF files, and byte-level BPE written out plainly as their reference."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import gguf
import regex
import tokenizers

from headrace.models.formats.gguf import GGUFFile
from headrace.models.gguf_tokenizer import build

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = "<think>"
_NO_RANK = 1 << 60

HARD_TEXTS = (
    "",
    " ",
    "Hello, world!",
    "  two  spaces,   three\n\n\nlines\r\n\ttabs\t\t and trailing   ",
    "I'm you're they'll WE'VE it'S don'T",
    "def f(x):\n    return {k: v**2 for k, v in x.items()}  # 3.14e-10\n",
    "1 12 123 1234 12345 3.1415 1,000,000 ½ ² ٣ Ⅷ x86_64 a1b2  7   8",
    "日本語のテキスト。中文字符,한국어 텍스트 ไทย हिन्दी العربية עברית",
    "emoji 😀😃 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 ❤️",
    "combining e\u0301 a\u030a \u1e69 s\u0323\u0307 Å Å ﬁ",
    "\u00a0\u2003\u3000wide\u200bzero\u2028line\x85next\x00null\x7f",
    "<html>&amp;</html> https://example.org/?q=a%20b#c \\n \\t C:\\dir",
    "!!!???...---===+++###@@@$$$ «quotes» “curly” — dash",
    "\U0001f600" * 20 + "a" * 200 + "\n" * 30 + " " * 50 + "x",
    "almost <|im_end| > <|im_end <im_end> |>",
)

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _WORDS + r"|\p{N}{1,3}" + _REST
_QWEN2 = _WORDS + r"|\p{N}" + _REST
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: dict[str, list[str]] = {
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}", _GPT2],
    "llama-bpe": [_LLAMA3],
    "qwen2": [_QWEN2],
    "tekken": [_TEKKEN],
    "gpt-4o": [_GPT4O],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"],
}
"""Patterns applied one after another, each cutting the pieces of the one before (llama.cpp, llama-vocab.cpp)."""


class ReferenceBPE:
    """Byte-level BPE from its definition (Sennrich et al., arXiv:1508.07909): join the pair of lowest rank, again
    and again."""

    def __init__(self, vocabulary: dict[str, int], merges: list[str], split: str) -> None:
        self._vocabulary = vocabulary
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self._patterns = [regex.compile(pattern) for pattern in SPLITS[split]]
        self._whole_words = split in ("llama-bpe", "tekken")
        characters = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._to_characters = lambda piece: "".join(p for p, _ in characters.pre_tokenize_str(piece))

    def encode(self, text: str) -> list[int]:
        pieces = [text]
        for pattern in self._patterns:
            pieces = [part for piece in pieces for part in _cut(pattern, piece)]
        return [index for piece in pieces for index in self._word(self._to_characters(piece))]

    def _word(self, word: str) -> list[int]:
        if self._whole_words and word in self._vocabulary:
            return [self._vocabulary[word]]
        parts = list(word)
        while len(parts) > 1:
            pairs = enumerate(itertools.pairwise(parts))
            rank, place = min((self._ranks.get(pair, _NO_RANK), i) for i, pair in pairs)
            if rank == _NO_RANK:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return [self._vocabulary[part] for part in parts]


def _cut(pattern: Any, text: str) -> list[str]:
    """Matches of the pattern, and what lies between them."""
    out, end = [], 0
    for match in pattern.finditer(text):
        out += [text[end : match.start()], match[0]]
        end = match.end()
    return [piece for piece in (*out, text[end:]) if piece]


def train(size: int = 600) -> tuple[list[str], list[str]]:
    """(tokens, merges) learned from the hard texts; specials come first, the user-defined token last."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*HARD_TEXTS, *[f" {text}" for text in HARD_TEXTS]] * 2, trainer)
    vocabulary = tokenizer.get_vocab()
    state = tokenizer.model.__getstate__()
    merges = [" ".join(pair) for pair in json.loads(state)["merges"]]
    return [*sorted(vocabulary, key=vocabulary.__getitem__), USER_DEFINED], merges


def write_tokenizer(folder: Path, **settings: Any) -> Path:
    """A tokenizer.json of a small vocabulary, made of a GGUF file beside it."""
    file = GGUFFile(write_vocabulary(folder / "a.gguf", *train(), "smollm", **settings))
    (folder / "tokenizer.json").write_text(build(file).to_str())
    return folder / "tokenizer.json"


def write_vocabulary(path: Path, tokens: list[str], merges: list[str], split: str, **settings: Any) -> Path:
    """A GGUF file with a vocabulary and no weights. settings: further entries under tokenizer.ggml."""
    kinds = [3 if t in SPECIALS else 4 if t == USER_DEFINED else 1 for t in tokens]
    entries: dict[str, Any] = {
        "model": "gpt2",
        "pre": split,
        "tokens": tokens,
        "token_type": kinds,
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
        **settings,
    }
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in entries.items():
        key = f"tokenizer.{name}" if name.startswith("chat_template") else f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
