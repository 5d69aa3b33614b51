"""The API key, checked before routing on every path but those that are open, in time that does not depend on how much
of it is right. Without configured keys everything is open.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.api_keys import ApiKeys, Caller
from headrace.server.errors import HttpError, error_response


class Auth:
    """ASGI middleware: lets a request pass if its bearer token, or its X-Api-Key, is a key; scope["state"]["caller"]
    then says whose. open_paths need none."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, open_paths: frozenset[str]) -> None:
        self.app = app
        self.keys = keys
        self.open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self.open_paths:
            caller = self._caller(scope)
            if caller is None:
                error = HttpError(
                    401,
                    "missing or wrong API key: send it as 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await error_response(error, scope["path"])(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
        await self.app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller | None:
        """Who sends this; None without exactly one right key."""
        given: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, token = value.partition(b" ")
                given.append(token.strip() if scheme.lower() == b"bearer" else b"")
            elif name == b"x-api-key":
                given.append(value)
        return self.keys.find(given[0]) if len(given) == 1 else None
