"""A server that does not come up is told about, with what it wrote."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from headrace.bench.startup import answers, free_port, measure_startup
from headrace.core.errors import EngineError


def test_a_server_that_ends_is_an_error_with_its_last_words(tmp_path):
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"block_size": 7}))
    with pytest.raises(EngineError, match="block_size must be one of 16, 32, got 7"):
        measure_startup(settings, tmp_path / "log", timeout_s=60)


@pytest.mark.parametrize(("status", "expected"), [(200, True), (503, False)])
def test_only_200_counts_as_ready(status, expected):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *arguments) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert answers(server.server_port) is expected
        thread.join()


def test_nothing_listening_is_not_ready():
    assert answers(free_port()) is False
