"""Structured output as clients ask for it, OpenAI's response_format or vLLM's structured_outputs, becomes one
StructuredOutputsParams; and whether its grammar is understood is found out before the engine hears of it, off the
event loop and in bounded time.
"""

import asyncio
from typing import Any

from headrace.core.errors import RequestError, did_you_mean, shown
from headrace.core.structured import KINDS, StructuredOutputsParams, schema_text
from headrace.server.errors import HttpError
from headrace.server.protocol import SamplingBody
from headrace.server.service import Service

_FORMATS = ("text", "json_object", "json_schema")
_OPTIONS = (*KINDS, "disable_any_whitespace")
_SCHEMA_FIELDS = ("name", "description", "schema", "strict")
_SCHEMA = "response_format.json_schema.schema"


def structured_outputs(body: SamplingBody) -> StructuredOutputsParams | None:
    """The form that a body asks for. Raises RequestError naming the field."""
    wanted = None if body.response_format is None else _of_format(body.response_format)
    if body.structured_outputs is None:
        return wanted
    if wanted is not None:
        raise RequestError(
            "response_format and structured_outputs both set the form of the output: give one of them",
            param="structured_outputs",
        )
    given = {name: value for name, value in body.structured_outputs.items() if value is not None}
    for name in given:
        if name not in _OPTIONS:
            raise _unknown(f"structured_outputs.{name[:64]}", name, _OPTIONS)
    return StructuredOutputsParams(**given)


async def check_understood(service: Service, wanted: StructuredOutputsParams | None, body: SamplingBody) -> None:
    """Compile the form, unless that was done before. Raises RequestError naming the field and what was not
    understood, HttpError 503 if no answer comes in time."""
    if wanted is None:
        return
    if service.grammars is None:
        param = "structured_outputs" if body.response_format is None else "response_format"
        raise RequestError(f"{param} is not available here: this engine knows no vocabulary", param=param)
    seconds = service.settings.grammar_timeout
    compiled = asyncio.wrap_future(service.grammars.compile(wanted))
    try:
        await asyncio.wait_for(asyncio.shield(compiled), seconds)
    except TimeoutError:
        compiled.add_done_callback(_forget)
        raise HttpError(
            503,
            f"the form of the output was not understood within {seconds:g} s: make it simpler, or try again",
            code="grammar_timeout",
            headers={"Retry-After": "10"},
        ) from None
    except RequestError as error:
        if body.response_format is None:
            raise
        spelled = error.message.replace("structured_outputs.json", _SCHEMA, 1)
        raise RequestError(spelled, param="response_format") from None


def _of_format(given: dict[str, Any]) -> StructuredOutputsParams | None:
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise RequestError(
            f"response_format.type must be one of {', '.join(_FORMATS)}, got {shown(kind)}", param="response_format"
        )
    known = ("type", "json_schema") if kind == "json_schema" else ("type",)
    for name, value in given.items():
        if name not in known and value is not None:
            raise _unknown(f"response_format.{name[:64]}", name, known)
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    return _of_schema(given.get("json_schema"))


def _of_schema(given: Any) -> StructuredOutputsParams:
    if not isinstance(given, dict):
        raise RequestError(
            f"response_format.json_schema must be an object with name and schema, got {shown(given)}",
            param="response_format",
        )
    for name, value in given.items():
        if name not in _SCHEMA_FIELDS and value is not None:
            raise _unknown(f"response_format.json_schema.{name[:64]}", name, _SCHEMA_FIELDS)
    for name, kind in (("name", str), ("description", str), ("strict", bool)):
        if given.get(name) is not None and not isinstance(given[name], kind):
            raise RequestError(
                f"response_format.json_schema.{name} must be a {'string' if kind is str else 'boolean'}, got "
                f"{shown(given[name])}",
                param="response_format",
            )
    return StructuredOutputsParams(
        json=schema_text(given.get("schema"), _SCHEMA, param="response_format"), lenient=not given.get("strict", False)
    )


def _unknown(where: str, name: str, known: tuple[str, ...]) -> RequestError:
    hint = did_you_mean(name, known, f"known: {', '.join(known)}")
    return RequestError(f"unknown field {where}; {hint}", param=where.partition(".")[0], code="unknown_parameter")


def _forget(compiled: asyncio.Future[Any]) -> None:
    """Whoever asked has left: an error that comes later is nobody's."""
    if not compiled.cancelled():
        compiled.exception()
