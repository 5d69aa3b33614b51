"""/health and /version: whether the engine makes progress, and what runs here. Health never waits for the engine, so
it answers while everything else is busy or stopped.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.client_protocol import HealthState
from headrace.server.errors import HttpError
from headrace.server.protocol import Health, Version
from headrace.server.service import service_of


async def health(request: Request) -> Response:
    service = service_of(request)
    if service.draining:
        raise HttpError(503, "this server is shutting down", code="shutting_down")
    state, reason = service.client.health()
    if state is not HealthState.HEALTHY:
        raise HttpError(503, reason, code=state.value)
    return Response(msgspec.json.encode(Health(state.value)), media_type="application/json")


async def version(request: Request) -> Response:
    service = service_of(request)
    ready = service.client.ready
    shown = Version(service.settings.version, ready.fingerprint, ready.describe)
    return Response(msgspec.json.encode(shown), media_type="application/json")
