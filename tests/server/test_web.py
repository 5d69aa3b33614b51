"""The chat page, as files and in a real browser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from tests.server.browser import Browser, running_browser
from tests.server.fake_engine import FakeEngine, endless, say
from tests.server.serving import http, refusal, served

from headrace.core.errors import RequestError
from headrace.server.api_keys import split_keys
from headrace.server.web import PAGE_PATHS


@pytest.mark.parametrize("path", PAGE_PATHS)
async def test_the_page_may_do_little(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "http://" not in response.text and "https://" not in response.text


async def test_the_page_needs_no_key_and_what_it_asks_does(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(api_keys=split_keys("k"))) as client:
        assert (await client.get("/")).status_code == 200
        refusal(await client.get("/v1/models"), 401)
        refusal(await client.get("/web/../server"), 401)


def talk(browser: Browser, url: str, engine: FakeEngine) -> None:
    browser.open(url)
    browser.wait_for("document.querySelector('#model').textContent == 'test-model'")
    ask(browser, "<b>hi</b>")
    assert browser.text("article.user") == "<b>hi</b>"
    assert browser.text("article.assistant") == "Say <i>what</i> \u2615?"
    assert browser.run("return document.querySelectorAll('article i, article b').length") == 0
    figures = browser.text("#figures")
    assert "tokens/s" in figures and "7 cached" in figures and "first after" in figures
    ask(browser, "again")
    said = bytes(engine.added[-1].prompt_ids).decode()
    assert said == "user:<b>hi</b>\nassistant:Say <i>what</i> \u2615?\nuser:again\nassistant:"
    engine.reply, engine.delay = endless, 0.01
    browser.type("#text", "on and on", enter=True)
    browser.wait_for("document.querySelectorAll('article.assistant')[2]?.textContent.length > 3")
    browser.click("#stop")
    browser.wait_for("!document.querySelector('#send').disabled")
    engine.refuse = lambda request: RequestError("it cannot be so", param="messages")
    ask(browser, "refused")
    assert browser.text("article.error") == "it cannot be so"
    # A refusal is told in the console too, and nothing else is.
    assert [m for m in browser.messages() if "400" not in m] == []


def ask(browser: Browser, text: str) -> None:
    browser.type("#text", text, enter=True)
    browser.wait_for("!document.querySelector('#send').disabled")


async def test_someone_talks_in_a_browser(
    make_app: Callable[..., Starlette], engine: FakeEngine, tmp_path: Path
) -> None:
    engine.reply, engine.delay, engine.cached_tokens = say("Say <i>what</i> \u2615?"), 0.002, 7
    async with served(make_app()) as port:

        def session() -> None:
            with running_browser(tmp_path) as browser:
                talk(browser, f"http://127.0.0.1:{port}/", engine)

        await asyncio.to_thread(session)
        while engine.live:
            await asyncio.sleep(0.01)
    assert engine.added[2].request_id in engine.aborted
