"""One app over a fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import ByteTokenizer, FakeEngine, PlainTemplate
from tests.server.serving import http, served, settings

from headrace.server.app import create_app


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def make_app(engine: FakeEngine) -> Callable[..., Starlette]:
    def make(tokenizer: ByteTokenizer | None = None, **changes: Any) -> Starlette:
        return create_app(engine, tokenizer or ByteTokenizer(), PlainTemplate(), settings(**changes))

    return make


@pytest.fixture
def app(make_app: Callable[..., Starlette]) -> Iterator[Starlette]:
    app = make_app()
    yield app
    app.state.service.close()


@pytest.fixture
async def client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with http(app) as client:
        yield client


@pytest.fixture
async def port(app: Starlette) -> AsyncIterator[int]:
    async with served(app) as port:
        yield port
