"""The chat client against small servers that speak, refuse, break off and misbehave."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from headrace import cli
from headrace.commands.remote import RemoteChat
from headrace.core.errors import ConfigError, EngineError, RequestError

MESSAGES = [{"role": "user", "content": "hello"}]


def chunk(**delta) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"


SPOKEN = [chunk(role="assistant", content=""), chunk(content="Grüß "), b": a comment\n\n", chunk(content="dich")]
DONE = b"data: [DONE]\n\n"


class Server(http.server.ThreadingHTTPServer):
    """Answers chat with `status` and `body`, and lists one model. Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.body = 200, [*SPOKEN, DONE]
        self.asked: list[tuple[str, dict, str | None]] = []
        self.models = [{"id": "small"}, {"id": "large"}]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.reply(200, [json.dumps({"data": self.server.models}).encode()])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, self.headers["Authorization"]))
        self.reply(self.server.status, self.server.body)

    def reply(self, status: int, pieces: list[bytes]) -> None:
        self.send_response(status)
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)

    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_answer_comes_in_pieces(server, suffix):
    chat = RemoteChat(server.url + suffix, api_key="secret")
    assert list(chat.answer(MESSAGES, {"temperature": 0.5})) == ["Grüß ", "dich"]
    path, body, key = server.asked[0]
    assert path == "/v1/chat/completions"
    assert body == {"model": "small", "messages": MESSAGES, "stream": True, "temperature": 0.5}
    assert key == "Bearer secret"


def test_a_named_model_is_asked_for(server):
    list(RemoteChat(server.url, "large").answer(MESSAGES, {}))
    assert server.asked[0][1]["model"] == "large"


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (400, b'{"error": {"message": "temperature must be from 0 to 2"}}', RequestError, "400: temperature must be"),
        (429, b"busy", RequestError, "429: busy"),
        (500, b"", EngineError, "500: no reason given"),
    ],
)
def test_a_refusal_is_told(server, status, body, error, says):
    server.status, server.body = status, [body]
    with pytest.raises(error, match=says):
        list(RemoteChat(server.url, "m").answer(MESSAGES, {}))


def test_an_answer_that_breaks_off_is_told(server):
    server.body = SPOKEN
    stream = RemoteChat(server.url, "m").answer(MESSAGES, {})
    assert next(stream) == "Grüß "
    with pytest.raises(EngineError, match="ended its answer too early"):
        list(stream)


def test_an_error_in_mid_stream_is_told(server):
    server.body = [*SPOKEN, b'data: {"error": {"message": "the engine is gone"}}\n\n']
    with pytest.raises(EngineError, match="the engine is gone"):
        list(RemoteChat(server.url, "m").answer(MESSAGES, {}))


def test_a_server_without_models_is_told(server):
    server.models = []
    with pytest.raises(EngineError, match="lists no model"):
        RemoteChat(server.url)


def test_nobody_there_is_told(server):
    url = server.url
    server.server_close()
    with pytest.raises(EngineError, match="no answer from"):
        list(RemoteChat(url, "m").answer(MESSAGES, {}))


@pytest.mark.parametrize("url", ["ftp://host", "http://", "file:///etc/passwd"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ConfigError, match="--url must be"):
        RemoteChat(url, "m")


def test_settings_of_an_engine_here_are_refused(capsys):
    assert cli.run(["chat", "--url", "http://127.0.0.1:1", "--max-num-seqs", "3"]) == 2
    assert "max_num_seqs is a setting of a model in this process" in capsys.readouterr().err
