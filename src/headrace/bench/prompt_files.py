"""Prompts from files of other people's benchmarks, or of one's own traffic: JSON lines, each with a prompt, turns (of
which the first counts) or messages, and perhaps a category.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError, shown


@dataclass(frozen=True, slots=True)
class Prompt:
    """text of a user's turn; plain: to be continued as it stands, not answered."""

    category: str
    text: str
    plain: bool


def read_prompts(file: Path, per_category: int | None = None) -> list[Prompt]:
    """The first per_category prompts of each category (without one: the file's name). Raises ConfigError naming the
    line."""
    found: list[Prompt] = []
    taken: dict[str, int] = {}
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        prompt = _prompt(file, number, line)
        taken[prompt.category] = taken.get(prompt.category, 0) + 1
        if per_category is None or taken[prompt.category] <= per_category:
            found.append(prompt)
    if not found:
        raise ConfigError(f"prompts: {file} has no prompts", field="prompts")
    return found


def _lines(file: Path) -> Iterator[str]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as text:
            yield from text
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise ConfigError(f"prompts: {file} cannot be read: {error}", field="prompts") from error


def _prompt(file: Path, number: int, line: str) -> Prompt:
    try:
        fields: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"prompts: line {number} of {file} is not JSON: {error}", field="prompts") from error
    if not isinstance(fields, dict):
        fields = {}
    plain = isinstance(fields.get("prompt"), str)
    text = fields.get("prompt")
    if isinstance(turns := fields.get("turns"), list) and turns:
        text = turns[0]
    elif isinstance(messages := fields.get("messages"), list) and messages and isinstance(messages[-1], dict):
        text = messages[-1].get("content")
    if not isinstance(text, str) or not text:
        raise ConfigError(
            f"prompts: line {number} of {file} must have a prompt, turns or messages, got {shown(line[:200])}",
            field="prompts",
        )
    category = fields.get("category")
    return Prompt(category if isinstance(category, str) else file.name.partition(".")[0], text, plain)
