"""A real browser, headless, driven by WebDriver over plain HTTP."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_ENTER = "\ue007"


class Browser:
    """One window. Elements are found by CSS selectors."""

    def __init__(self, url: str) -> None:
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._http = httpx.Client(base_url=url, timeout=60)
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{session['sessionId']}"

    def open(self, url: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": url})

    def type(self, selector: str, text: str, *, enter: bool = False) -> None:
        self._act(selector, "value", {"text": text + (_ENTER if enter else "")})

    def click(self, selector: str) -> None:
        self._act(selector, "click", {})

    def run(self, script: str) -> Any:
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def text(self, selector: str) -> str:
        return self.run(f"return [...document.querySelectorAll({selector!r})].map(e => e.textContent).join('|')")

    def wait_for(self, condition: str) -> None:
        """Until a JavaScript expression is true; the test's own timeout is the limit."""
        while not self.run(f"return Boolean({condition})"):
            time.sleep(0.02)

    def messages(self) -> list[str]:
        """What the console was told: errors, and what the content security policy barred."""
        return [entry["message"] for entry in self._ask("POST", f"{self._session}/se/log", {"type": "browser"})]

    def close(self) -> None:
        self._ask("DELETE", self._session, None)
        self._http.close()

    def _act(self, selector: str, action: str, body: dict[str, Any]) -> None:
        found = self._ask("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"{self._session}/element/{found[_ELEMENT]}/{action}", body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        response = self._http.request(method, path, json=body)
        value = response.json()["value"]
        assert response.status_code == 200, value
        return value


@contextmanager
def running_browser(folder: Path) -> Iterator[Browser]:
    """Skips the test where there is no chromium with its driver, or it cannot run here."""
    driver = shutil.which("chromedriver")
    if driver is None or not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("there is no chromium with its driver here (Debian: chromium, chromium-driver)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "driver.log").open("w") as log:
        process = subprocess.Popen([driver, f"--port={port}"], stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        while not _ready(url):
            assert process.poll() is None, (folder / "driver.log").read_text()
        browser = Browser(url)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        process.terminate()
        process.wait()


def _ready(url: str) -> bool:
    try:
        return bool(httpx.get(f"{url}/status").json()["value"]["ready"])
    except httpx.TransportError:
        time.sleep(0.05)
        return False
