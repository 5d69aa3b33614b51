"""headrace explain against a served app over an engine that remembers one request."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.server.fake_engine import ByteTokenizer, FakeEngine, PlainTemplate
from tests.server.serving import served, settings

from headrace.cli import run
from headrace.policy.records import RequestRecord
from headrace.server.admin import create_admin_app
from headrace.server.app import create_app


async def explained(*arguments: str, admin: bool = True) -> int:
    """The command's exit status against a server of its own, whose URL stands for URL."""
    engine = FakeEngine()
    engine.records = [RequestRecord("cmpl-1-0-0", "running", "", 0, None, 12, 5, age_s=1.5)]
    app = create_app(engine, ByteTokenizer(), PlainTemplate(), settings())
    async with served(create_admin_app(app.state.service) if admin else app) as port:
        url = f"http://127.0.0.1:{port}"
        given = ["explain", *(argument.replace("URL", url) for argument in arguments)]
        return await asyncio.to_thread(run, given)


async def test_it_says_what_is_known_and_writes_it(capsys, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert await explained("cmpl-1", "--url", "URL", "--json", str(file)) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["cmpl-1-0-0", "  It is running, 1.5 s after its arrival: 12 prompt tokens."]
    assert json.loads(file.read_text())["requests"][0]["record"]["prompt_tokens"] == 12


async def test_refusals_and_silence_are_told(capsys) -> None:
    assert await explained("cmpl-2", "--url", "URL") == 2
    assert "no request 'cmpl-2' is remembered" in capsys.readouterr().err
    assert await explained("cmpl-1", "--url", "URL", admin=False) == 2
    assert "--admin-port" in capsys.readouterr().err
    assert await explained("cmpl-1", "--url", "http://127.0.0.1:1") == 1
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err
    assert await explained("cmpl-1", "--url", "ftp://x") == 2
