"""By when a client wants its first token: the header X-Request-Deadline-Ms or the field deadline_ms, in milliseconds
from the request's arrival here. What the API needed of it is gone when the engine gets the rest.
"""

import time
from collections.abc import Iterable

import msgspec
from starlette.requests import Request

from headrace.core.errors import RequestError, shown
from headrace.server.generation import Sequence

HEADER = "x-request-deadline-ms"
LONGEST_MS = 24 * 3600 * 1000


def set_deadline(request: Request, given: int | None, sequences: Iterable[Sequence], arrival: float) -> None:
    """given: the body's deadline_ms. arrival: on time.monotonic(). Raises RequestError naming header or field."""
    deadline_ms = _read(request.headers.get(HEADER), given)
    if deadline_ms is None:
        return
    left = max(0.0, deadline_ms / 1e3 - (time.monotonic() - arrival))
    for sequence in sequences:
        sequence.request = msgspec.structs.replace(sequence.request, deadline=left)


def _read(header: str | None, field: int | None) -> int | None:
    if header is None:
        return None if field is None else _checked(field, "deadline_ms", field)
    if field is not None:
        raise RequestError(f"deadline_ms and the header {HEADER} say the same: send one of them", param="deadline_ms")
    digits = header.isascii() and header.isdigit()
    return _checked(int(header[:20]) if digits else -1, HEADER, header)


def _checked(value: int, name: str, given: object) -> int:
    if not 1 <= value <= LONGEST_MS:
        raise RequestError(f"{name} must be a whole number from 1 to {LONGEST_MS} (ms), got {shown(given)}", param=name)
    return value
