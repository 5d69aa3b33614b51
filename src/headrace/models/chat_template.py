"""ChatTemplate: a conversation becomes token ids, by the Jinja template that comes with the model. The template
runs in a sandbox, on data only, with a bound on what it may write.

What the template writes as special tokens is special; what stands inside a message is text, even where it looks
like one. Where a message holds such text, its first character is replaced by a private-use one before rendering and
put back when the result is tokenized, so ordinary text and the seams around it are tokenized as by the model's authors.
"""

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
from jinja2.meta import find_undeclared_variables

from headrace.core.errors import ModelError, RequestError
from headrace.models.template_sandbox import Exhausted, allowance, environment
from headrace.models.tokenizer import Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool")
_PRIVATE_USE = range(0xE000, 0xF900)
_LEAST_LIMIT = 1 << 20
_GROWTH = 8
_STEPS, _STEPS_A_STRING = 400_000, 2_000
_WORK = 16
_SECONDS = 20.0
_OVER_PARTS = re.compile(r"for\s+\w+\s+in\s+\w+(?:\.content|\[\s*['\"]content['\"]\s*\])")

Message = Mapping[str, Any]
Clock = Callable[[], datetime.datetime]


class ChatTemplate:
    """One template and the special tokens it may name. clock: what strftime_now shows. variables: names that the
    template reads, so that whoever sets another knows it would change nothing; takes: those that a request may set.
    source: the template's text, that for conversations with tools if there is one."""

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        source_with_tools: str | None = None,
        clock: Clock = datetime.datetime.now,
    ) -> None:
        """special_tokens: bos_token, eos_token ... by name. source_with_tools: used in place of source for
        conversations with tools. Raises ModelError if the template does not parse."""
        self._tokenizer = tokenizer
        self.source = source_with_tools or source
        self._special_tokens = dict(special_tokens)
        sandbox = environment(clock, _raise_exception)
        self._wants_parts = _OVER_PARTS.search(source) is not None
        try:
            self._template = sandbox.from_string(source)
            sources = (source, source_with_tools or "")
            self.variables = frozenset().union(*(find_undeclared_variables(sandbox.parse(s)) for s in sources))
            self.takes = sorted(self.variables - {"messages", *special_tokens, *sandbox.globals})
            self._with_tools = self._template if source_with_tools is None else sandbox.from_string(source_with_tools)
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError, KeyError) as error:
            raise ModelError(f"the model's chat template does not parse: {error}") from error

    def encode(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation. continue_final_message leaves the last message open, to be continued. more:
        values of the template's other variables; those that it is given anyway are not replaced.
        Raises RequestError naming the message at fault."""
        checked = _check_messages(messages, self._wants_parts)
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        guards = self._guards([checked, tools, documents, more])
        if guards:
            checked, tools, documents, more = (
                self._guarded(value, guards) for value in (checked, tools, documents, more)
            )
        text = self._render(checked, add_generation_prompt, tools, documents, more)
        if continue_final_message:
            text = _cut_after(text, checked[-1])
        unguard = {ord(guard): char for char, guard in guards.items()}
        return self._tokenizer.encode_rendered(text, unguard, param="messages")

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as the template writes it. Raises RequestError naming the message at fault."""
        return self._render(_check_messages(messages, self._wants_parts), add_generation_prompt, tools, documents)

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        strings = list(_strings([messages, tools, documents, more]))
        limit = max(_LEAST_LIMIT, _GROWTH * sum(map(len, strings)))
        pieces, size = [], 0
        variables: dict[str, Any] = {
            **(more or {}),
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        variables |= {"messages": messages, **self._special_tokens}
        steps = _STEPS + _STEPS_A_STRING * len(strings)
        try:
            with allowance(steps, _WORK * limit, _SECONDS):
                for piece in (self._with_tools if tools else self._template).generate(variables):
                    pieces.append(piece)
                    size += len(piece)
                    if size > limit:
                        raise RequestError(
                            f"the model's chat template wrote more than {limit} characters for these messages",
                            param="messages",
                        )
        except _TEMPLATE_FAULTS as error:
            raise RequestError(
                f"the model's chat template cannot render these messages: {error}", param="messages"
            ) from error
        return "".join(pieces)

    def _guards(self, value: Any) -> dict[str, str]:
        """A private-use character that no string in value has for every first character of a special token; empty
        if no string holds such a token's text, or ends in the beginning of one."""
        strings, tokens = list(_strings(value)), self._tokenizer.special_texts
        if not any(self._tokenizer.looks_special(s) or _begun(s, tokens) for s in strings):
            return {}
        free = (c for c in map(chr, _PRIVATE_USE) if not any(c in s for s in strings))
        return {char: next(free) for char in sorted({token[0] for token in tokens})}

    def _guarded(self, value: Any, guards: dict[str, str]) -> Any:
        """A copy of value in which no string holds, or ends in the beginning of, a special token's text."""
        if isinstance(value, str):
            tokens = self._tokenizer.special_texts
            for token in tokens:
                value = value.replace(token, guards[token[0]] + token[1:])
            while begun := _begun(value, tokens):
                value = value[:-begun] + guards[value[-begun]] + value[len(value) - begun + 1 :]
            return value
        if isinstance(value, Mapping):
            return {self._guarded(key, guards): self._guarded(item, guards) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._guarded(item, guards) for item in value]
        return value


class _Refused(Exception):
    """The template called raise_exception."""


_TEMPLATE_FAULTS = (
    _Refused,
    Exhausted,
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _check_messages(messages: Sequence[Message], wants_parts: bool) -> list[dict[str, Any]]:
    """Copies of the messages, text parts joined by line breaks unless the template goes through them itself. Raises
    RequestError naming what is not allowed."""
    if not messages:
        raise RequestError("messages must hold at least one message", param="messages")
    checked = []
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise RequestError(
                f"messages[{i}].role must be one of {', '.join(ROLES)}, got {role!r}", param=f"messages[{i}].role"
            )
        if isinstance(content, list | tuple):
            texts = [_part_text(part, f"messages[{i}].content[{j}]") for j, part in enumerate(content)]
            content = [{"type": "text", "text": text} for text in texts] if wants_parts else "\n".join(texts)
        elif content is not None and not isinstance(content, str):
            raise RequestError(
                f"messages[{i}].content must be text or a list of text parts, got {type(content).__name__}",
                param=f"messages[{i}].content",
            )
        checked.append({**message, "content": content})
    return checked


def _part_text(part: Any, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise RequestError(f'{where} must be {{"type": "text", "text": ...}}, got {part!r:.100}', param=where)
    return text


def _strings(value: Any) -> Iterator[str]:
    """Every string inside value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _begun(text: str, tokens: Sequence[str]) -> int:
    """Length of the longest end of text that begins one of these tokens."""
    longest = 0
    for token in tokens:
        for length in range(min(len(token) - 1, len(text)), longest, -1):
            if text.endswith(token[:length]):
                longest = length
                break
    return longest


def _cut_after(text: str, message: Message) -> str:
    """The rendered text up to the end of its last message's content."""
    content = message.get("content") or ""
    content = content[-1]["text"] if isinstance(content, list) else content
    begin = text.rfind(content.strip())
    if begin < 0:
        raise RequestError(
            "continue_final_message: the model's chat template changes the last message, so it cannot be continued",
            param="continue_final_message",
        )
    whole = content.lstrip()
    kept = whole if text.startswith(whole, begin) else content.strip()
    return text[: begin + len(kept)]
