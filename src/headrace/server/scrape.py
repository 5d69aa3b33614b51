"""GET /metrics. What tells them (server/exposition.py) is not loaded before somebody asks: no request needs it."""

import asyncio
import importlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.client_protocol import EngineClient
from headrace.server.metrics import Metrics


async def metrics(request: Request) -> Response:
    service = request.app.state.service
    return await asyncio.to_thread(_told, service.metrics, service.client)


def _told(counted: Metrics, client: EngineClient) -> Response:
    """Takes some ms, and a tenth of a second the first time: streams do not wait meanwhile."""
    return Response(exposition().text(counted, client), media_type=exposition().CONTENT_TYPE)


def exposition() -> Any:
    """The module of that name, not imported before somebody asks: no request needs it."""
    return importlib.import_module("headrace.server.exposition")
