"""headrace explain: what became of a request on a running server, and why, in sentences."""

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import click

from headrace.commands.report import json_option, write_json
from headrace.core.errors import ConfigError, EngineError, RequestError

_TIMEOUT_S = 60


@click.command()
@click.argument("request_id")
@click.option("--url", default="http://127.0.0.1:8001", show_default=True, help="Where the server's --admin-port is.")
@json_option
def explain(request_id: str, url: str, json_file: Path | None) -> None:
    """Say why REQUEST_ID waited, missed the cache or lost its place. It is the id of the answer; the server must run
    with --admin-port."""
    found = _ask(url, f"/debug/requests/{quote(request_id, safe='')}")
    for number, one in enumerate(found["requests"]):
        click.echo(("\n" if number else "") + str(one["record"]["request_id"]))
        for sentence in one["explanation"]:
            click.echo(f"  {sentence}")
    write_json(found, json_file)


def _ask(url: str, path: str) -> dict[str, Any]:
    """The JSON object at a path of a server. Raises ConfigError for a URL that is none, EngineError if nobody answers,
    RequestError when the server refuses."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"--url must be http://HOST:PORT, got {url!r}", field="url")
    connection = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        status, body = response.status, response.read()
        answer = json.loads(body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise EngineError(f"no answer from {url}: {error}; is it the address of --admin-port?") from error
    finally:
        connection.close()
    if status != 200:
        message = answer["error"]["message"] if isinstance(answer, dict) and "error" in answer else str(answer)
        if status == 401 or (status == 404 and "there is no /debug" in message):
            message = "that is not the server's --admin-port, where it shows such things"
        raise RequestError(message)
    found: dict[str, Any] = answer
    return found
