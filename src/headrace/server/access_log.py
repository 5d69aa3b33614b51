"""The access log: one JSON line for each request, with what it cost and how it ended, never with what was said. Its
request_id is the client's X-Request-Id, its id the one in the answer and in the engine.
"""

import datetime
import logging
import time
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.api_keys import ANYONE
from headrace.server.errors import CLIENT_CLOSED_REQUEST
from headrace.server.generation import Generation

log = logging.getLogger("headrace.access")
_LONGEST_PATH = 256


class AccessLog:
    """ASGI middleware; what handlers know they leave in the request's state: caller, generation, answer_id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.monotonic()
        status = CLIENT_CLOSED_REQUEST

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_see)
        except Exception:
            status = 500  # as the server answers what is raised here
            raise
        finally:
            log.info("%s", msgspec.json.encode(_line(scope, status, begun)).decode())


def _line(scope: Scope, status: int, begun: float) -> dict[str, Any]:
    state = scope.get("state", {})
    line: dict[str, Any] = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "request_id": state.get("request_id"),
        "tenant": state.get("caller", ANYONE).tenant,
        "method": scope["method"],
        "path": scope["path"][:_LONGEST_PATH],
        "status": status,
        "ms": round((time.monotonic() - begun) * 1e3, 1),
    }
    generation: Generation | None = state.get("generation")
    if generation is None:
        return line
    usage = generation.usage()
    return line | {
        "id": state.get("answer_id"),
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.prompt_tokens_details.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "ttft_ms": None if generation.first_token_at is None else round((generation.first_token_at - begun) * 1e3, 1),
        "finish_reasons": [s.choice.finish_reason or "abort" for s in generation.sequences],
    }
