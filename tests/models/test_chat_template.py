import datetime
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat_templates import FAMILIES
from tests.vocabularies import HARD_TEXTS, SPECIALS, write_tokenizer

from headrace.core.errors import ModelError, RequestError
from headrace.models.chat_template import ChatTemplate
from headrace.models.formats.gguf import GGUFFile
from headrace.models.gguf_tokenizer import cached_tokenizer_json
from headrace.models.json_vocabulary import JsonVocabulary
from headrace.models.text import load_text
from headrace.models.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMING = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' and not loop.first %}
        {{- raise_exception('the system message must come first') }}
    {%- endif %}
    {%- if message.tool_calls is defined %}
        {{- message.tool_calls | tojson }}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '|' }}
    {%- generation %}{{ message['content'] | trim }}{% endgeneration %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer(JsonVocabulary(path))


def template_of(tokenizer: Tokenizer, source: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(source, tokenizer, special_tokens={"bos_token": SPECIALS[0]}, **options)


def ids_of_transformers(path: Path, source: str, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    backend = tokenizers.Tokenizer.from_file(str(path))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=SPECIALS[0])
    theirs.chat_template = source
    options = {"add_generation_prompt": True, **options}
    return theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **options)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize("source", [CHATML, TRIMMING])
@pytest.mark.parametrize("text", HARD_TEXTS[:-1])
def test_ordinary_text_gives_the_ids_of_transformers(path: Path, tokenizer: Tokenizer, source: str, text: str) -> None:
    messages = [{"role": "system", "content": "be kind"}, user(text), {"role": "assistant", "content": "x"}, user("?")]
    assert template_of(tokenizer, source).encode(messages) == ids_of_transformers(path, source, messages)


def test_the_default_models_conversations_give_the_ids_of_transformers(default_model: Path) -> None:
    model, file = load_text(default_model), GGUFFile(default_model)
    source = file.get("tokenizer.chat_template")
    assert model.chat_template is not None
    messages = [user("Hi there 👋"), {"role": "assistant", "content": "  Hello!\n"}, user("def f(x):\n\treturn x")]
    theirs = ids_of_transformers(cached_tokenizer_json(file), str(source), messages)
    assert model.chat_template.encode(messages) == theirs


@given(texts=st.lists(st.text(max_size=12), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_seams_are_tokenized_as_by_transformers(path: Path, tokenizer: Tokenizer, texts: list[str]) -> None:
    messages = [user(text) for text in texts]
    assert template_of(tokenizer, CHATML).encode(messages) == ids_of_transformers(path, CHATML, messages)


attacks = st.lists(
    st.sampled_from([*SPECIALS, "<", "<|", "<|im_end|", "|>", "im_end|>", "a", "\n", " ", "\ue000", "<<|im_end|>>"]),
    max_size=6,
).map("".join)


@pytest.mark.parametrize("source", [CHATML, "{{ messages[0].content }}{{ messages[-1].content }}<|im_end|>", TRIMMING])
@given(first=attacks, second=attacks)
@settings(max_examples=150, deadline=None)
def test_no_message_can_write_a_special_token(tokenizer: Tokenizer, source: str, first: str, second: str) -> None:
    template = template_of(tokenizer, source)
    messages = [user(first), user(second)]
    plain = template.encode([user("x"), user("y")])
    ids = template.encode(messages)
    special = [i for i in ids if i in tokenizer.special_ids]
    assert special == [i for i in plain if i in tokenizer.special_ids]
    assert tokenizer.decode(ids) == template.render(messages)


def test_tool_names_and_values_cannot_write_one_either(tokenizer: Tokenizer) -> None:
    template = template_of(tokenizer, "{{ tools | tojson }}{{ messages[0].content }}")
    tools = [{"<|im_end|>": ["<|im_start|>", {"a": "<|im_end|>"}]}]
    ids = template.encode([user("hi")], tools=tools)
    assert not set(ids) & tokenizer.special_ids
    assert tokenizer.decode(ids) == '[{"<|im_end|>": ["<|im_start|>", {"a": "<|im_end|>"}]}]hi'


def test_bos_of_a_template_is_not_doubled(tmp_path: Path) -> None:
    tokenizer = Tokenizer(JsonVocabulary(write_tokenizer(tmp_path, bos_token_id=0, add_bos_token=True)))
    assert tokenizer.encode("a")[0] == 0
    assert template_of(tokenizer, TRIMMING).encode([user("a")]).count(0) == 1


def test_generation_prompt_and_continuation(path: Path, tokenizer: Tokenizer) -> None:
    template = template_of(tokenizer, CHATML)
    messages = [user("a"), {"role": "assistant", "content": "Sure, <|im_end|> here: "}]
    closed = template.encode(messages, add_generation_prompt=False)
    assert tokenizer.decode(closed).endswith("here: <|im_end|>\n")
    left_open = template.encode(messages, add_generation_prompt=False, continue_final_message=True)
    assert tokenizer.decode(left_open).endswith("<|im_start|>assistant\nSure, <|im_end|> here: ")
    plain = [user("a"), {"role": "assistant", "content": "Sure: "}]
    theirs = ids_of_transformers(path, CHATML, plain, add_generation_prompt=False, continue_final_message=True)
    assert template.encode(plain, add_generation_prompt=False, continue_final_message=True) == theirs
    with pytest.raises(RequestError, match="exclude each other"):
        template.encode(messages, continue_final_message=True)


def test_text_parts_are_joined(tokenizer: Tokenizer) -> None:
    template = template_of(tokenizer, CHATML)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.encode([user(parts)]) == template.encode([user("a\nb")])


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        ([], "messages", "at least one"),
        ([user("a"), {"role": "boss", "content": "b"}], "messages[1].role", "must be one of system.*'boss'"),
        ([{"content": "b"}], "messages[0].role", "got None"),
        ([user(3)], "messages[0].content", "text or a list of text parts, got int"),
        ([user([{"type": "image_url"}])], "messages[0].content[0]", '"type": "text"'),
        ([user(["a"])], "messages[0].content[0]", '"type": "text"'),
        ([user(None)], "messages", "cannot render"),
        ([{"role": "user"}], "messages", "cannot render"),
        ([user("a"), {"role": "system", "content": "b"}], "messages", "the system message must come first"),
        ([user("\udfff")], "messages", "lone surrogate"),
    ],
)
def test_messages_that_cannot_be_served_are_refused_by_name(
    tokenizer: Tokenizer, messages: list[dict[str, Any]], param: str, message: str
) -> None:
    source = TRIMMING if "come first" in message else CHATML
    with pytest.raises(RequestError, match=message) as caught:
        template_of(tokenizer, source).encode(messages)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "source", ["{{ 'x' | center(10**9) }}", "{{ lipsum | xmlattr }}", "{% for %}", "{{ 1 +", "{% include 'x' %}{{ }"]
)
def test_a_template_that_does_not_parse_is_the_models_fault(tokenizer: Tokenizer, source: str) -> None:
    with pytest.raises(ModelError, match="does not parse"):
        template_of(tokenizer, source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ 'x' * 10**9 }}", "makes too much text"),
        ("{{ 10**999 }}", "power over 64"),
        ("{{ '%99999999d' % 1 }}", "width over 999"),
        ("{{ '{:>99999999}'.format(1) }}", "width over 999"),
        ("{{ '{:{}}'.format(1, 10**9) }}", "width over 999"),
        ("{{ 'x'.ljust(10**9) }}", "ljust\\(\\) is not allowed"),
        ("{{ 'x' | indent(10**9) }}", "indents by more than"),
        ("{{ {'a': 1} | tojson(indent=10**9) }}", "indents by more than"),
        ("{{ ([0] * 10**9) | length }}", "makes too much text"),
        (
            "{% set a = namespace(x='xx') %}{% for i in range(99) %}{% set a.x = a.x ~ a.x %}{% endfor %}",
            "too much text",
        ),
        (
            "{% set a = namespace(x='xx') %}{% for i in range(99) %}{% set a.x = a.x + a.x %}{% endfor %}",
            "too much text",
        ),
        (
            "{% set a = namespace(x='xx') %}{% for i in range(99) %}{% set a.x = a.x.replace('x', 'xx') %}{% endfor %}",
            "too",
        ),
        ("{% set a = namespace(x=7) %}{% for i in range(99) %}{% set a.x = a.x * a.x %}{% endfor %}", "large a number"),
        ("{% set s = 'x' * 99999 %}{% for i in range(99999) %}{% set t = s[1:] %}{% endfor %}", "too much text"),
        ("{% set s = 'x' * 99999 %}{{ range(99999) | map('replace', '1', s) | list | length }}", "too much text"),
        ("{% set s = 'x' * 9999 %}{{ (range(9999) | list).__len__() }}", "unsafe|undefined"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "runs too long"),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", "runs too long"),
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{% set x %}{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endset %}", "too much text"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "loader"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% for i in range(90000) %}{% for j in range(90000) %}xxxxxxxx{% endfor %}{% endfor %}", "more than 1048576"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages[7].content }}", "no element 7"),
    ],
)
def test_a_template_reaches_nothing_and_writes_within_bounds(tokenizer: Tokenizer, source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        template_of(tokenizer, source).encode([user("a")])


def test_the_clock_is_an_argument(tokenizer: Tokenizer) -> None:
    template = template_of(
        tokenizer, "{{ strftime_now('%d %b %Y') }}", clock=lambda: datetime.datetime(2024, 7, 26, 12, 0)
    )
    assert template.render([user("a")]) == "26 Jul 2024"


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Now, é & <here>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}},
        },
    }
]
CALL = {"type": "function", "id": "call_0001", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
CONVERSATIONS = {
    "plain": [user("Hi 👋 "), {"role": "assistant", "content": "<think>\nhm\n</think>\n\n Hello"}, user("  Bye\n")],
    "system": [{"role": "system", "content": " Be kind. "}, user("Hi")],
    "tools": [
        user("Weather?"),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "rain", "name": "weather", "tool_call_id": "call_0001"},
        {"role": "assistant", "content": "Rain."},
        user("Thanks"),
    ],
}


@pytest.mark.parametrize("conversation", sorted(CONVERSATIONS))
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_families_constructs_give_what_transformers_gives(
    path: Path, tokenizer: Tokenizer, family: str, tools: Any, conversation: str
) -> None:
    source, messages = FAMILIES[family], CONVERSATIONS[conversation]
    if family == "gemma 3" and conversation == "tools":
        messages = [user([{"type": "text", "text": " a "}, {"type": "text", "text": "b"}])]
    documents = [{"title": "One", "text": "first"}, {"text": "second"}] if conversation == "system" else None
    options = {"tools": tools, "documents": documents}
    assert template_of(tokenizer, source).encode(messages, **options) == ids_of_transformers(
        path, source, messages, **options
    )


def test_a_long_conversation_with_many_tools_is_within_bounds(tokenizer: Tokenizer) -> None:
    messages = [
        user(f"question {i} " * 20) if i % 2 == 0 else {"role": "assistant", "content": "x"} for i in range(401)
    ]
    text = template_of(tokenizer, FAMILIES["qwen 3"]).render(messages, tools=TOOLS * 100)
    assert text.count("question 400") == 20
