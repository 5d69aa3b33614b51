"""The tools of a request: what the client declares, what the template is shown of it, and whether the answer may or
must call one.
"""

import re
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import RequestError, shown
from headrace.core.structured import CallsForm, schema_text
from headrace.server.protocol import ChatBody
from headrace.server.tools.formats import FORMATS, Tool, ToolFormat

MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_FUNCTION = ("name", "description", "parameters", "strict")
_ANYTHING: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """shown: tools for the template. calls: the form of calls of those that may be called. must: the answer is held to
    it. several: whether more than one call may come."""

    format: ToolFormat
    shown: list[dict[str, Any]]
    calls: CallsForm
    must: bool
    several: bool


def tool_choice(body: ChatBody, format_name: str | None) -> ToolChoice | None:
    """None if the answer calls no tools. Raises RequestError naming the field."""
    several = body.parallel_tool_calls is not False
    tools = [_checked(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or [])]
    if len(tools) > MOST_TOOLS:
        raise RequestError(f"tools must be at most {MOST_TOOLS}, got {len(tools)}", param="tools")
    names = [name for name, _, _ in tools]
    if len(set(names)) < len(names):
        raise RequestError(f"tools must have different names, got {shown(names)}", param="tools")
    chosen = _chosen(body.tool_choice, names)
    if not tools or chosen == []:
        return None
    if format_name is None:
        raise RequestError(
            "this model's chat template takes no tools, so it would not see them: use a model that was trained to call "
            "tools, or put them in a message",
            param="tools",
            code="unsupported_parameter",
        )
    tool_format = FORMATS[format_name]
    callable_ = tools if chosen is None else [tool for tool in tools if tool[0] in chosen]
    several = several and not isinstance(body.tool_choice, dict)
    calls = tool_format.form(callable_, several)
    return ToolChoice(tool_format, list(body.tools or []), calls, chosen is not None, several)


def _chosen(choice: Any, names: list[str]) -> list[str] | None:
    """Tools of which one must be called: none of them for no calls, None for whatever the model likes."""
    if choice == "none":
        return []
    if choice is not None and not names:
        raise RequestError(f"tool_choice {shown(choice)} needs tools to choose from", param="tool_choice")
    if choice is None or choice == "auto":
        return None
    if choice == "required":
        return names
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or choice != {"type": "function", "function": {"name": name}}:
        raise RequestError(
            'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": NAME}}, got '
            + shown(choice),
            param="tool_choice",
        )
    if name not in names:
        raise RequestError(
            f"tool_choice names {shown(name)}, which is not one of the tools: {', '.join(names)}",
            param="tool_choice",
        )
    return [name]


def _checked(tool: Any, where: str) -> Tool:
    """A tool's name, arguments' schema and strictness."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type") != "function":
        raise RequestError(
            f'{where} must be {{"type": "function", "function": {{"name": NAME, ...}}}}, got {shown(tool)}',
            param="tools",
        )
    for name in (*(set(tool) - {"type", "function"}), *(set(function) - set(_FUNCTION))):
        raise RequestError(f"{where} has an unknown field {name[:64]!r}; known: {', '.join(_FUNCTION)}", param="tools")
    name, description, strict = function.get("name"), function.get("description"), function.get("strict")
    if not isinstance(name, str) or not _NAME.match(name):
        raise RequestError(
            f"{where}.function.name must be 1 to 64 letters, digits, _, - or ., got {shown(name)}", param="tools"
        )
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{where}.function.description must be a string, got {shown(description)}", param="tools")
    if strict is not None and not isinstance(strict, bool):
        raise RequestError(f"{where}.function.strict must be true or false, got {shown(strict)}", param="tools")
    schema = _ANYTHING if function.get("parameters") is None else function["parameters"]
    schema_text(schema, f"{where}.function.parameters", param="tools")
    return name, schema, bool(strict)
