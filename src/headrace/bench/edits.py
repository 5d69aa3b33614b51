"""The work of an agent that edits a file twice: the file stands in the prompt and is to be written again with one line
changed, and then again with another. Small models do not do as they are told, so what is to be written is dictated as
the only form that the output may have; the model still computes every token and chooses how the text is cut into them.
"""

from collections.abc import Callable, Sequence

from headrace.bench.speculation import Asked
from headrace.core.structured import StructuredOutputsParams

_Messages = list[dict[str, str]]
_LEAST_LINES = 8


def edited_twice(
    texts: Sequence[str], encode: Callable[[_Messages], list[int]], count: Callable[[str], int], most_tokens: int
) -> list[Asked]:
    """Two requests for each text of at least _LEAST_LINES lines, cut to what the answers may take."""
    asked = []
    for text in texts:
        lines = text.rstrip().splitlines()
        # Room for what the edits add, and for the end of the output.
        while len(lines) >= _LEAST_LINES and count("\n".join(lines)) > most_tokens - 24:
            lines.pop()
        if len(lines) >= _LEAST_LINES:
            asked += _conversation(lines, encode)
    return asked


def _conversation(lines: list[str], encode: Callable[[_Messages], list[int]]) -> list[Asked]:
    first = _edit(lines, len(lines) // 3, "checked")
    second = _edit(first, 2 * len(lines) // 3, "to do")
    asked: list[Asked] = []
    messages: _Messages = []
    before = "\n".join(lines)
    for number, (after, mark) in enumerate(((first, "checked"), (second, "to do"))):
        place = (number + 1) * len(lines) // 3
        given = f"Here is a file:\n\n{before}\n\n" if number == 0 else ""
        wish = f"{given}Write the whole file again, with ' # {mark}' at the end of line {place + 1}."
        messages = [*messages, {"role": "user", "content": wish}]
        answer = "\n".join(after)
        asked.append(Asked(encode(messages), StructuredOutputsParams(choice=[answer])))
        messages = [*messages, {"role": "assistant", "content": answer}]
    return asked


def _edit(lines: list[str], place: int, mark: str) -> list[str]:
    return [*lines[:place], f"{lines[place]}  # {mark}", *lines[place + 1 :]]
