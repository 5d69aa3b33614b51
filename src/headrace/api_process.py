"""The API's process: the server's app over the engine's client, and what signals mean to it. The first SIGTERM or
SIGINT drains: streams finish (up to shutdown_timeout), new requests get 503, then everything ends; the second ends
streams at once, with an error; the third does not even wait for that.
"""

import asyncio
import dataclasses
import hashlib
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from headrace import __version__
from headrace.collector import settle
from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.engine.client import EngineHandle, ProcessClient
from headrace.engine.trial_gate import TrialGate
from headrace.models.grammar import WARM_AFTER_S, GrammarCompiler
from headrace.models.text import TextModel, load_text
from headrace.server.admin import create_admin_app
from headrace.server.api_keys import Caller, read_keys, split_keys
from headrace.server.app import create_app
from headrace.server.connection import Connection
from headrace.server.counts import Counts
from headrace.server.metrics import COUNTS_WIDTH
from headrace.server.scrape import exposition
from headrace.server.service import Service
from headrace.server.settings import ServerSettings
from headrace.server.tools.formats import format_of

_CLOSING_SECONDS = 5
_COUNTS_NAME = "counts"
_GATE_NAME = "trial"


@dataclass(frozen=True, slots=True)
class Place:
    """Which of `count` API processes this is, how often it was started before, and the folder that they share (None: it
    is the only one, and ends the engine when it ends)."""

    index: int = 0
    count: int = 1
    before: int = 0
    shared: Path | None = None

    def seed(self, seed: int) -> int:
        """From which to draw seeds for requests without one: never what another process draws."""
        if self.index == self.before == 0:
            return seed
        name = f"{seed} {self.index} {self.before}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())


def run(
    config: Config,
    engine: EngineHandle,
    listener: socket.socket,
    admin: socket.socket | None,
    place: Place = Place(),
) -> int:
    """Serve until a signal, metrics and debug routes on a listener of their own if there is one; returns the exit
    status."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    _set_up_access_log()
    text = load_text(Path(config.model))
    uvicorn_config = uvicorn.Config(
        _no_app,
        http=Connection,
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=_CLOSING_SECONDS,
    )
    settle()
    with asyncio.Runner(loop_factory=uvicorn_config.get_loop_factory()) as runner:
        return runner.run(_run(config, engine, (listener, admin), text, uvicorn_config, place))


def _set_up_access_log() -> None:
    """Lines of the access log as they are, without a level before them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access = logging.getLogger("headrace.access")
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False


async def _no_app(scope: object, receive: object, send: object) -> None:
    raise AssertionError("the app is set before the server starts")


async def _run(
    config: Config,
    engine: EngineHandle,
    listeners: tuple[socket.socket, socket.socket | None],
    text: TextModel,
    uvicorn_config: uvicorn.Config,
    place: Place,
) -> int:
    listener, admin = listeners
    client = ProcessClient(engine, None if place.shared is None else TrialGate(place.shared / _GATE_NAME))
    try:
        ready = await client.start()
        grammars = GrammarCompiler(lambda: text.tokenizer, ready.vocab_size, threads=2)
        settings = dataclasses.replace(server_settings(config, text), seed=place.seed(config.seed))
        file = None if place.shared is None else place.shared / _COUNTS_NAME
        counts = Counts(COUNTS_WIDTH, rows=place.count, row=place.index, file=file)
        app = create_app(client, text.tokenizer, text.chat_template, settings, grammars, counts)
        uvicorn_config.app = app
        asyncio.get_running_loop().call_later(WARM_AFTER_S, _warm_when_idle, grammars, app.state.service)
        cut_streams = partial(client.stop, "the server was stopped")
        server = DrainingServer(uvicorn_config, app, config.shutdown_timeout, cut_streams)
        _listen(listener, config)
        first = place.index == place.before == 0
        announcing = asyncio.create_task(_announce(server, config, listener)) if first else None
        async with _serving_admin(app.state.service, admin):
            await server.serve(sockets=[listener])
        if announcing is not None:
            await announcing
        if place.shared is None:
            await client.shutdown()
    finally:
        client.close()
    return 0


def _warm_when_idle(grammars: GrammarCompiler, service: Service) -> None:
    """Get ready for forms of outputs and for who asks for metrics, while nobody waits for anything."""
    if service.live:
        asyncio.get_running_loop().call_later(WARM_AFTER_S, _warm_when_idle, grammars, service)
    else:
        grammars.warm()
        asyncio.get_running_loop().run_in_executor(None, exposition)


def server_settings(config: Config, text: TextModel) -> ServerSettings:
    return ServerSettings(
        model_name=config.served_model_name or config.model,
        version=__version__,
        created=int(time.time()),
        eos_ids=text.tokenizer.eos_ids,
        sampling_defaults=tuple(text.sampling_defaults.items()),
        api_keys=_api_keys(config),
        open_metrics=config.open_metrics,
        access_log=config.access_log,
        allowed_origins=_listed(config.allowed_origins),
        tool_format=_tool_format(config, text),
        reasoning_parser=config.reasoning_parser,
        template_kwargs=_listed(config.allowed_chat_template_kwargs),
        seed=config.seed,
        max_body_bytes=config.max_body_bytes,
    )


def _tool_format(config: Config, text: TextModel) -> str | None:
    template = text.chat_template
    if config.tool_call_parser is not None or template is None or "tools" not in template.variables:
        return config.tool_call_parser
    return format_of(template.source)


def _api_keys(config: Config) -> tuple[tuple[str, Caller], ...]:
    named = [] if config.api_key_file is None else read_keys(Path(config.api_key_file))
    return (*split_keys(config.api_key or ""), *named)


def _listed(names: str | None) -> tuple[str, ...]:
    """What a setting lists by commas."""
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


class AdminServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the one beside it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def _serving_admin(service: Service, listener: socket.socket | None) -> AsyncIterator[None]:
    """Answer an operator, also while the API drains."""
    if listener is None:
        yield
        return
    config = uvicorn.Config(
        create_admin_app(service), http=Connection, log_config=None, access_log=False, server_header=False
    )
    server = AdminServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    host, port = listener.getsockname()[:2]
    _tell(f"metrics and debug routes are at http://{host}:{port}")
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class DrainingServer(uvicorn.Server):
    """A uvicorn server that keeps answering while it drains, so that a load balancer reads 503 and not a refused
    connection."""

    def __init__(
        self, config: uvicorn.Config, app: Starlette, drain_seconds: float, cut_streams: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._cut_streams = cut_streams
        self._cut = False
        self._service = app.state.service
        self._drain_seconds = drain_seconds
        self._draining: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal handler: it only tells the event loop."""
        self._loop.call_soon_threadsafe(self._signalled)

    def _signalled(self) -> None:
        if self._draining is None:
            self._service.drain()
            if live := self._service.live:
                what = "1 request" if live == 1 else f"{live} requests"
                _tell(f"finishing {what}, {self._drain_seconds:g} s at most; signal again (Ctrl-C) to end now")
            self._draining = self._loop.create_task(self._drain())
        elif not self._cut:
            self._cut = True
            self._cut_streams()
            self.should_exit = True
        else:
            self.force_exit = True

    async def _drain(self) -> None:
        try:
            await asyncio.wait_for(self._service.drained(), self._drain_seconds)
        except TimeoutError:
            logging.getLogger(__name__).warning("streams did not finish within %s s: ended", self._drain_seconds)
            await self._service.end_live()
            self._cut_streams()
        self.should_exit = True


def _listen(listener: socket.socket, config: Config) -> None:
    """Where nobody listened when it took its address, somebody who took it too may do so by now."""
    try:
        listener.listen()
    except OSError as error:
        where = f"{config.host}:{config.port}"
        raise ConfigError(f"cannot listen on {where}: {error.strerror}; choose another --port", field="port") from error


async def _announce(server: uvicorn.Server, config: Config, listener: socket.socket) -> None:
    """Say where the API is, once it is."""
    while not server.started and not server.should_exit:
        await asyncio.sleep(0.005)
    if not server.started:
        return
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    _tell(f"{config.served_model_name} is served at http://{shown}:{port}/v1")


def _tell(message: str) -> None:
    """Say something to whoever started the server."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201
