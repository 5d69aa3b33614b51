"""GrammarCompiler: StructuredOutputsParams become matchers over a model's vocabulary, by llguidance. The API compiles
to find out whether a form is understood; the engine compiles to enforce it. Token bytes are the tokenizer's own, so
what a mask allows is exactly what the text will say.

Constraints come from clients: their size is bounded before (core/structured.py), what compiling and each step may
cost is bounded here, and deep recursion inside the library happens on a thread with a stack that is deep enough.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol
from weakref import WeakValueDictionary

from headrace.core.errors import RequestError
from headrace.core.structured import CallsForm, StructuredOutputsParams

_STACK_BYTES = 512 * 2**20
"""Address space, of which only what is used costs memory. Chains of references recurse once a link."""
WARM_AFTER_S = 2.0
"""Of having nothing to do, so that no first request finds a processor busy with what it may not need."""
_SMALL_VOCABULARY = 65_536
"""Opening a larger one takes seconds and hundreds of MB."""
_CACHED = 64
"""Matchers that are kept though nobody holds them: those asked for last."""
_MOST_ITEMS = 5_000
"""Ways to go on at one place; each costs some 6 us when it is come to, and an optional property makes four."""
_MOST_OPTIONAL = 1_200
_MOST_GBNF_RULES = 500
"""Translating takes time that grows with the square of their number."""
_OPTIONS = '%llguidance { "no_forcing": true }\n'
"""Masks allow every way to write what comes next, not only the tokenizer's own: a model chooses as it was trained."""
_WHITESPACE = r"( |\n {0,32})"
"""At most one space, or a line break with its indent: what models write, without a flood of it."""


class Vocabulary(Protocol):
    """What is asked of a tokenizer (models/tokenizer.py)."""

    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]

    def token_bytes(self, token: int, /) -> bytes: ...


class GrammarCompiler:
    """vocab_size: width of a mask; ids that the tokenizer does not have are never allowed. open_vocabulary is called
    once, when the first constraint comes: not every process ever sees one."""

    def __init__(self, open_vocabulary: Callable[[], Vocabulary], vocab_size: int, *, threads: int = 1) -> None:
        self._open_vocabulary = open_vocabulary
        self._vocab_size = vocab_size
        self._threads = ThreadPoolExecutor(threads, "headrace-grammar")
        self._tokenizer: Any = None
        self._special: dict[str, int] = {}
        self._opening, self._asking = threading.Lock(), threading.Lock()
        self._compiled: WeakValueDictionary[StructuredOutputsParams, Future[Any]] = WeakValueDictionary()
        self._latest: OrderedDict[StructuredOutputsParams, Future[Any]] = OrderedDict()

    def warm(self) -> None:
        """Open the vocabulary now, so that the first form does not wait for it; a large one only for those who ask."""
        if self._vocab_size <= _SMALL_VOCABULARY:
            self._submit(self._open)

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """On a thread with a deep stack."""
        before = threading.stack_size(_STACK_BYTES)
        try:
            return self._threads.submit(work, *arguments)
        finally:
            threading.stack_size(before)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def compile(self, wanted: StructuredOutputsParams) -> Future[Any]:
        """A matcher at its start (llguidance.LLMatcher), shared: copy it before use. The future raises RequestError
        if the constraint is not understood or nothing can satisfy it. It is compiled once as long as anyone holds
        it."""
        with self._asking:
            found = self._compiled.get(wanted)
            if found is None or found.cancelled():
                found = self._compiled[wanted] = self._submit(self._compile, wanted)
            self._latest[wanted] = found
            self._latest.move_to_end(wanted)
            if len(self._latest) > _CACHED:
                self._latest.popitem(last=False)
            return found

    def _source(self, llguidance: Any, wanted: StructuredOutputsParams) -> str:
        """What the library takes: one grammar, or several that the first one names."""
        forms = {}
        if wanted.calls is not None:
            forms["calls"] = _calls(wanted.calls, wanted, self._special)
        if wanted.kind != "calls":
            forms["form"] = _lark(llguidance, wanted)
        if len(forms) == 1 and wanted.reasoning is None:
            return str(llguidance.LLMatcher.grammar_from_lark(_OPTIONS + next(iter(forms.values()))))
        rules = ["answer: " + " | ".join(f"@{name}" for name in forms)]
        if wanted.reasoning is None:
            rules.append("start: answer")
        else:
            rules += self._reasoning(llguidance, *wanted.reasoning)
        parts = [{"name": name, "lark_grammar": _OPTIONS + lark} for name, lark in forms.items()]
        return json.dumps({"grammars": [{"lark_grammar": _OPTIONS + "\n".join(rules)}, *parts]})

    def _reasoning(self, llguidance: Any, begin: str, end: str) -> list[str]:
        """Rules for free text up to the end tag, before the answer."""
        last = _text(end, self._special)
        if last.startswith("<"):
            free = ["/(?s:.)*/ " + last]
        else:
            free = [f"tagged\ntagged[lazy]: /(?s:.*){llguidance.regex_to_lark(re.escape(end))}/"]
        opened = f"({_text(begin, self._special)} free)?" if begin else "free"
        return [f"start: {opened} gap answer", "free: " + free[0], "gap: /\\n{0,2}/"]

    def _open(self) -> Any:
        """The library, with the vocabulary opened."""
        # It is loaded here, by those processes that need it: it costs a third of a second.
        import llguidance  # noqa: PLC0415

        with self._opening:
            if self._tokenizer is None:
                words = _Words(self._open_vocabulary(), self._vocab_size)
                self._tokenizer, self._special = _tokenizer(llguidance, words), words.special_by_name
        return llguidance

    def _compile(self, wanted: StructuredOutputsParams) -> Any:
        llguidance = self._open()
        limits = llguidance.LLParserLimits(
            initial_lexer_fuel=100_000,
            max_grammar_size=100_000,
            max_lexer_states=20_000,
            max_items_in_row=_MOST_ITEMS,
            verbose_errors=False,
        )
        try:
            source = self._source(llguidance, wanted)
        except ValueError as error:
            raise _not_understood(wanted, str(error)) from None
        matcher = llguidance.LLMatcher(self._tokenizer, source, log_level=0, limits=limits)
        if not matcher.is_error():
            trial = matcher.deep_copy()
            allowed = int.from_bytes(trial.compute_bitmask(), "little")
            if not trial.is_error() and allowed:
                # What may come is worked out at the first token: then it shows if that is too much.
                trial.try_consume_tokens([(allowed & -allowed).bit_length() - 1])
                if not trial.is_error():
                    return matcher
            matcher = trial
        reason = brief(matcher.get_error(), lines_before=1 if wanted.grammar else None)
        raise _not_understood(wanted, reason)


def brief(error: str, *, lines_before: int | None = None) -> str:
    """The library's error without its own view of the source. lines_before: how many lines it saw before the
    client's own, None if it saw none of the client's lines."""
    lines = [line.strip() for line in error.splitlines()]
    first, where = lines[0] if lines else "", ""
    if not first or "NoExtension" in first:
        return "no text satisfies it"
    if items := re.match(r"(?:Parser Error: )?Current row has (\d+) items", first):
        return f"it is too large: at one place there are {items[1]} ways to go on, {_MOST_ITEMS} at most are followed"
    if at := re.match(r"(?:at )?(\d+)\(\d+\): ", first):
        first = first[at.end() :]
        where = "" if lines_before is None else f"line {int(at[1]) - lines_before}: "
    first = first.removeprefix("failed to compile JSON schema: ")
    detail = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), first)
    return where + detail[:300]


def _not_understood(wanted: StructuredOutputsParams, reason: str) -> RequestError:
    field = "tools" if wanted.kind == "calls" else f"structured_outputs.{wanted.kind}"
    return RequestError(f"{field} is not understood: {reason}", param=field.partition(".")[0])


def _lark(llguidance: Any, wanted: StructuredOutputsParams) -> str:
    """The constraint in the library's own language. Raises ValueError."""
    if wanted.json_object:
        return "start: %json " + _schema({"type": "object"}, wanted, lenient=False)
    if wanted.json is not None:
        assert isinstance(wanted.json, str), "kept as text"
        return "start: %json " + _schema(json.loads(wanted.json), wanted, lenient=wanted.lenient)
    if wanted.regex is not None:
        return f"start: /{llguidance.regex_to_lark(wanted.regex)}/"
    if wanted.choice is not None:
        return f"start: {' | '.join(json.dumps(c, ensure_ascii=False) for c in wanted.choice)}"
    assert wanted.grammar is not None
    return _any_to_lark(wanted.grammar)


def _calls(form: CallsForm, wanted: StructuredOutputsParams, special: dict[str, int]) -> str:
    rules = []
    for number, way in enumerate(form.ways):
        names = []
        for place, part in enumerate(way):
            if isinstance(part, str):
                names.append(_text(part, special))
            else:
                names.append(f"s{number}_{place}")
                rules.append(f"{names[-1]}: %json " + _schema(json.loads(part.schema), wanted, lenient=part.lenient))
        rules.append(f"c{number}: {' '.join(names)}")
    more = "" if form.between is None else f"({_text(form.between, special)} call)*"
    start = f"start: {_text(form.before, special)} call {more} {_text(form.after, special)}"
    return "\n".join([start, "call: " + " | ".join(f"c{n}" for n in range(len(form.ways))), *rules])


def _text(text: str, special: dict[str, int]) -> str:
    """A text as a grammar says it, with special tokens as such."""
    found = [name for name in special if name in text]
    pieces = (
        re.split("(" + "|".join(map(re.escape, sorted(found, key=len, reverse=True))) + ")", text) if found else [text]
    )
    said = (f"<[{special[p]}]>" if p in special else json.dumps(p, ensure_ascii=False) for p in pieces if p)
    return " ".join(said)


def _schema(schema: dict[str, Any], wanted: StructuredOutputsParams, *, lenient: bool) -> str:
    """A schema with how its JSON is written. Raises ValueError."""
    _check_size(schema)
    spacing = {"whitespace_flexible": False} if wanted.disable_any_whitespace else {"whitespace_pattern": _WHITESPACE}
    return json.dumps({**schema, "x-guidance": {**spacing, "lenient": lenient}}, ensure_ascii=False)


def _check_size(schema: Any) -> None:
    """The library would find out too, but holding up all threads meanwhile."""
    inside = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for value in inside:
        _check_size(value)
    if isinstance(schema, dict) and isinstance(properties := schema.get("properties"), dict):
        required = schema.get("required")
        optional = len(properties) - (len(required) if isinstance(required, list) else 0)
        if optional > _MOST_OPTIONAL:
            raise ValueError(
                f"an object has {optional} properties that are not required, and only {_MOST_OPTIONAL} are followed"
            )


def _any_to_lark(grammar: str) -> str:
    """Lark as it is, GBNF translated. Raises ValueError."""
    from llguidance.gbnf_to_lark import any_to_lark, is_lark_syntax  # noqa: PLC0415  as in _compile

    if is_lark_syntax(grammar):
        return grammar
    if (rules := grammar.count("::=")) > _MOST_GBNF_RULES:
        raise ValueError(f"GBNF may have at most {_MOST_GBNF_RULES} rules, this one has {rules}: write it as Lark")
    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # the library raises nothing more exact
        raise ValueError(f"it has no start rule as Lark has, and as GBNF: {error}") from error


class _Words:
    """A vocabulary in the shape that llguidance.LLTokenizer reads."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        if not vocabulary.eos_ids:
            raise RequestError(
                "this model has no token that ends an answer, so no output can be held to a form",
                param="structured_outputs",
            )
        known = min(vocabulary.vocab_size, vocab_size)
        self.tokens = [vocabulary.token_bytes(token) for token in range(known)] + [b""] * (vocab_size - known)
        self.eos_token_ids = list(vocabulary.eos_ids)
        self.eos_token_id = self.eos_token_ids[0]
        self.bos_token_id = vocabulary.bos_id
        self.special_token_ids = sorted({*vocabulary.special_ids, *vocabulary.eos_ids} & set(range(known)))
        self.special_by_name = {
            self.tokens[token].decode("utf-8", "replace"): token for token in self.special_token_ids
        }
        self._ids = {word: token for token, word in enumerate(self.tokens) if len(word) == 1}

    def __call__(self, text: bytes | str) -> list[int]:
        """Some way to write a text, for what a grammar forces; none where the vocabulary lacks a byte."""
        data = text.encode() if isinstance(text, str) else text
        return [self._ids[data[i : i + 1]] for i in range(len(data))]


def _tokenizer(llguidance: Any, words: _Words) -> Any:
    return llguidance.LLTokenizer(words, eos_token=words.eos_token_ids, slices=llguidance.LLTokenizer.json_slices())
