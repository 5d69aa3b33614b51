"""What a connection may do before its bytes are a request: the head has a largest size and a longest time, an offer to
upgrade the protocol is declined by going on in HTTP/1.1, and what is no HTTP gets an error in the API's shape.
"""

import asyncio
import re
import socket
from functools import partial
from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.server.errors import ErrorBody, ErrorObject

MAX_HEAD_BYTES = 64 * 2**10
HEAD_SECONDS = 60.0
UNREAD_SECONDS = 120
CHUNK_NOW = "headrace.chunk_now"
"""The ASGI extension by which a stream writes its events."""
_TCP_OPTIONS = {
    "TCP_USER_TIMEOUT": UNREAD_SECONDS * 1000,
    "TCP_KEEPIDLE": UNREAD_SECONDS // 2,
    "TCP_KEEPINTVL": UNREAD_SECONDS // 8,
    "TCP_KEEPCNT": 4,
}

_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:[^\r\n]*", re.IGNORECASE)


class Connection(HttpToolsProtocol):
    """One client's connection. A head counts as such from the end of the request before it, and only its size beyond
    what one read brings is bounded exactly."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _bound_silence(transport.get_extra_info("socket"))
        self._head_bytes = 0
        self._in_head = True
        self._late = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            data = _without_upgrade(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the request's head may have at most {MAX_HEAD_BYTES} bytes", "head_too_large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._late.cancel()
        self._late = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def on_headers_complete(self) -> None:
        self._late.cancel()
        self._in_head = False
        super().on_headers_complete()
        # The answer begins in a task of its own, so it finds this.
        self.cycle.scope["extensions"] = {CHUNK_NOW: {"write": partial(_chunk_now, self.cycle)}}

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not a request in HTTP/1.1", "invalid_http")

    def _too_late(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, f"the request's head did not arrive within {HEAD_SECONDS:g} s", "head_timeout")

    def _refuse(self, status: int, message: str, code: str) -> None:
        body = msgspec.json.encode(ErrorBody(ErrorObject(message, "invalid_request_error", None, code)))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _chunk_now(cycle: RequestResponseCycle, body: bytes) -> bool:
    """Write a chunk of an answer that has begun, without waiting and past everything that `send` goes through for each
    message. False where it must wait or takes another form: then it is sent as usual."""
    if cycle.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding or cycle.response_complete:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
    return True


def _bound_silence(connection: socket.socket) -> None:
    """Let the kernel end what a peer leaves unread, or a peer that vanished without a word: no application sees those
    while it has nothing to send."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS.items():
        # Linux has all of them, other systems some.
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _without_upgrade(data: bytes) -> bytes:
    """Some clients (Java's) offer HTTP/2 with every request, which a server may leave alone; the parser would take
    the body for the other protocol."""
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    if not _UPGRADE.search(head):
        return data
    return _UPGRADE.sub(b"", head) + data[len(head) :]
