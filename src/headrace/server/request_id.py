"""X-Request-Id: a client's own name for its request, echoed on the answer and never used as a name inside. Two live
requests with one id stay two requests; the engine's ids are ours.
"""

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = b"x-request-id"
_SAFE = re.compile(rb"[\x21-\x7e]{1,256}")


class RequestId:
    """ASGI middleware: echoes a well-formed X-Request-Id, or gives the answer one; the scope's state has it too."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        echoed = given if _SAFE.fullmatch(given) else uuid.uuid4().hex.encode()

        scope.setdefault("state", {})["request_id"] = echoed.decode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (_HEADER, echoed)]
            await send(message)

        await self.app(scope, receive, send_with_id)
