"""StructuredOutputsParams refuse what is no form at all, by name, before anything is compiled."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from headrace.core.errors import RequestError
from headrace.core.request import SamplingParams
from headrace.core.structured import MAX_NESTING, CallsForm, SchemaPart, StructuredOutputsParams, depth_exceeds


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of json, regex, choice, grammar, json_object, got none"),
        ({"json": {}, "regex": "a"}, "got json and regex"),
        ({"json": ""}, "structured_outputs.json must be a non-empty string"),
        ({"json": "{"}, "structured_outputs.json is not valid JSON"),
        ({"json": "[" * 100_000}, "structured_outputs.json is not valid JSON"),
        ({"json": "3"}, "must be a JSON Schema, an object, got 3"),
        ({"json": 3}, "must be a JSON Schema, an object, got 3"),
        ({"json": nested(MAX_NESTING + 1)}, "nested more than 64 deep"),
        ({"json": {"x-guidance": {}}}, "x-guidance is not supported"),
        ({"json": {"const": "x" * 140_000}}, "at most 131072 characters"),
        ({"json": '{"const": "\ud800"}'}, "lone surrogate"),
        ({"json_object": False}, "json_object must be true or left out, got False"),
        ({"regex": " "}, "regex must be a non-empty string"),
        ({"regex": "a" * 70_000}, "at most 65536 characters, got 70000"),
        ({"regex": 3}, "regex must be a non-empty string, got 3"),
        ({"choice": []}, "choice must be a list of non-empty strings"),
        ({"choice": "red"}, "choice must be a list of non-empty strings, got 'red'"),
        ({"choice": ["a", ""]}, "choice must be a list of non-empty strings"),
        ({"choice": ["a"] * 10_001}, "at most 10000 strings, got 10001"),
        ({"choice": ["a" * 1000] * 200}, "characters in all, got 200000"),
        ({"grammar": "start: \ud800"}, "lone surrogate"),
        ({"regex": "a", "lenient": 1}, "lenient must be true or false"),
    ],
)
def test_what_is_no_form_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message.replace("(", r"\(")) as caught:
        StructuredOutputsParams(**fields)
    assert caught.value.param == "structured_outputs"


def test_equal_schemas_are_equal_however_given() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    one, other = StructuredOutputsParams(json=schema), StructuredOutputsParams(json=json.dumps(schema, indent=2))
    assert one == other
    assert hash(one) == hash(other)
    assert list(json.loads(str(one.json))["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    "fields",
    [
        {"json": {"type": "string"}},
        {"choice": ["a", "b"]},
        {"regex": "x+", "reasoning": ("", "</think>")},
        {"json_object": True, "calls": CallsForm((("f(", SchemaPart("{}", True), ")"),), between=", ")},
    ],
)
def test_they_cross_process_borders_unchanged(fields: dict[str, Any]) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**fields))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert hash(params.structured_outputs)


def test_depth() -> None:
    assert not depth_exceeds(nested(3), 4)
    assert depth_exceeds(nested(4), 4)
    assert depth_exceeds([[[]]], 2)
    assert not depth_exceeds("text", 1)


@pytest.mark.parametrize("field", [{"ignore_eos": True}, {"min_tokens": 1}, {"allowed_token_ids": [1]}])
def test_what_would_break_the_form_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"{next(iter(field))} does not go with structured_outputs"):
        SamplingParams(structured_outputs=StructuredOutputsParams(json_object=True), **field)
    with pytest.raises(RequestError, match="must be StructuredOutputsParams"):
        SamplingParams(structured_outputs={"json_object": True})
