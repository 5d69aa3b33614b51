"""schemathesis drives the API by its own OpenAPI document, over a real engine: whatever it sends, no answer is a fault
of ours, none takes a shape or a status that the document does not name, and what it calls invalid is refused.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from hypothesis import HealthCheck, Phase, settings
from tests.server.fake_engine import ByteTokenizer, PlainTemplate
from tests.server.local_engine import LocalEngine, null_executor
from tests.server.serving import settings as server_settings

from headrace.server.app import create_app
from headrace.server.connection import Connection
from headrace.server.openapi import document

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.checks")


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    """The URL of a server in a thread of its own."""
    started: list[uvicorn.Server] = []
    port: list[int] = []

    async def serve() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        engine = LocalEngine(null_executor(max_len=32))
        app = create_app(engine, ByteTokenizer(), PlainTemplate(), server_settings())
        config = uvicorn.Config(app, http=Connection, log_level="critical", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        port.append(listener.getsockname()[1])
        started.append(server)
        await server.serve(sockets=[listener])
        await engine.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    while not started or not started[0].started:
        assert thread.is_alive()
        threading.Event().wait(0.01)
    yield f"http://127.0.0.1:{port[0]}"
    started[0].should_exit = True
    thread.join()


CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
)
"""Not that all valid data is accepted: no document can say that a prompt fits the context, or that two fields agree."""


def described() -> dict:
    """The document, without deadlines: one that has passed is a 504 on purpose."""
    whole = document("test")
    for body in ("ChatBody", "CompletionBody"):
        del whole["components"]["schemas"][body]["properties"]["deadline_ms"]
    return whole


schema = schemathesis.openapi.from_dict(described())


@schema.parametrize()
@settings(
    max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
def test_the_document_holds(case, api):
    case.call_and_validate(base_url=api, checks=CHECKS)
