"""Every error a client can see, in one place: OpenAI's error object, the status that goes with it, and the mapping
from our error tree. A client's fault is told in full; ours is told as ours, and its details go to the log only.
"""

import logging
import math
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headrace.core.errors import EngineDeadError, HeadraceError, OverloadedError, RequestError
from headrace.core.request import ErrorCode

log = logging.getLogger("headrace.server")

CLIENT_CLOSED_REQUEST = 499
INTERNAL_MESSAGE = "The server failed to answer this request. The operator's log says more."
ENGINE_DEAD_MESSAGE = "The engine is not answering. Try again in a few seconds."


_ANTHROPIC = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ErrorObject(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    error: ErrorObject


class AnthropicErrorObject(msgspec.Struct):
    """details: error_code and param, what the client's library goes by where there is something to go by."""

    type: str
    message: str
    details: dict[str, str | None] | msgspec.UnsetType = msgspec.UNSET


class AnthropicErrorBody(msgspec.Struct):
    error: AnthropicErrorObject
    type: str = "error"


class HttpError(Exception):
    """An answer with a status of its own that no other room knows of (401, 404, 408, 413, 415, 503)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}


class GenerationError(Exception):
    """The engine ended a request with an error; `message` may be shown to its client."""

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


def describe(error: Exception) -> tuple[int, ErrorObject, dict[str, str]]:
    """Status, error object and extra headers for any exception. What is not ours to show becomes a plain 500."""
    match error:
        case OverloadedError():
            retry = {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
            return 429, ErrorObject(error.message, "rate_limit_error", error.param, error.code), retry
        case RequestError():
            return error.status, ErrorObject(error.message, _type(error.status), error.param, error.code), {}
        case HttpError():
            return error.status, ErrorObject(error.message, _type(error.status), error.param, error.code), error.headers
        case HTTPException():
            code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
            return (
                error.status_code,
                ErrorObject(error.detail, _type(error.status_code), None, code),
                dict(error.headers or {}),
            )
        case GenerationError():
            status = 504 if error.code is ErrorCode.DEADLINE_EXCEEDED else 500
            return status, ErrorObject(error.message, "server_error", None, error.code or "generation_failed"), {}
        case EngineDeadError():
            return (
                503,
                ErrorObject(ENGINE_DEAD_MESSAGE, "server_error", None, "engine_unavailable"),
                {"Retry-After": "5"},
            )
        case _:
            return 500, ErrorObject(INTERNAL_MESSAGE, "server_error", None, "internal_error"), {}


def error_response(error: Exception, path: str) -> Response:
    """path: what was asked for, which tells whose shape the client reads."""
    status, shown, headers = describe(error)
    body = anthropic_error(error) if path.startswith(_ANTHROPIC) else ErrorBody(shown)
    return Response(msgspec.json.encode(body), status_code=status, headers=headers, media_type="application/json")


def anthropic_error(error: Exception) -> AnthropicErrorBody:
    """The error as Anthropic's clients read it."""
    status, shown, _ = describe(error)
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    details = msgspec.UNSET if shown.code is None else {"error_code": shown.code, "param": shown.param}
    return AnthropicErrorBody(AnthropicErrorObject(kind, shown.message, details))


def error_event(error: Exception) -> bytes:
    """The same error object as one server-sent event, for a stream whose headers are gone."""
    return b"data: " + msgspec.json.encode(ErrorBody(describe(error)[1])) + b"\n\n"


async def handle_known(request: Request, error: Exception) -> Response:
    """Starlette's handler for errors raised on purpose."""
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        known = ", ".join(sorted(getattr(r, "path", "") for r in request.app.routes))
        detail = (
            f"there is no {request.url.path} here; known paths: {known}"
            if error.status_code == 404
            else f"{request.method} is not allowed on {request.url.path}"
        )
        error = HTTPException(error.status_code, detail, error.headers)
    response = error_response(error, request.url.path)
    if getattr(request.state, "streams", False):
        # Who asked for a stream reads until the socket closes.
        response.headers["Connection"] = "close"
    return response


async def handle_gone(request: Request, error: Exception) -> Response:
    """The client left while sending its body: nobody reads this answer."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def handle_unknown(request: Request, error: Exception) -> Response:
    """Starlette's handler for everything else; the traceback is logged here, by the server around us too."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(error, request.url.path)


HANDLERS: dict[Any, Any] = {
    HeadraceError: handle_known,
    HttpError: handle_known,
    GenerationError: handle_known,
    HTTPException: handle_known,
    ClientDisconnect: handle_gone,
    Exception: handle_unknown,
}
"""By exception, for an app."""


def _type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
