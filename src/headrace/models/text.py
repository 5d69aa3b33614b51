"""load_text: a model's text side, without touching its weights: tokenizer, chat template, and the sampling values
its authors recommend. It is what the API process needs; the engine's half is models/loader.py.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import ModelError
from headrace.models.chat_template import ChatTemplate
from headrace.models.formats.gguf_metadata import GGUFMetadata
from headrace.models.gguf_tokenizer import load_vocabulary, token_id
from headrace.models.json_vocabulary import JsonVocabulary
from headrace.models.settings_file import read_json
from headrace.models.tokenizer import Tokenizer, Vocabulary

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_PIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class TextModel:
    """chat_template is None for a model that has none. sampling_defaults: values by SamplingParams name, from
    generation_config.json; a request's own values go before them."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    sampling_defaults: dict[str, float | int]


def load_text(path: Path) -> TextModel:
    """Load the text side of the model at `path` (a folder or a GGUF file). Raises ModelError naming the file."""
    return _from_gguf(path) if path.is_file() else _from_folder(path)


def _from_gguf(path: Path) -> TextModel:
    file = GGUFMetadata(path)
    bos, ends = token_id(file, "bos"), [token_id(file, name) for name in ("eos", "eot", "eom")]
    eos_ids = tuple(dict.fromkeys(index for index in ends if index is not None))
    tokenizer = Tokenizer(load_vocabulary(file), bos_id=bos, eos_ids=eos_ids)
    named = {"bos_token": bos, "eos_token": ends[0], "unk_token": token_id(file, "unknown")}
    special = {name: tokenizer.name_of(index) for name, index in named.items() if index is not None}
    keys = {"default": "tokenizer.chat_template", "tool_use": "tokenizer.chat_template.tool_use"}
    template = _chat_template({name: file.get(key) for name, key in keys.items()}, tokenizer, special)
    return TextModel(tokenizer, template, {})


def _from_folder(path: Path) -> TextModel:
    settings = _optional_json(path / "tokenizer_config.json")
    generation = _optional_json(path / "generation_config.json")
    config = _optional_json(path / "config.json")
    special = {name: text for name in _SPECIAL_NAMES if (text := _token_text(settings.get(name))) is not None}
    tokenizer = Tokenizer(_vocabulary(path, settings))
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    end_ids = _ids(ends, path, tokenizer.vocab_size)
    named = tokenizer.id_of(special.get("eos_token", ""))
    tokenizer.eos_ids = tuple(dict.fromkeys(end_ids if named is None else [*end_ids, named]))
    tokenizer.bos_id = tokenizer.id_of(special.get("bos_token", ""))
    sources = _template_sources(path, settings)
    template = _chat_template(sources, tokenizer, special)
    return TextModel(tokenizer, template, _sampling_defaults(generation, path))


def _vocabulary(path: Path, settings: dict[str, Any]) -> Vocabulary:
    if (path / "tokenizer.json").is_file():
        return JsonVocabulary(path / "tokenizer.json")
    for name in _PIECE_FILES:
        if (path / name).is_file():
            # Not at the top: few models need it, and numpy with it.
            pieces = importlib.import_module("headrace.models.piece_vocabulary")
            vocabulary: Vocabulary = pieces.load_sentencepiece(path / name, settings)
            return vocabulary
    raise ModelError(f"{path}: it has no tokenizer.json and no {', '.join(_PIECE_FILES)}")


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _token_text(value: Any) -> str | None:
    """A token's text in tokenizer_config.json: as it is, or inside an object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _ids(value: Any, path: Path, vocab_size: int) -> list[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for index in ids:
        if type(index) is not int or not 0 <= index < vocab_size:
            raise ModelError(f"{path}: eos_token_id must be made of ids from 0 to {vocab_size - 1}, got {index!r}")
    return ids


def _chat_template(sources: Mapping[str, Any], tokenizer: Tokenizer, special: dict[str, str]) -> ChatTemplate | None:
    """The template named default, and the one named tool_use for conversations with tools."""
    source, with_tools = sources.get("default"), sources.get("tool_use")
    if not isinstance(source, str):
        return None
    with_tools = with_tools if isinstance(with_tools, str) else None
    return ChatTemplate(source, tokenizer, special_tokens=special, source_with_tools=with_tools)


def _template_sources(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """By name, from chat_template.jinja and additional_chat_templates/, chat_template.json or tokenizer_config.json,
    the first that is there."""
    file = path / "chat_template.jinja"
    if file.is_file():
        more = path / "additional_chat_templates" / "tool_use.jinja"
        files = {"default": file} | ({"tool_use": more} if more.is_file() else {})
        return {name: found.read_text(encoding="utf-8") for name, found in files.items()}
    given = _optional_json(path / "chat_template.json").get("chat_template", settings.get("chat_template"))
    if isinstance(given, list):
        return {str(item.get("name")): item.get("template") for item in given if isinstance(item, dict)}
    return given if isinstance(given, dict) else {"default": given}


def _sampling_defaults(generation: dict[str, Any], path: Path) -> dict[str, float | int]:
    found = {name: generation[name] for name in SAMPLING_DEFAULTS if generation.get(name) is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{path / 'generation_config.json'}: {name} must be a number, got {value!r}")
    return found
