"""Builds a vocabulary from the one inside a GGUF file: SentencePiece's, or byte-level BPE, split as
`tokenizer.ggml.pre` names, which is built once and kept in the cache folder as a tokenizer.json, which loads several
times faster.

A way of splitting that is not known here is refused by name: guessing one gives wrong tokens without a sign.
"""

import hashlib
import importlib
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from headrace.core.errors import ModelError
from headrace.models.cache import cache_folder, locked, write_whole
from headrace.models.formats.gguf_metadata import GGUFMetadata
from headrace.models.gguf_splits import BEGIN_BY_DEFAULT, COMPOSED, SPLITS, WHOLE_WORDS_FIRST
from headrace.models.json_vocabulary import JsonVocabulary
from headrace.models.tokenizer import Vocabulary

_VERSION = "3"
_OF_PIECES = ("llama", "t5")
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


def load_vocabulary(file: GGUFMetadata) -> Vocabulary:
    """Raises ModelError naming the setting that is missing, torn or not supported."""
    if file.get("tokenizer.ggml.model") not in _OF_PIECES:
        return JsonVocabulary(cached_tokenizer_json(file))
    unigram = file.get("tokenizer.ggml.model") == "t5"
    begin, end = _ends(file, begin=not unigram, end=unigram)
    # Not at the top: few models need it, and numpy with it.
    pieces = importlib.import_module("headrace.models.gguf_pieces")
    vocabulary: Vocabulary = pieces.load_pieces(file, begin=begin, end=end)
    return vocabulary


def cached_tokenizer_json(file: GGUFMetadata) -> Path:
    """Path of the tokenizer.json that stands for the file's vocabulary, built now if it is not there yet."""
    path = cache_folder() / "tokenizers" / f"{_vocabulary_digest(file)}.json"
    if not path.exists():
        with locked(path):
            if not path.exists():
                write_whole(path, _quick_to_read(build(file).to_str()).encode())
    return path


def build(file: GGUFMetadata) -> Tokenizer:
    """Raises ModelError naming the setting that is missing, torn or not supported."""
    kind, split = file.get("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise ModelError(
            f"{file.path}: tokenizer.ggml.model {kind!r} is not supported; "
            f"gpt2 (byte-level BPE), llama and t5 (SentencePiece) are"
        )
    if not isinstance(split, str) or split not in SPLITS:
        raise ModelError(
            f"{file.path}: tokenizer.ggml.pre {split!r} is not known; known are {', '.join(sorted(SPLITS))}"
        )
    if file.get("tokenizer.ggml.add_space_prefix"):
        raise ModelError(f"{file.path}: tokenizer.ggml.add_space_prefix is not supported with byte-level BPE")
    tokens = file.strings("tokenizer.ggml.tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens has a token twice")
    model = models.BPE(vocabulary, _merges(file, vocabulary), fuse_unk=False, ignore_merges=split in WHOLE_WORDS_FIRST)
    tokenizer = Tokenizer(model)
    if split in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = SPLITS[split]()
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, file, tokens)
    _add_ends(tokenizer, file, tokens, begin=split in BEGIN_BY_DEFAULT)
    return tokenizer


def _quick_to_read(tokenizer: str) -> str:
    """The same with merges as strings, if no token has a space: the library reads those a fifth faster than pairs."""
    state = json.loads(tokenizer)
    merges = [" ".join(merge) for merge in state["model"]["merges"]]
    if all(merge.count(" ") == 1 for merge in merges):
        state["model"]["merges"] = merges
    return json.dumps(state, ensure_ascii=False, separators=(",", ":"))


def token_id(file: GGUFMetadata, name: str) -> int | None:
    """Id of a named token (`bos`, `eos`, `eot` ...), checked against the vocabulary; None if the file has none."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = file.get(key)
    if value is None:
        return None
    size = file.length("tokenizer.ggml.tokens")
    if type(value) is not int or not 0 <= value < size:
        raise ModelError(f"{file.path}: {key} must be from 0 to {size - 1}, got {value!r}")
    return value


def _vocabulary_digest(file: GGUFMetadata) -> str:
    digest = hashlib.blake2b(_VERSION.encode(), digest_size=16)
    for key in file.keys("tokenizer.ggml."):
        digest.update(key.encode() + b"\0" + file.raw(key))
    return digest.hexdigest()


def _merges(file: GGUFMetadata, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    merges = []
    for merge in file.strings("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise ModelError(f"{file.path}: tokenizer.ggml.merges: {merge!r} joins what is not in the vocabulary")
        merges.append((left, right))
    return merges


def _add_tokens(tokenizer: Tokenizer, file: GGUFMetadata, tokens: list[str]) -> None:
    """Control tokens are special; user-defined ones are whole tokens wherever their text stands."""
    if "tokenizer.ggml.token_type" not in file:
        raise ModelError(f"{file.path}: tokenizer.ggml.token_type is missing, so special tokens are not known")
    kinds = file.numbers("tokenizer.ggml.token_type")
    if len(kinds) != len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.token_type has {len(kinds)} entries, tokens {len(tokens)}")
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (_CONTROL, _UNKNOWN) and token:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED and token:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])


def _add_ends(tokenizer: Tokenizer, file: GGUFMetadata, tokens: list[str], *, begin: bool) -> None:
    first, last = _ends(file, begin=begin, end=False)
    if first or last:
        pieces = [*(tokens[index] for index in first), "$A", *(tokens[index] for index in last)]
        special = [(tokens[index], index) for index in (*first, *last)]
        tokenizer.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=special)


def _ends(file: GGUFMetadata, *, begin: bool, end: bool) -> tuple[list[int], list[int]]:
    """Tokens put before and after every text that asks for special tokens. begin, end: whether BOS and EOS are where
    the file does not say."""
    found = []
    for name, usual in (("bos", begin), ("eos", end)):
        given = file.get(f"tokenizer.ggml.add_{name}_token")
        index = token_id(file, name) if (usual if given is None else given) else None
        found.append([] if index is None else [index])
    return found[0], found[1]
