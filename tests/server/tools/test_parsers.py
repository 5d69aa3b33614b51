"""Each way of writing calls, read from whole answers, and from the same answers cut anywhere: what comes out is the
same, whatever stands in them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat_templates import FAMILIES

from headrace.core.config import TOOL_CALL_PARSERS
from headrace.server.tools.formats import FORMATS, format_of
from headrace.server.tools.parts import Parts, merged


def read(name: str, pieces: list[str]) -> Parts:
    ids = itertools.count()
    parser = FORMATS[name].parser(lambda: f"id{next(ids)}")
    return merged([*(parser.feed(piece) for piece in pieces), parser.finish()])


def calls(parts: Parts) -> list[tuple[str | None, str]]:
    return [(call.name, call.arguments) for call in parts.calls]


WEATHER = ("get_weather", '{"city": "Oslo", "days": [1, 2]}')
TIME = ("get_time", "{}")

OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": [1, 2]}}'

EXAMPLES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Hello, world!", "Hello, world!", []),
    ("hermes", "", "", []),
    ("hermes", "a < b \n", "a < b \n", []),
    ("hermes", "<tool_call>\n" + OSLO + "\n</tool_call>", "", [WEATHER]),
    (
        "hermes",
        "I look.\n<tool_call>" + OSLO + "</tool_call>\n"
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n',
        "I look.",
        [WEATHER, TIME],
    ),
    ("hermes", '<tool_call>{"name": "get_time"}</tool_call> Done.', "Done.", [TIME]),
    ("hermes", '<tool_call>{"arguments": {"a": "}"}, "name": "f"}</tool_call>', "", [("f", '{"a": "}"}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    (
        "hermes",
        '<tool_call>{"name": "f", "x": [1], "arguments": {}}<tool_call>{"name": "g"}',
        "",
        [("f", "{}"), ("g", "{}")],
    ),
    ("hermes", "hm <tool_call>no</tool_call> x", "hm <tool_call>no</tool_call> x", []),
    ("hermes", 'hm <tool_call>{"nome": 1}</tool_call>', 'hm <tool_call>{"nome": 1}</tool_call>', []),
    ("hermes", 'hm <tool_call>{"name": 3}', 'hm <tool_call>{"name": 3}', []),
    ("hermes", 'hm <tool_call>{"name": "f', 'hm <tool_call>{"name": "f', []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "cut', "", [("f", '{"a": "cut')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, oops}</tool_call>', "", [("f", "{}")]),
    ("hermes", "x <tool_ca", "x <tool_ca", []),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Oslo", "days": [1, 2]}}', "", [WEATHER]),
    (
        "llama3_json",
        '<|python_tag|>{"name": "get_time", "parameters": {}}; {"name": "get_time", "parameters": {}}',
        "",
        [TIME, TIME],
    ),
    ("llama3_json", '<|python_tag|>print("x")', 'print("x")', []),
    ("llama3_json", 'The answer is {"name": "f"}', 'The answer is {"name": "f"}', []),
    ("llama3_json", '\n{"a": 1}', '\n{"a": 1}', []),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}} Well.', "Well.", [("f", '{"a": 1}')]),
    ("json", "[" + OSLO + ', {"name": "get_time"}]', "", [WEATHER, TIME]),
    ("json", "[1, 2]", "[1, 2]", []),
    ("json", "[", "[", []),
    ("json", '[{"name": "f"}, {"no": 1}]', '{"no": 1}]', [("f", "{}")]),
    ("mistral", "[TOOL_CALLS][" + OSLO + ', {"name": "get_time", "arguments": {}}]', "", [WEATHER, TIME]),
    (
        "mistral",
        '[TOOL_CALLS]get_weather{"city": "Oslo", "days": [1, 2]}[TOOL_CALLS]get_time[ARGS]{}',
        "",
        [WEATHER, TIME],
    ),
    ("mistral", "[TOOL_CALLS] get_time[CALL_ID]abc[ARGS] {}", "", [TIME]),
    ("mistral", "A list: [1, 2]", "A list: [1, 2]", []),
    ("mistral", "Now [TOOL_CALLS]get", "Now" + "get", []),
    ("pythonic", '[get_weather(city="Oslo", days=[1, 2]), get_time()]', "", [WEATHER, TIME]),
    (
        "pythonic",
        "[f(a=true, b=None, c={'x': (1, -2.5)}, d='it\\'s )')]",
        "",
        [("f", '{"a": true, "b": null, "c": {"x": [1, -2.5]}, "d": "it\'s )"}')],
    ),
    ("pythonic", "[1, 2]", "[1, 2]", []),
    ("pythonic", "[f(x)]", "[f(x)]", []),
    ("pythonic", "[f(a=open('x'))]", "[f(a=open('x'))]", []),
    ("pythonic", "[f(a=1), g(b=", "g(b=", [("f", '{"a": 1}')]),
    ("pythonic", "Well, [f(a=1)]", "Well, [f(a=1)]", []),
    ("pythonic", "[f(**{})]", "[f(**{})]", []),
]


# As models of these families write, with what they at times get wrong.
AS_MODELS_WRITE: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    (
        "hermes",
        '<tool_call>\n{"name": "f", "arguments": {"q": "caf\\u00e9 \\ud83d\\ude00", '
        '"n": {"a": [1, {"b": "</tool_call>"}]}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        "",
        [("f", '{"q": "caf\\u00e9 \\ud83d\\ude00", "n": {"a": [1, {"b": "</tool_call>"}]}}'), ("g", "{}")],
    ),
    (
        "hermes",
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n{"name": "g", "arguments": {}}\n</tool_call>\nDone.',
        "Done.",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    ("hermes", '<tool_call>{"name": "f"} {"no": 1} {x</tool_call> So.', "So.", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f"}, {"name": "g', "", [("f", "{}")]),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}}\n</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>\n\n  {"name": "f", "arguments": {}}  \n\n</tool_call>  ', "", [("f", "{}")]),
    ("hermes", '<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n', "", [("f", '{"a": 1}')]),
    ("hermes", "<tool_call>\n{'name': 'f'}\n</tool_call>", "<tool_call>\n{'name': 'f'}\n</tool_call>", []),
    ("llama3_json", '{"type": "function", "name": "f", "parameters": {"a": "1"}}', "", [("f", '{"a": "1"}')]),
    ("llama3_json", '{"type": "function", "function": "f", "parameters": {}}', "", [("f", "{}")]),
    ("llama3_json", '{"function": {"name": "f"}}', '{"function": {"name": "f"}}', []),
    (
        "llama3_json",
        '<|python_tag|>{"name": "f", "parameters": {"q": "x; y"}}; {"name": "g", "parameters": {"s": null}};',
        "",
        [("f", '{"q": "x; y"}'), ("g", '{"s": null}')],
    ),
    ("llama3_json", '{"name": "f", "parameters": {}}\n{"name": "g", "parameters": {}}', "", [("f", "{}"), ("g", "{}")]),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "é"}}, {"arguments": {}, "name": "g", "id": "abc123def"}]',
        "",
        [("f", '{"a": "é"}'), ("g", "{}")],
    ),
    (
        "mistral",
        'Let me see. [TOOL_CALLS]f[ARGS]{"a": {"b": "[TOOL_CALLS]"}}[TOOL_CALLS]g[ARGS]{}',
        "Let me see.",
        [("f", '{"a": {"b": "[TOOL_CALLS]"}}'), ("g", "{}")],
    ),
]


@pytest.mark.parametrize(("name", "text", "content", "expected"), [*EXAMPLES, *AS_MODELS_WRITE])
def test_examples_whole_and_cut_at_every_character(
    name: str, text: str, content: str, expected: list[tuple[str, str]]
) -> None:
    whole = read(name, [text])
    assert whole.content == content
    assert calls(whole) == expected
    assert [call.id for call in whole.calls] == [f"id{i}" for i in range(len(expected))]
    assert read(name, list(text)) == whole
    for cut in range(1, len(text)):
        assert read(name, [text[:cut], text[cut:]]) == whole


WORDS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<tool_call",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        '"',
        "'",
        "\\",
        ",",
        ";",
        ":",
        " ",
        "\n",
        "=",
        "name",
        '"name"',
        '"name": "f"',
        '"arguments": {"a": 1}',
        '"parameters": ',
        '{"name": "f", "arguments": {"x": "é"}}',
        '{"name": "g"}',
        "f(a=1)",
        "f(b='x')",
        "null",
        "3",
        "text",
    ]
)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_text_reads_the_same_however_it_is_cut(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(WORDS, max_size=14), "words"))
    whole = read(name, [text])
    assert read(name, list(text)) == whole
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6), "cuts"))
    assert read(name, [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]) == whole
    if not whole.calls and name in ("hermes", "json", "pythonic"):
        assert whole.content == text


ARGUMENTS = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "json"])
@settings(max_examples=60, deadline=None)
@given(
    given_calls=st.lists(st.tuples(st.sampled_from(["f", "get_x"]), ARGUMENTS), min_size=1, max_size=3),
    ascii=st.booleans(),
)
def test_what_is_written_is_read(name: str, given_calls: list[tuple[str, Any]], ascii: bool) -> None:
    def write(value: Any) -> str:
        return json.dumps(value, ensure_ascii=ascii)

    objects = [write({"name": tool, "arguments": arguments}) for tool, arguments in given_calls]
    text = {
        "hermes": "\n".join(f"<tool_call>\n{o}\n</tool_call>" for o in objects),
        "llama3_json": "; ".join(objects),
        "mistral": f"[TOOL_CALLS][{', '.join(objects)}]",
        "json": f"[{', '.join(objects)}]",
    }[name]
    for pieces in ([text], list(text)):
        found = read(name, pieces)
        assert found.content == ""
        assert [(call.name, json.loads(call.arguments)) for call in found.calls] == given_calls


def test_arguments_are_streamed_as_they_come() -> None:
    parser = FORMATS["hermes"].parser(lambda: "id")
    text = '<tool_call>{"name": "f", "arguments": {"city": "Oslo"}}</tool_call>'
    arguments = [call.arguments for piece in text for call in parser.feed(piece).calls]
    assert arguments == ["", *'{"city": "Oslo"}']


def test_flags_and_formats_are_the_same() -> None:
    assert set(FORMATS) == set(TOOL_CALL_PARSERS)


LLAMA = "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (FAMILIES["qwen 3"], "hermes"),
        (FAMILIES["hermes"], "hermes"),
        (LLAMA + """{{- '{"name": "' + call.name + '", ' }}{{- '"parameters": ' }}""", "llama3_json"),
        (LLAMA + """{{- "<|python_tag|>" + call.name + ".call(" }}""", "llama3_json"),
        ("""{{- "[TOOL_CALLS][" }}{{- call.function|tojson }}{{- "]" + eos_token }}""", "mistral"),
        ("Answer with [func_name1(params_name1=params_value1), func_name2()].", "pythonic"),
        (FAMILIES["phi 4"], "json"),
    ],
)
def test_templates_tell_the_format(template: str, name: str) -> None:
    assert format_of(template) == name


def test_ids() -> None:
    assert len({FORMATS["hermes"].new_id() for _ in range(50)}) == 50
    assert all(len(i := FORMATS["mistral"].new_id()) == 9 and i.isalnum() for _ in range(50))
