"""The sandbox that chat templates run in: Jinja as transformers sets it up, without the file system, Python's
attributes, or filters and methods that no chat template needs and that build text of any width from a number.

A template is a stranger's program, so what it may do for one conversation is counted: turns of loops, calls, and
characters and list items made, inside one expression too. Over the allowance it is stopped with Exhausted.
"""

import contextlib
import contextvars
import datetime
import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

# fmt: off
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "format",
    "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min",
    "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "sort", "string",
    "striptags", "sum", "title", "trim", "unique", "upper", "urlencode", "wordcount",
)
# fmt: on
_REFUSED_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "to_bytes"})
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)|\{[^}]*:[^}]*(?:\d{4}|\{)")
_MAX_INT_BITS = 4096
_MAX_INDENT = 64
_SIZED = (str, list, tuple, dict)


class Exhausted(Exception):
    """The template did more than its conversation allows."""


class _Allowance:
    """steps and characters that are left; `until`: the clock's last word, for what neither counts."""

    def __init__(self, steps: int, characters: int, seconds: float) -> None:
        self.steps = steps
        self.characters = characters
        self.until = time.monotonic() + seconds

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0 or time.monotonic() > self.until:
            raise Exhausted("it runs too long")

    def make(self, size: int) -> None:
        self.characters -= size
        if self.characters < 0:
            raise Exhausted("it makes too much text")


_allowance: contextvars.ContextVar[_Allowance | None] = contextvars.ContextVar("allowance", default=None)


@contextlib.contextmanager
def allowance(steps: int, characters: int, seconds: float) -> Iterator[None]:
    """What templates rendered inside may do, all together."""
    token = _allowance.set(_Allowance(steps, characters, seconds))
    try:
        yield
    finally:
        _allowance.reset(token)


def environment(clock: Callable[[], datetime.datetime], raise_exception: Callable[[str], None]) -> jinja2.Environment:
    """clock: what strftime_now shows. raise_exception: what a template calls to refuse a conversation."""
    found = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        finalize=_finalized,
        extensions=[jinja2.ext.loopcontrols, _Generation],
    )
    filters = {name: _counted_filter(found.filters[name]) for name in _FILTERS}
    found.filters = filters | {"tojson": _counted_filter(_to_json)}
    found.globals = {name: value for name, value in found.globals.items() if name != "lipsum"}
    found.globals["raise_exception"] = raise_exception
    found.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
    return found


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(jinja2.nodes.For):
            loop.iter = _call("turns", loop.iter)
        _Rewrite().visit(template)
        return template

    def turns(self, values: Iterable[Any]) -> Any:
        """The values of a loop, counted as they are taken. Sized ones stay what they are: loop.length needs it."""
        allowed = _allowance.get()
        if allowed is None or not isinstance(values, Iterable):
            return values
        return _Turns(values, allowed)

    def joined(self, *values: Any) -> str:
        """a ~ b"""
        text = "".join(map(str, values))
        _make(len(text))
        return text

    def made(self, value: Any) -> Any:
        return made(value)

    def call(self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call of the template: functions, macros and methods."""
        _step()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if owner is self:
            return __obj(*args)
        _check_method(owner, getattr(method, "__name__", ""), args, kwargs)
        return made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        _step()
        if operator == "*":
            _make(_product_size(left, right))
        elif operator == "**" and not (isinstance(left, int | float) and abs(right) <= 64):
            raise Exhausted("it raises to a power over 64")
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return made(super().call_binop(context, operator, left, right))


class _Turns:
    """An iterable that counts; len() is that of what it counts, where it has one."""

    def __init__(self, values: Iterable[Any], allowed: _Allowance) -> None:
        self._values = values
        self._allowed = allowed

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._allowed.step()
            yield value

    def __len__(self) -> int:
        return len(self._values)  # type: ignore[arg-type]


class _Rewrite(jinja2.visitor.NodeTransformer):
    """Sends what Jinja would do by itself (a ~ b, a[b:c]) through the environment, so that it is counted."""

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _call("joined", *node.nodes)

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _call("made", node) if isinstance(node.arg, jinja2.nodes.Slice) else node


def _call(name: str, *values: jinja2.nodes.Node) -> jinja2.nodes.Call:
    return jinja2.nodes.Call(jinja2.nodes.EnvironmentAttribute(name), list(values), [], None, None)


class _Generation(jinja2.ext.Extension):
    """{% generation %}: marks what the model itself wrote, for training; here its body as it stands."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own contract)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def made(value: Any) -> Any:
    """The value, its size counted."""
    if isinstance(value, _SIZED):
        _make(len(value))
    elif isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
        raise Exhausted("it makes too large a number")
    return value


def _step() -> None:
    allowed = _allowance.get()
    if allowed is not None:
        allowed.step()


def _make(size: int) -> None:
    allowed = _allowance.get()
    if allowed is not None:
        allowed.make(size)


@jinja2.pass_context
def _finalized(context: jinja2.runtime.Context, value: Any) -> Any:
    """Every value that is written, also into a block that is kept. pass_context keeps it from running at parse."""
    _step()
    return made(value)


def _counted_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # which carries over what Jinja passes besides the value
    def counted(*args: Any, **kwargs: Any) -> Any:
        _step()
        name = getattr(function, "__name__", "")
        values = args if not hasattr(function, "jinja_pass_arg") else args[1:]
        if name == "do_replace":
            _check_method(str(values[0]), "replace", values[1:], kwargs)
        elif name == "do_format":
            _check_format(str(values[0]))
        elif name in ("do_indent", "_to_json"):
            _check_indent([*values[1:], *kwargs.values()])
        return made(function(*args, **kwargs))

    return counted


def _check_method(owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a method of a value makes something: how large may it be?"""
    if not isinstance(owner, str | bytes | int):
        return
    if name in _REFUSED_METHODS:
        raise Exhausted(f"{name}() is not allowed")
    if name in ("format", "format_map"):
        _check_format(str(owner))
    elif name == "replace" and len(args) >= 2 and isinstance(owner, str):
        old, new = str(args[0]), str(args[1])
        _make(max(owner.count(old) * (len(new) - len(old)), 0))
    elif name == "join" and isinstance(owner, str) and args and isinstance(args[0], list | tuple | str):
        _make(len(owner) * len(args[0]) + sum(len(item) for item in args[0] if isinstance(item, str)))


def _check_format(pattern: str) -> None:
    if _WIDE_FORMAT.search(pattern):
        raise Exhausted("it formats to a width over 999")


def _check_indent(values: list[Any]) -> None:
    if any((isinstance(v, int) and v > _MAX_INDENT) or (isinstance(v, str) and len(v) > _MAX_INDENT) for v in values):
        raise Exhausted(f"it indents by more than {_MAX_INDENT}")


def _product_size(left: Any, right: Any) -> int:
    for sized, count in ((left, right), (right, left)):
        if isinstance(sized, str | bytes | list | tuple) and isinstance(count, int):
            return len(sized) * max(count, 0)
    return 0


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers defines it: nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
