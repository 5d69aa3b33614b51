"""/debug/requests/ID and /debug/steps: what became of a request and why, and what the last steps did. They show one
client's affairs to whoever asks, so they are served on the admin port alone.
"""

import ipaddress

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.errors import RequestError
from headrace.server.errors import HttpError
from headrace.server.explanation import explain
from headrace.server.protocol import DebugRequest, DebugRequests, DebugSteps
from headrace.server.service import service_of

MOST_STEPS = 10_000


async def debug_request(request: Request) -> Response:
    _check_host(request)
    service = service_of(request)
    request_id = request.path_params["request_id"]
    found = (await service.client.inspect(request_id)).requests
    if not found:
        times = service.client.restarts
        again = f" (the engine was started again {times} times since, and forgets what ended before)" if times else ""
        raise HttpError(
            404,
            f"no request {request_id[:256]!r} is remembered: ask by the id of its answer, soon after it ended{again}",
            param="request_id",
            code="request_not_found",
        )
    shown = DebugRequests([DebugRequest(explain(record, service.tokenizer), record) for record in found])
    return Response(msgspec.json.encode(shown), media_type="application/json")


async def debug_steps(request: Request) -> Response:
    _check_host(request)
    limit = request.query_params.get("limit", "64")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:6]) <= MOST_STEPS):
        raise RequestError(f"limit must be from 1 to {MOST_STEPS}, got {limit[:32]!r}", param="limit")
    steps = (await service_of(request).client.inspect(steps=int(limit))).steps
    return Response(msgspec.json.encode(DebugSteps(steps)), media_type="application/json")


def _check_host(request: Request) -> None:
    """A page of another site, whose name was made to mean this machine, says so in its Host header."""
    host = (request.url.hostname or "").strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if host != "localhost":
            raise HttpError(403, "ask by this machine's address", code="wrong_host") from None


DEBUG_ROUTES = (
    Route("/debug/requests/{request_id}", debug_request, methods=["GET"]),
    Route("/debug/steps", debug_steps, methods=["GET"]),
)
