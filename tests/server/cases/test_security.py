"""Public faults 60 to 64 and their neighbours: nothing a peer sends is run, fetched or trusted, and keys are told to
nobody. Files that lie are in tests/models/formats/ and tests/fuzz/.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.server.serving import CHAT, COMPLETIONS, http, refusal, user

import headrace
from headrace.server.api_keys import split_keys
from headrace.server.app import OPEN_PATHS, PAGES, ROUTES

SOURCES = sorted(Path(headrace.__file__).parent.rglob("*.py"))
RUNS_DATA = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "pty", "code"}
NEVER_CALLED = {"eval", "exec", "__import__", "compile"}


def test_case_60_nothing_that_a_peer_sends_is_run() -> None:
    assert len(SOURCES) > 150
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not RUNS_DATA.intersection(n.partition(".")[0] for n in names), path
            if isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else ""
                assert called not in NEVER_CALLED, f"{path}: {called}"
                plain = {k.arg: k.value for k in node.keywords}
                shell = plain.get("shell", plain.get("allow_pickle", plain.get("trust_remote_code")))
                assert shell is None or (isinstance(shell, ast.Constant) and shell.value is False), path


@pytest.mark.parametrize("route", [*ROUTES, *PAGES], ids=lambda route: route.path)
async def test_case_61_every_route_but_the_open_ones_needs_the_key(
    make_app: Callable[..., Starlette], route: Any
) -> None:
    path = route.path.replace("{model:path}", "x")
    async with http(make_app(api_keys=split_keys("secret"))) as client:
        for method in route.methods:
            response = await client.request(method, path)
            if path in OPEN_PATHS:
                assert response.status_code == 200
            else:
                assert response.status_code == 401
                assert "secret" not in response.text


async def test_case_61_admin_routes_are_not_on_the_clients_port(client: httpx.AsyncClient) -> None:
    for path in ("/debug", "/debug/requests/x", "/debug/steps", "/admin", "/shutdown", "/reset_prefix_cache", "/sleep"):
        for method in ("GET", "POST"):
            assert (await client.request(method, path)).status_code == 404


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chat_template", "{{ ''.__class__ }}"),
        ("chat_template_kwargs", {"messages": "x"}),
        ("chat_template_kwargs", {"enable_thinking": True}),
        ("mm_processor_kwargs", {"x": 1}),
        ("logits_processors", ["os.system"]),
        ("kv_transfer_params", {"do_remote_prefill": True, "remote_host": "example.com"}),
        ("ec_transfer_params", {}),
        ("prompt_embeds", "gASVAAAA"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_cases_62_64_no_client_brings_code_templates_or_peers(
    client: httpx.AsyncClient, path: str, field: str, value: Any
) -> None:
    body = user("hi") if path == CHAT else {"prompt": "hi"}
    assert refusal(await client.post(path, json={**body, field: value}))["param"] == field


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "audio_url", "audio_url": {"url": "http://127.0.0.1:22"}},
        {"type": "video_url", "video_url": {"url": "https://example.com"}},
        {"type": "input_audio", "input_audio": {"data": ""}},
        {"type": "file", "file": {"file_id": "../../etc/passwd"}},
    ],
)
async def test_case_64_nothing_is_fetched(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, part: dict[str, Any]
) -> None:
    monkeypatch.setattr("socket.create_connection", lambda *_, **__: pytest.fail("it was fetched"))
    response = await client.post(CHAT, json={"messages": [{"role": "user", "content": [part]}]})
    assert refusal(response)["param"].startswith("messages[0].content[0]")
