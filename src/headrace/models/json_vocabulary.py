"""JsonVocabulary: a tokenizer.json, run by the `tokenizers` library."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from headrace.core.errors import ModelError
from headrace.models.added_tokens import AddedToken, AddedTokens


class JsonVocabulary:
    """A Vocabulary. Raises ModelError if the file is torn or decodes in a way that is not known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._backend = _load(path)
        self.kind = f"{type(self._backend.model).__name__} (tokenizer.json)"
        self.size = self._backend.get_vocab_size(with_added_tokens=True)
        found = self._backend.get_added_tokens_decoder()
        self.added = AddedTokens(AddedToken(i, t.content, t.special, t.lstrip, t.rstrip) for i, t in found.items())
        self._to_bytes, self.strip_first_space = _decoding(self._backend, path)
        self._variants: dict[tuple[bool, bool], tokenizers.Tokenizer] = {(True, True): self._backend}
        self._lock = threading.Lock()

    def encode(self, text: str, *, special: bool, ends: bool, first: bool = True) -> list[int]:
        return self._variant(special, first).encode_batch_fast([text], add_special_tokens=ends)[0].ids

    def normalize(self, text: str) -> str:
        normalizer = self._backend.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def id_of(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def name_of(self, token: int) -> str:
        return (self._backend.id_to_token(token) if 0 <= token < 2**32 else None) or ""

    def to_bytes(self, token: int) -> bytes:
        added = self.added.by_id.get(token)
        return self._to_bytes(self.name_of(token)) if added is None else added.content.encode()

    def _variant(self, special: bool, first: bool) -> tokenizers.Tokenizer:
        """Further copies, made when they are first needed: one to which special tokens are text, one that takes no
        text as the first."""
        with self._lock:
            found = self._variants.get((special, first))
            if found is None:
                state = json.loads(self._backend.to_str())
                same = not first and not _never_first(state["pre_tokenizer"])
                if not special:
                    _hide(state, self.added.special_texts)
                found = self._variants.get((special, True)) if same else None
                found = found or tokenizers.Tokenizer.from_str(json.dumps(state))
                found.encode_special_tokens = not special
                self._variants[special, first] = found
            return found


def _never_first(step: dict[str, Any] | None) -> bool:
    """Tell the steps that treat a text's beginning apart that this is none; whether there are any."""
    if step is None:
        return False
    if step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first":
        step["prepend_scheme"] = "never"
        return True
    found = [_never_first(inner) for inner in step.get("pretokenizers", [])]
    return any(found)


def _hide(state: dict[str, Any], special: dict[str, int]) -> None:
    """Rename special tokens in models that look whole words up, so that no text is one by spelling its name."""
    model = state["model"]
    if model["type"] == "Unigram":
        for name, index in special.items():
            if index < len(model["vocab"]) and model["vocab"][index][0] == name:
                model["vocab"][index][0] = f" {index}"
    elif model.get("ignore_merges"):
        merged = {part for merge in model["merges"] for part in merge}
        model["vocab"] = {
            f" {index}" if name in special and name not in merged else name: index
            for name, index in model["vocab"].items()
        }


def _load(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more exact
        raise ModelError(f"{path}: not a valid tokenizer: {error}") from error


def _decoding(backend: tokenizers.Tokenizer, path: Path) -> tuple[Callable[[str], bytes], bool]:
    """How a token's name stands for bytes, and whether a text's first space is not its own."""
    decoder: dict[str, Any] = {} if backend.decoder is None else json.loads(backend.decoder.__getstate__())
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    if kinds == {"ByteLevel"}:
        return _byte_level_bytes, False
    if kinds == {"Metaspace"}:
        return _piece_bytes, steps[0].get("prepend_scheme") != "never"
    if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return _piece_bytes, "Strip" in kinds
    raise ModelError(f"{path}: a tokenizer that decodes by {sorted(map(str, kinds))} is not supported")


def _byte_level_bytes(name: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF.__getitem__, name))
    except KeyError:
        return name.encode()


def _piece_bytes(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace("▁", " ").encode()


def _byte_characters() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies: itself where printable in Latin-1,
    otherwise one from U+0100 on (GPT-2's bytes_to_unicode)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_characters()
