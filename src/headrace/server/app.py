"""create_app: the OpenAI API as one ASGI app over an engine client. Everything it works with is injected; it opens
no socket, starts no process and reads no setting of its own.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from headrace.engine.client_protocol import EngineClient
from headrace.server.access_log import AccessLog
from headrace.server.anthropic_messages import count_tokens, create_message
from headrace.server.api_keys import ApiKeys
from headrace.server.auth import Auth
from headrace.server.chat import chat_completions
from headrace.server.completions import completions
from headrace.server.counts import Counts
from headrace.server.errors import HANDLERS
from headrace.server.faces import ChatTemplate, GrammarCompiler, Tokenizer
from headrace.server.health import health, version
from headrace.server.models import get_model, list_models
from headrace.server.openapi import openapi
from headrace.server.request_id import RequestId
from headrace.server.responses import create_response
from headrace.server.scrape import metrics
from headrace.server.service import Service
from headrace.server.settings import ServerSettings
from headrace.server.tokenize import detokenize, tokenize
from headrace.server.web import PAGE_PATHS, page

OPEN_PATHS = frozenset({"/health", *PAGE_PATHS})
"""What needs no key."""

ROUTES = (
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/responses", create_response, methods=["POST"]),
    Route("/v1/messages", create_message, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    Route("/v1/models", list_models, methods=["GET"]),
    Route("/v1/models/{model:path}", get_model, methods=["GET"]),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/health", health, methods=["GET"]),
    Route("/metrics", metrics, methods=["GET"]),
    Route("/version", version, methods=["GET"]),
    Route("/openapi.json", openapi, methods=["GET"]),
)
PAGES = tuple(Route(path, page, methods=["GET"]) for path in PAGE_PATHS)


def create_app(
    client: EngineClient,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    settings: ServerSettings,
    grammars: GrammarCompiler | None = None,
    counts: Counts | None = None,
) -> Starlette:
    """The app; its Service is at app.state.service, whose drain() makes new generations 503. counts: where it counts,
    if other processes' counts are to show in its metrics too."""
    service = Service(client, tokenizer, chat_template, settings, grammars, counts)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        service.close()

    middleware = [Middleware(RequestId)]
    if settings.access_log:
        middleware.append(Middleware(AccessLog))
    if settings.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allowed_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=("X-Request-Id", "Retry-After"),
            )
        )
    if settings.api_keys:
        open_paths = OPEN_PATHS | ({"/metrics"} if settings.open_metrics else set())
        middleware.append(Middleware(Auth, keys=ApiKeys(settings.api_keys), open_paths=open_paths))
    app = Starlette(
        routes=[*ROUTES, *PAGES],
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers=HANDLERS,
    )
    # A path with a slash too many is unknown; a redirect would send clients wherever their Host header says.
    app.router.redirect_slashes = False
    app.state.service = service
    return app
