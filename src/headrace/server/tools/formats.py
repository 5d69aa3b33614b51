"""The ways in which models write calls: for each its parser, the special tokens that must be seen to read it, and the
form that an answer has which must be a call. Which one a model uses is told by its chat template, or by the operator.
"""

import json
import secrets
import string
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.core.structured import CallsForm, SchemaPart
from headrace.server.tools import mistral
from headrace.server.tools.leading import LeadingParser
from headrace.server.tools.mistral import MistralParser
from headrace.server.tools.parts import NewId, ToolParser
from headrace.server.tools.pythonic import PythonicParser
from headrace.server.tools.tagged import CLOSE, OPEN, TaggedParser

PYTHON_TAG = "<|python_tag|>"
_LETTERS = string.ascii_letters + string.digits

Tool = tuple[str, dict[str, Any], bool]
"""name, schema of the arguments, whether it is strict."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """parser: makes one for an answer. shown: special tokens that belong to the format. form: that of an answer
    that calls one of these tools, or several."""

    parser: Callable[[NewId], ToolParser]
    form: Callable[[list[Tool], bool], CallsForm]
    shown: tuple[str, ...] = ()
    new_id: NewId = lambda: f"call_{uuid.uuid4().hex[:24]}"


def _short_id() -> str:
    """Mistral's templates take nothing else."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def _objects(
    tools: list[Tool],
    several: bool,
    *,
    key: str = "arguments",
    before: str = "",
    between: str,
    after: str = "",
    around: tuple[str, str] = ("", ""),
) -> CallsForm:
    """Calls as JSON objects, in the spacing that models are trained on."""
    ways = []
    for name, schema, strict in tools:
        begin = f'{around[0]}{{"name": {json.dumps(name)}, "{key}": '
        ways.append((begin, SchemaPart(json.dumps(schema), not strict), "}" + around[1]))
    return CallsForm(tuple(ways), before=before, between=between if several else None, after=after)


def _listed(tools: list[Tool], several: bool) -> CallsForm:
    """One object alone, several in a list."""
    brackets = ("[", "]") if several else ("", "")
    return _objects(tools, several, before=brackets[0], between=", ", after=brackets[1])


def _python(tools: list[Tool], several: bool) -> CallsForm:
    """Every argument that the schema names, by keyword."""
    ways = []
    for name, schema, strict in tools:
        way: list[str | SchemaPart] = [f"{name}("]
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        for i, (argument, kind) in enumerate(schema.get("properties", {}).items()):
            way.append(f"{', ' if i else ''}{argument}=")
            way.append(SchemaPart(json.dumps({**kind, **shared} if isinstance(kind, dict) else {}), not strict))
        ways.append((*way, ")"))
    return CallsForm(tuple(ways), before="[", between=", " if several else None, after="]")


FORMATS: dict[str, ToolFormat] = {
    "hermes": ToolFormat(
        TaggedParser, partial(_objects, between="\n", around=(OPEN + "\n", "\n" + CLOSE)), shown=(OPEN, CLOSE)
    ),
    "llama3_json": ToolFormat(
        partial(LeadingParser, marker=PYTHON_TAG),
        partial(_objects, key="parameters", between="; "),
        shown=(PYTHON_TAG,),
    ),
    "mistral": ToolFormat(
        MistralParser,
        partial(_objects, before=mistral.MARKER + "[", between=", ", after="]"),
        shown=(mistral.MARKER, mistral.CALL_ID, mistral.ARGUMENTS),
        new_id=_short_id,
    ),
    "pythonic": ToolFormat(PythonicParser, _python),
    "json": ToolFormat(LeadingParser, _listed),
}


def format_of(template: str) -> str:
    """The format that a chat template speaks of, "json" if it names none that is known."""
    if OPEN in template:
        return "hermes"
    if mistral.MARKER in template:
        return "mistral"
    if PYTHON_TAG in template or ('"parameters"' in template and "<|start_header_id|>" in template):
        return "llama3_json"
    if "[func_name1(" in template:
        return "pythonic"
    return "json"
