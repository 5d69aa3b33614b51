"""Forms become matchers that allow exactly the texts that have the form; what is not understood is said clearly,
whatever a client thinks of."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.letters import Letters, letters_compiler, matcher

from headrace.core.errors import RequestError
from headrace.core.structured import StructuredOutputsParams
from headrace.models.grammar import GrammarCompiler

SIZE = 300
WORDS = Letters(SIZE)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "maximum": 20000000000}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler():
    compiler = letters_compiler(SIZE)
    yield compiler
    compiler.close()


def accepts(compiler: GrammarCompiler, text: str, **form: Any) -> bool:
    found = matcher(compiler, **form)
    ids = WORDS.ids(text)
    return found.try_consume_tokens(ids) == len(ids) and found.is_accepting()


@pytest.mark.parametrize(
    ("form", "yes", "no"),
    [
        ({"json": PERSON}, ['{"name": "Bo", "age": 20000000000}', '{"name":"","age":-1}'], ["{}", '{"age": 3}', "[]"]),
        ({"json": PERSON, "disable_any_whitespace": True}, ['{"name":"Bo","age":3}'], ['{"name": "Bo","age":3}']),
        ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}'], ["[]", "3", '"a"', ""]),
        ({"regex": r"ab/c\d+"}, ["ab/c12"], ["ab/c", "ab/c1x", "xab/c1"]),
        ({"regex": "^(yes|no)$"}, ["yes", "no"], ["maybe"]),
        ({"choice": ["red", 'say "hi"', "a\\b"]}, ["red", 'say "hi"', "a\\b"], ["re", "blue", "redred"]),
        ({"grammar": 'start: "a" word\nword: /[b-c]+/'}, ["abc"], ["a", "bc"]),
        ({"grammar": 'root ::= "a" word\nword ::= [b-c]+'}, ["abc"], ["a", "bc"]),
        ({"json": {"not": {"type": "string"}}, "lenient": True}, ["3"], ["x"]),
        ({"json": {"$ref": "#/$defs/a", "$defs": {"a": {"enum": ["x", 1]}}}}, ['"x"', "1"], ['"y"']),
    ],
)
def test_exactly_the_texts_that_have_the_form(compiler: Any, form: Any, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not accepts(compiler, text, **form)] == []
    assert [text for text in no if accepts(compiler, text, **form)] == []


def test_json_is_not_drowned_in_whitespace(compiler: Any) -> None:
    pretty = json.dumps({"name": "Bo", "age": 3}).replace(", ", ",  ")
    assert not accepts(compiler, pretty, json=PERSON)
    assert not accepts(compiler, '{"name": "Bo", "age": 3}  ', json=PERSON)


def test_the_end_is_allowed_exactly_where_the_form_is_complete(compiler: Any) -> None:
    found = matcher(compiler, regex="ab?")
    allowed = []
    for token in [*WORDS.ids("ab"), None]:
        bits = np.unpackbits(np.frombuffer(found.compute_bitmask(), np.uint8), count=SIZE, bitorder="little")
        allowed.append(bool(bits[WORDS.eos_ids[0]]))
        if token is not None:
            assert bits[token]
            assert found.consume_token(token)
    assert allowed == [False, True, True]


def test_ids_without_a_token_are_never_allowed() -> None:
    compiler = GrammarCompiler(lambda: Letters(100), 130)
    found = matcher(compiler, regex="(?s:.)*")
    bits = np.unpackbits(np.frombuffer(found.compute_bitmask(), np.uint8), bitorder="little")
    assert bits[:100].all()
    assert not bits[100:].any()


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"json": {"type": "foo"}}, "structured_outputs.json is not understood: Invalid type: foo"),
        ({"json": {"not": {"type": "string"}}}, 'Unimplemented keys: ["not"]'),
        ({"json": {"$ref": "#/nowhere"}}, "Pointer '/nowhere' does not exist"),
        ({"json": {"$ref": "https://example.org/x"}}, "https://example.org/x"),
        ({"json": {"$ref": "#"}}, "no text satisfies it"),
        ({"json": {"type": "string", "minLength": 5, "maxLength": 2}}, "minLength (5) is greater than maxLength (2)"),
        ({"json": {"type": "string", "pattern": "("}}, "structured_outputs.json is not understood: unclosed group"),
        ({"json": {"type": "string", "format": "foo"}}, "Unknown format: foo"),
        ({"regex": "("}, "structured_outputs.regex is not understood: unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": r"(a)\1"}, "backreferences are not supported"),
        ({"grammar": 'start: "a" x'}, 'structured_outputs.grammar is not understood: line 1: unknown name: "x"'),
        ({"grammar": "start: <nothing>"}, 'line 1: unknown special token: "<nothing>"'),
        ({"grammar": "hello"}, "it has no start rule as Lark has, and as GBNF: Expected ::="),
        ({"grammar": "root ::= x"}, "Rule 'x' not found"),
        ({"grammar": "root ::= x\n" * 501}, "at most 500 rules, this one has 501"),
        ({"grammar": "start: a\na: b\nb: a"}, "no text satisfies it"),
        ({"choice": ["日本"]}, "no text satisfies it"),
        (
            {
                "grammar": "start: X ("
                + "|".join(f"a{i}" for i in range(2600))
                + ')\nX: "x"\n'
                + "".join(f"a{i}: X | X X\n" for i in range(2600))
            },
            "it is too large: at one place there are ",
        ),
        (
            {"json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}}},
            "an object has 1500 properties that are not required, and only 1200 are followed",
        ),
    ],
)
def test_what_is_not_understood_is_named(compiler: Any, form: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        matcher(compiler, **form)
    assert message in caught.value.message
    assert "%llguidance" not in caught.value.message
    assert caught.value.param == "structured_outputs"


def chain(length: int) -> dict[str, Any]:
    """Definitions each of which has the next inside."""
    inside = {f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**inside, f"d{length}": {}}}


@pytest.mark.parametrize(
    "form",
    [
        {"json": chain(1500)},
        {"grammar": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(4500)) + 'r4500: "a"'},
        {"regex": "(" * 20_000 + "a" + ")" * 20_000},
        {"regex": "((a{1,1000}){1,1000}){1,1000}"},
        {"regex": "(a|b|ab)*(a|b|ab){50}(x+x+)+y"},
        {"json": {"type": "integer", "multipleOf": 99991, "maximum": 10**15}},
        {"json": {"allOf": [{"anyOf": [{"properties": {f"p{i}": {"const": k}}} for k in range(4)]} for i in range(8)]}},
        {"json": {"type": "array", "items": {"type": "string"}, "minItems": 100_000, "maxItems": 1_000_000}},
        {"json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}}},
        {"grammar": 'start: s\ns: s s s | "a" | "aa"'},
        {"grammar": "root ::= " + "(" * 2000 + '"a"' + ")" * 2000},
    ],
    ids=lambda form: str(form)[:30],
)
def test_hostile_forms_cost_an_error_at_most(compiler: Any, form: dict[str, Any]) -> None:
    """Deep recursion in the library would end the process; the test's own time limit is the other bound."""
    error = compiler.compile(StructuredOutputsParams(**form)).exception()
    assert error is None or isinstance(error, RequestError)
    assert accepts(compiler, "{}", json_object=True), "the next form is compiled as before"


def test_a_thousand_optional_properties_are_followed(compiler: Any) -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}
    assert accepts(compiler, '{"p7":"a","p998":"b"}', json=schema)
    assert not accepts(compiler, '{"p998":1}', json=schema)


def test_the_vocabulary_is_opened_once_by_whoever_comes_first() -> None:
    opened: list[Letters] = []

    def open_vocabulary() -> Letters:
        opened.append(Letters(SIZE))
        return opened[-1]

    compiler = GrammarCompiler(open_vocabulary, SIZE)
    compiler.warm()
    matcher(compiler, regex="a")
    assert len(opened) == 1


def test_a_large_vocabulary_is_opened_by_the_first_form_only() -> None:
    opened: list[int] = []
    compiler = GrammarCompiler(lambda: opened.append(1) or Letters(SIZE), 70_000)
    compiler.warm()
    compiler._submit(int).result()
    assert opened == []
    matcher(compiler, regex="a")
    assert opened == [1]


def test_forms_are_compiled_once(compiler: Any) -> None:
    form = StructuredOutputsParams(regex="once")
    assert compiler.compile(form) is compiler.compile(StructuredOutputsParams(regex="once"))


def test_a_model_without_an_end_cannot_be_held_to_a_form() -> None:
    endless = Letters(SIZE)
    endless.eos_ids = ()
    with pytest.raises(RequestError, match="no token that ends an answer"):
        matcher(GrammarCompiler(lambda: endless, SIZE), regex="a")
