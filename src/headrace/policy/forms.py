"""Forms: what the scheduler asks of whoever makes the forms of structured outputs ready to be held to. A request whose
form is not ready waits beside the queue (parking.py), so that no step waits for it.
"""

from typing import Protocol

from headrace.core.structured import StructuredOutputsParams


class Forms(Protocol):
    def ready(self, request_id: str, wanted: StructuredOutputsParams, /) -> bool:
        """Whether this request may run, its form understood or not; asked first, its form is begun. What is ready
        stays so until release()."""

    def release(self, request_id: str, /) -> None:
        """This request has ended."""
