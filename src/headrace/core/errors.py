"""The error tree: whose fault it is decides the class.

    HeadraceError
    ├── RequestError       the client's fault: HTTP 4xx, names the field and what is allowed
    │   └── OverloadedError    too much work queued: HTTP 429 with Retry-After
    ├── ConfigError        the operator's fault: a flag or setting that is unknown, contradictory or impossible
    ├── ModelError         the model's fault: a file that is torn, hostile, unsupported or incomplete
    ├── MachineError       the machine's fault: memory, processor features, files that cannot be written
    └── EngineError        our fault
        └── EngineDeadError    the engine process is gone or silent

Every message names the field, the value, what is allowed, and what to do. A message of RequestError may be
shown to anyone; the others are for the operator.
"""

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 80
_BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxdict = 4


def shown(value: Any) -> str:
    """A value as a message shows it: brief, however large it is."""
    try:
        return _BRIEF.repr(value)
    except ValueError:  # Python writes no integer of thousands of digits
        return f"a too large {type(value).__name__}"


def did_you_mean(name: str, known: Iterable[str], otherwise: str, *, most: int = 1) -> str:
    """How a message about an unknown name ends: with known ones that resemble it, or else as given."""
    near = difflib.get_close_matches(name[:64], known, n=most)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


class HeadraceError(Exception):
    """Root of every error that Headrace raises on purpose."""


class RequestError(HeadraceError):
    """A request that cannot be served as asked. `param` is the field at fault, as the client spelled it."""

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class OverloadedError(RequestError):
    """More work is queued than is allowed; `retry_after` is in seconds."""

    status = 429

    def __init__(self, message: str, *, retry_after: float, code: str = "overloaded") -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class ConfigError(HeadraceError):
    """A setting that is unknown, contradictory or impossible. `field` is its name in Config."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ModelError(HeadraceError):
    """A model that cannot be loaded: the message names the file and, where there is one, the tensor."""


class MachineError(HeadraceError):
    """The machine lacks something: memory, a processor feature, a writable folder."""


class EngineError(HeadraceError):
    """A fault of ours while a request was served."""


class EngineDeadError(EngineError):
    """The engine process is gone, or has made no progress for too long."""
