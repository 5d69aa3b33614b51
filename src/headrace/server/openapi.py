"""The OpenAPI document, built from the same structs that check the bodies and write the answers, with what structs
cannot say (ranges, forms of a prompt, fields accepted without effect) added here.
"""

from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.request import MAX_CHOICES, MAX_LOGPROBS, MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, SEED_LIMIT
from headrace.server import protocol
from headrace.server.deadline import LONGEST_MS
from headrace.server.errors import AnthropicErrorBody, ErrorBody
from headrace.server.fields import NEUTRAL_ONLY, NO_EFFECT
from headrace.server.messages import ROLES
from headrace.server.service import service_of
from headrace.server.tools.choice import MOST_TOOLS

_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_STRINGS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_PROMPT = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        _STRINGS,
        _TOKEN_IDS,
        {"type": "array", "items": _TOKEN_IDS, "minItems": 1},
    ]
}
_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART, "minItems": 1}]}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_NAME = {"type": ["string", "null"]}
_CALL = _object(
    {
        "id": _NAME,
        "type": {"enum": ["function", None]},
        "index": {},
        "function": _object({"name": {"type": "string"}, "arguments": {"type": ["string", "object", "null"]}}, "name"),
    },
    "function",
)
_ROLE_TOOL, _ROLE_ASSISTANT = {"const": "tool"}, {"const": "assistant"}
_OPTIONAL_CONTENT = {"anyOf": [_CONTENT, {"type": "null"}]}
_MESSAGE = {
    "anyOf": [
        _object({"role": {"enum": list(ROLES[:-1])}, "content": _CONTENT, "name": _NAME}, "role", "content"),
        _object(
            {"role": _ROLE_TOOL, "content": _CONTENT, "name": _NAME, "tool_call_id": {"type": "string"}},
            "role",
            "content",
            "tool_call_id",
        ),
        _object(
            {
                "role": _ROLE_ASSISTANT,
                "content": _OPTIONAL_CONTENT,
                "name": _NAME,
                "tool_calls": {"anyOf": [{"type": "array", "items": _CALL}, {"type": "null"}]},
                "reasoning": _OPTIONAL_CONTENT,
                "reasoning_content": _OPTIONAL_CONTENT,
            },
            "role",
        ),
    ]
}
_MESSAGES = {"type": "array", "items": _MESSAGE, "minItems": 1}
_RANGES: dict[str, dict[str, Any]] = {
    "n": {"minimum": 1, "maximum": MAX_CHOICES},
    "max_tokens": {"minimum": 0},
    "max_completion_tokens": {"minimum": 0},
    "min_tokens": {"minimum": 0},
    "temperature": {"minimum": 0, "maximum": 2},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": -1},
    "min_p": {"minimum": 0, "maximum": 1},
    "seed": {"minimum": -SEED_LIMIT, "maximum": SEED_LIMIT - 1},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "repetition_penalty": {"exclusiveMinimum": 0, "maximum": 100},
    "top_logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
    "cache_salt": {"minLength": 1},
    "deadline_ms": {"minimum": 1, "maximum": LONGEST_MS},
}

_JSON_SCHEMA = _object(
    {
        "name": _NAME,
        "description": _NAME,
        "schema": {"type": "object"},
        "strict": {"type": ["boolean", "null"]},
    },
    "schema",
)
_TEXT = {"type": "string", "minLength": 1}
_TOOL = _object(
    {
        "type": {"const": "function"},
        "function": _object(
            {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
                "description": _NAME,
                "parameters": {"type": ["object", "null"]},
                "strict": {"type": ["boolean", "null"]},
            },
            "name",
        ),
    },
    "type",
    "function",
)
_KINDS: dict[str, dict[str, Any]] = {
    "json": {"anyOf": [{"type": "object"}, _TEXT]},
    "regex": _TEXT,
    "choice": {"type": "array", "items": _TEXT, "minItems": 1},
    "grammar": _TEXT,
    "json_object": {"const": True},
}
_NO_KIND = {**{kind: {"type": "null"} for kind in _KINDS}, "disable_any_whitespace": {"type": ["boolean", "null"]}}
_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
_FORMS: dict[str, dict[str, Any]] = {
    "stop": {
        "anyOf": [
            _STOP,
            {"type": "array", "items": _STOP, "maxItems": MAX_STOP_STRINGS},
            {"type": "null"},
        ]
    },
    "stop_token_ids": {"anyOf": [{"type": "array", "items": {"type": "integer", "minimum": 0}}, {"type": "null"}]},
    "logit_bias": {
        "anyOf": [
            {
                "type": "object",
                "propertyNames": {"pattern": "^[0-9]{1,10}$"},
                "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            },
            {"type": "null"},
        ]
    },
    "response_format": {
        "anyOf": [
            _object({"type": {"enum": ["text", "json_object"]}, "json_schema": {"type": "null"}}, "type"),
            _object({"type": {"const": "json_schema"}, "json_schema": _JSON_SCHEMA}, "type", "json_schema"),
            {"type": "null"},
        ]
    },
    "tools": {"anyOf": [{"type": "array", "items": _TOOL, "maxItems": MOST_TOOLS}, {"type": "null"}]},
    "tool_choice": {
        "anyOf": [
            {"enum": ["none", "auto", "required", None]},
            _object({"type": {"const": "function"}, "function": _object({"name": _TEXT}, "name")}, "type", "function"),
        ]
    },
    "structured_outputs": {
        "anyOf": [
            *(_object({**_NO_KIND, name: form}, name) for name, form in _KINDS.items()),
            {"type": "null"},
        ]
    },
}
_ERRORS = {
    "400": "The request cannot be served as asked; the error names the field and what is allowed.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model.",
    "413": "The body is too large.",
    "415": "The body is not application/json.",
    "429": "Too much work is queued: try again after Retry-After seconds.",
    "500": "The server failed.",
    "503": "The engine does not answer, or the server is shutting down.",
    "504": "The request waited past its deadline.",
}


def document(version: str) -> dict[str, Any]:
    kinds = [
        protocol.ChatBody, protocol.ChatCompletion, protocol.CompletionBody, protocol.Completion, protocol.TokenizeBody,
        protocol.Tokenized, protocol.DetokenizeBody, protocol.Detokenized, protocol.MessagesBody,
        protocol.ResponsesBody, protocol.ModelList, protocol.ModelCard, protocol.Health, protocol.Version, ErrorBody,
        AnthropicErrorBody,
    ]  # fmt: skip
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for schema in schemas.values():
        schema.pop("title", None)
    _complete(schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": _paths(),
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
    }


async def openapi(request: Request) -> Response:
    return Response(_encoded(service_of(request).settings.version), media_type="application/json")


@cache
def _encoded(version: str) -> bytes:
    return msgspec.json.encode(document(version))


def _complete(schemas: dict[str, Any]) -> None:
    for name in ("ChatBody", "CompletionBody"):
        properties = schemas[name]["properties"]
        for field, limits in _RANGES.items():
            if field in properties:
                properties[field] = _bounded(properties[field], limits)
        properties.update(_FORMS)
        properties.update({field: {"description": f"No effect: {why}."} for field, why in NO_EFFECT.items()})
        properties.update({field: {"enum": [*values, None]} for field, values in NEUTRAL_ONLY.items()})
    schemas["CompletionBody"]["properties"]["logprobs"] = _bounded(
        schemas["CompletionBody"]["properties"]["logprobs"], {"minimum": 0, "maximum": MAX_LOGPROBS}
    )
    required: dict[str, dict[str, Any]] = {
        "ChatBody": {"messages": _MESSAGES},
        "CompletionBody": {"prompt": _PROMPT},
        "DetokenizeBody": {"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
    }
    for name, fields in required.items():
        schemas[name]["properties"].update(fields)
        schemas[name]["required"] = list(fields)
    for name in ("ChatBody", "CompletionBody", "TokenizeBody", "DetokenizeBody"):
        schemas[name]["additionalProperties"] = False
    # What else may be there, and what is in a message, their own documents say.
    schemas["MessagesBody"]["required"] = ["messages", "max_tokens"]
    schemas["ResponsesBody"]["required"] = ["input"]
    schemas["TokenizeBody"]["properties"]["messages"] = {"anyOf": [_MESSAGES, {"type": "null"}]}
    schemas["TokenizeBody"]["oneOf"] = [
        {"required": ["prompt"], "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}},
        {"required": ["messages"], "properties": {"messages": _MESSAGES, "prompt": {"type": "null"}}},
    ]


def _bounded(schema: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """Put limits on the branch of anyOf that is not null."""
    branches = [b if b.get("type") == "null" else {**b, **limits} for b in schema["anyOf"]]
    return {**schema, "anyOf": branches}


def _paths() -> dict[str, Any]:
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/v1/chat/completions": _post("Answer a conversation", "ChatBody", "ChatCompletion", stream=True),
        "/v1/responses": _post("Answer in the shape of OpenAI's Responses", "ResponsesBody", None, stream=True),
        "/v1/messages": _post(
            "Answer in the shape of Anthropic's Messages",
            "MessagesBody",
            None,
            stream=True,
            errors="AnthropicErrorBody",
        ),
        "/v1/messages/count_tokens": _post(
            "Tokens of the prompt of a Messages body", "MessagesBody", None, errors="AnthropicErrorBody"
        ),
        "/v1/completions": _post("Continue a text", "CompletionBody", "Completion", stream=True),
        "/tokenize": _post("Token ids of a text or a conversation", "TokenizeBody", "Tokenized"),
        "/detokenize": _post("Text of token ids", "DetokenizeBody", "Detokenized"),
        "/v1/models": _get("The model served", "ModelList"),
        "/v1/models/{model}": {**_get("The model served", "ModelCard", "404"), "parameters": [model]},
        "/health": _get("Whether the engine makes progress", "Health", "503"),
        "/version": _get("What runs here", "Version"),
        "/openapi.json": {
            "get": {
                "summary": "This document",
                "responses": {
                    "200": {"description": "OpenAPI 3.1.", "content": {"application/json": {"schema": {}}}},
                    "401": _error("401"),
                },
            }
        },
        "/metrics": {
            "get": {
                "summary": "Prometheus metrics",
                "responses": {
                    "200": {"description": "The text format.", "content": {"text/plain": {"schema": _STRING}}},
                    "401": _error("401"),
                },
            }
        },
    }


_STRING = {"type": "string"}
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_EVENT = {"type": "object", "properties": {"data": _STRING}, "required": ["data"]}
"""A server-sent event: data is a chunk as JSON, an error object as JSON, or [DONE]."""


def _ref(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _error(status: str, shape: str = "ErrorBody") -> dict[str, Any]:
    return {"description": _ERRORS[status], "content": _ref(shape)}


def _get(summary: str, answer: str, *errors: str) -> dict[str, Any]:
    responses = {"200": {"description": "The answer.", "content": _ref(answer)}}
    responses.update({status: _error(status) for status in ("401", *errors)})
    return {"get": {"summary": summary, "responses": responses}}


def _post(
    summary: str, body: str, answer: str | None, *, stream: bool = False, errors: str = "ErrorBody"
) -> dict[str, Any]:
    content = _OBJECT if answer is None else _ref(answer)
    if stream:
        content = {**content, "text/event-stream": {"schema": _EVENT}}
    responses = {"200": {"description": "The answer; events with stream: true.", "content": content}}
    responses.update({status: _error(status, errors) for status in _ERRORS})
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": _ref(body)},
            "responses": responses,
        }
    }
