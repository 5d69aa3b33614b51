"""FormsUnderWay: forms of waiting and running requests, compiled on a thread of their own while the engine steps. It
holds a request's form from when it is first asked for until the request has ended, so that the step which it joins
finds it compiled (worker/grammar.py), however many others came between.
"""

import threading
from concurrent.futures import Future
from typing import Any

from headrace.core.structured import StructuredOutputsParams
from headrace.worker.grammar import Compile


class FormsUnderWay:
    """policy/forms.py, over a compiler that finds a form again as long as someone holds it."""

    def __init__(self, compile_grammar: Compile) -> None:
        self._compile = compile_grammar
        self._held: dict[str, Future[Any]] = {}
        self._ended = threading.Event()

    def ready(self, request_id: str, wanted: StructuredOutputsParams) -> bool:
        form = self._held.get(request_id)
        if form is None:
            form = self._held[request_id] = self._compile(wanted)
            form.add_done_callback(lambda _: self._ended.set())
        return form.done()

    def release(self, request_id: str) -> None:
        form = self._held.pop(request_id, None)
        if form is not None and not any(other is form for other in self._held.values()):
            # What nobody waits for any more is not begun.
            form.cancel()

    def wait(self, seconds: float) -> None:
        """Until a form's compilation has ended since the last call, or so long."""
        if self._ended.wait(seconds):
            self._ended.clear()
