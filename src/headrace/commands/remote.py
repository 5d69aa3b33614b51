"""A client of any OpenAI server's streamed chat, over the standard library alone. It knows of server-sent events
what such servers send: lines of `data: `, each a JSON chunk, ended by `[DONE]`.
"""

import http.client
import json
from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import urlsplit

from headrace.core.errors import ConfigError, EngineError, HeadraceError, RequestError

Message = dict[str, str]


class RemoteChat:
    """One server. model None: the first that it lists. Raises ConfigError for a URL that is none, EngineError when
    nobody answers there, RequestError when the server refuses."""

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url must be http://HOST[:PORT] or https://HOST[:PORT], got {url!r}", field="url")
        self._parts = parts
        self._path = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self.model = model if model is not None else self._first_model()

    def answer(self, messages: list[Message], sampling: dict[str, Any]) -> Generator[str, None, None]:
        """Pieces of the answer as they come. Closing the iterator hangs up, which stops the server's work."""
        body = {"model": self.model, "messages": messages, "stream": True, **sampling}
        connection = self._connect()
        try:
            for line in self._ask(connection, "POST", "/chat/completions", body):
                data = line.strip().removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                if line.startswith(b"data:"):
                    yield from _pieces(json.loads(data))
            raise EngineError(f"{self._where} ended its answer too early")
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"{self._where} broke off: {error}") from error
        finally:
            connection.close()

    @property
    def _where(self) -> str:
        return f"{self._parts.scheme}://{self._parts.netloc}"

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.netloc, timeout=600)

    def _first_model(self) -> str:
        connection = self._connect()
        try:
            listed = json.loads(self._ask(connection, "GET", "/models", None).read())["data"]
            return str(listed[0]["id"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise EngineError(f"{self._where}{self._path}/models lists no model") from error
        finally:
            connection.close()

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any
    ) -> http.client.HTTPResponse:
        payload = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, self._path + path, payload, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"no answer from {self._where}: {error}") from error
        if response.status != 200:
            raise _refusal(response.status, response.read())
        return response


def _pieces(chunk: dict[str, Any]) -> Iterator[str]:
    """The text that a chunk adds. A server reports a fault in mid-stream as a chunk with an error."""
    if "error" in chunk:
        raise EngineError(str(chunk["error"].get("message", chunk["error"])))
    for choice in chunk.get("choices", ()):
        if choice.get("delta", {}).get("content"):
            yield choice["delta"]["content"]


def _refusal(status: int, body: bytes) -> HeadraceError:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body.decode("utf-8", "replace").strip()[:200] or "no reason given"
    text = f"the server answered {status}: {message}"
    return RequestError(text) if status < 500 else EngineError(text)
