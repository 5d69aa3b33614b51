"""StructuredOutputsParams: the form that an output must have, as plain data: one of a JSON Schema, any JSON object,
a regular expression, a list of choices or a grammar. Checked here for shape and size; whether it is understood is
found out by models/grammar.py, which compiles it.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.core.errors import RequestError, shown

MAX_SCHEMA_CHARACTERS = 131_072
MAX_GRAMMAR_CHARACTERS = 65_536
MAX_CHOICES_LISTED = 10_000
MAX_NESTING = 64
_PARAM = "structured_outputs"
KINDS = ("json", "regex", "choice", "grammar", "json_object")


class SchemaPart(msgspec.Struct, frozen=True):
    """A JSON value inside a text. lenient: as below."""

    schema: str
    lenient: bool = False


class CallsForm(msgspec.Struct, frozen=True):
    """One of `ways` (texts and JSON values in turn), or several with `between` between them if it is set; `before` and
    `after` stand around all. Special tokens' names in texts mean the tokens."""

    ways: tuple[tuple[str | SchemaPart, ...], ...]
    before: str = ""
    between: str | None = None
    after: str = ""


class StructuredOutputsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of json (a JSON Schema, as an object or as text; kept as text), regex, choice, grammar (Lark or
    GBNF) and json_object. Names and meanings follow vLLM. disable_any_whitespace: JSON is written compactly.
    lenient: parts of a schema that cannot be enforced are left out instead of refused, as OpenAI's strict: false.
    Two fields are the API's own: calls, the form of tool calls, alone or as the other way to answer; and reasoning,
    tags between which the output is free before it takes its form: the first is empty if the prompt has opened it,
    otherwise the output may begin with it. Raises RequestError naming the field."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    lenient: bool = False
    calls: CallsForm | None = None
    reasoning: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1 and (given or self.calls is None):
            got = " and ".join(given) or "none"
            raise RequestError(
                f"structured_outputs must have exactly one of {', '.join(KINDS)}, got {got}", param=_PARAM
            )
        if self.json is not None:
            msgspec.structs.force_setattr(self, "json", schema_text(self.json, "structured_outputs.json", param=_PARAM))
        for name in ("regex", "grammar"):
            if getattr(self, name) is not None:
                _check_text(getattr(self, name), f"structured_outputs.{name}", MAX_GRAMMAR_CHARACTERS, _PARAM)
        if self.choice is not None:
            msgspec.structs.force_setattr(self, "choice", _choices(self.choice))
        if self.json_object not in (None, True):
            raise RequestError(
                f"structured_outputs.json_object must be true or left out, got {shown(self.json_object)}",
                param=_PARAM,
            )
        for name in ("disable_any_whitespace", "lenient"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(
                    f"structured_outputs.{name} must be true or false, got {shown(getattr(self, name))}",
                    param=_PARAM,
                )

    @property
    def kind(self) -> str:
        return next(name for name in (*KINDS, "calls") if getattr(self, name) is not None)


def schema_text(schema: Any, where: str, *, param: str) -> str:
    """A JSON Schema as text, checked to be an object of bounded size and depth. where, param: what errors call it."""
    if isinstance(schema, str):
        _check_text(schema, where, MAX_SCHEMA_CHARACTERS, param)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where} is not valid JSON: {error}", param=param) from None
    if not isinstance(schema, dict):
        raise RequestError(f"{where} must be a JSON Schema, an object, got {shown(schema)}", param=param)
    if depth_exceeds(schema, MAX_NESTING):
        raise RequestError(f"{where} is nested more than {MAX_NESTING} deep", param=param)
    if "x-guidance" in schema:
        raise RequestError(f"{where}: x-guidance is not supported: leave it out", param=param)
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    _check_text(text, where, MAX_SCHEMA_CHARACTERS, param)
    return text


def depth_exceeds(value: Any, most: int) -> bool:
    """Whether objects and lists in value stand more than `most` deep, found without recursion."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)


def _choices(given: Any) -> tuple[str, ...]:
    where = "structured_outputs.choice"
    if not isinstance(given, list | tuple) or not given or not all(isinstance(c, str) and c for c in given):
        raise RequestError(f"{where} must be a list of non-empty strings, got {shown(given)}", param=_PARAM)
    if len(given) > MAX_CHOICES_LISTED:
        raise RequestError(f"{where} must list at most {MAX_CHOICES_LISTED} strings, got {len(given)}", param=_PARAM)
    for choice in given:
        _check_unicode(choice, where, _PARAM)
    if (size := sum(map(len, given))) > MAX_SCHEMA_CHARACTERS:
        raise RequestError(
            f"{where} must have at most {MAX_SCHEMA_CHARACTERS} characters in all, got {size}",
            param=_PARAM,
        )
    return tuple(given)


def _check_text(text: Any, where: str, most: int, param: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{where} must be a non-empty string, got {shown(text)}", param=param)
    if len(text) > most:
        raise RequestError(f"{where} must have at most {most} characters, got {len(text)}", param=param)
    _check_unicode(text, where, param)


def _check_unicode(text: str, where: str, param: str) -> None:
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise RequestError(f"{where} holds a lone surrogate, which is not valid Unicode", param=param)
