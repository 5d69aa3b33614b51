"""Reading a JSON body without trusting it: the content type is asked for, the size is bounded while reading (declared
or chunked), and only a few large bodies are held at once. Large ones are parsed on a worker thread, so that the
event loop keeps answering others.
"""

import asyncio
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from headrace.core.errors import RequestError
from headrace.server.errors import HttpError

T = TypeVar("T")
_MOST_DIGITS = 4300
"""Of an integer, as Python reads them."""


class BodyReader:
    """Reads bodies up to max_bytes, with up to max_values values and max_containers arrays and objects. Those of
    large_bytes or more share `large_slots` places; those of offload_bytes or more are worked on in threads."""

    def __init__(
        self,
        *,
        max_bytes: int,
        max_values: int,
        max_containers: int,
        offload_bytes: int,
        large_bytes: int,
        large_slots: int,
        timeout: float,
    ) -> None:
        self.max_bytes = max_bytes
        self.max_values = max_values
        self.max_containers = max_containers
        self.offload_bytes = offload_bytes
        self.large_bytes = large_bytes
        self.timeout = timeout
        self._large_slots = large_slots
        self._slots = asyncio.Semaphore(large_slots)
        self._threads: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """End the threads, if there are any; a body that comes later starts new ones."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    async def prepare(self, request: Request, work: Callable[[dict[str, Any]], T]) -> T:
        """Read the body, a JSON object, and return work(object): all that is done with a body before the engine
        hears of it. Raises HttpError 408, 413, 415 or RequestError, and what work raises."""
        _check_content_type(request)
        async with AsyncExitStack() as stack:
            data = await self._read(request, stack)
            if len(data) < self.offload_bytes:
                return self._work(request, work, data)
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._large_slots, thread_name_prefix="body")
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, request, work, data)

    async def _read(self, request: Request, stack: AsyncExitStack) -> bytes:
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self.max_bytes:
            raise self._too_large(f"{declared} bytes")
        chunks: list[bytes] = []
        size = 0
        large = False
        try:
            async with asyncio.timeout(self.timeout):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > self.max_bytes:
                        raise self._too_large("more")
                    if size >= self.large_bytes and not large:
                        large = True
                        await stack.enter_async_context(self._slots)
                    chunks.append(chunk)
        except TimeoutError:
            raise HttpError(408, f"the body did not arrive within {self.timeout:g} s", code="body_timeout") from None
        return b"".join(chunks)

    def _work(self, request: Request, work: Callable[[dict[str, Any]], T], data: bytes) -> T:
        self._check_counts(data)
        fields = _parse(data)
        request.state.streams = fields.get("stream") is True
        return work(fields)

    def _check_counts(self, data: bytes) -> None:
        """A body of millions of tiny values would cost seconds and gigabytes as Python's objects, so they are counted
        before there are any. Signs inside strings count as well: no text that fits a context has as many."""
        for what, most, found in (
            ("values", self.max_values, data.count(b",")),
            ("arrays and objects", self.max_containers, data.count(b"[") + data.count(b"{")),
        ):
            if found > most:
                raise HttpError(413, f"the body may have at most {most} {what}", code="body_too_large")

    def _too_large(self, given: str) -> HttpError:
        return HttpError(
            413, f"the body may have at most {self.max_bytes} bytes, this one has {given}", code="body_too_large"
        )


def _check_content_type(request: Request) -> None:
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        shown = repr(given) if given else "none"
        raise HttpError(415, f"Content-Type must be application/json, got {shown}", code="unsupported_media_type")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise HttpError(415, f"Content-Encoding must be left out, got {encoding[:64]!r}", code="unsupported_media_type")


def _parse(data: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise RequestError("the body is nested too deeply", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if (name := _out_of_range(data, str(error))) is not None:
            raise RequestError(f"{name} holds a number that is out of range", param=name, code="invalid_json") from None
        raise RequestError(f"the body is not valid JSON in UTF-8: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, got {_json_name(value)}", code="invalid_json")
    return value


def _out_of_range(data: bytes, error: str) -> str | None:
    """The field with a number that no float or Python integer can hold, if that is the error."""
    if "out of range" not in error:
        return None
    try:
        fields = json.loads(data, parse_int=lambda digits: math.inf if len(digits) > _MOST_DIGITS else 0)
    except (ValueError, RecursionError):
        return None
    for name, value in fields.items() if isinstance(fields, dict) else ():
        level = [value]
        while level:
            if math.inf in level or -math.inf in level:
                return str(name)[:64]
            inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
            level = [one for some in inside for one in some]
    return None


def _json_name(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "an array"}
    return names.get(type(value), "a number")
