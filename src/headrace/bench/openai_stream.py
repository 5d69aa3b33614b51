"""A client of any OpenAI server's streamed answers, for measuring: it notes when each chunk came and what the server
says it computed. Needs aiohttp, which the `bench` extra brings.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec

from headrace.bench.arrivals import Planned
from headrace.bench.outcome import Outcome
from headrace.core.errors import EngineError

_SILENCE_S = 600.0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


@dataclass(frozen=True, slots=True)
class Target:
    """base_url ends before /v1. chat: by /v1/chat/completions, else by /v1/completions."""

    base_url: str
    model: str
    chat: bool = False
    ignore_eos: bool = True
    temperature: float = 0.0
    api_key: str | None = None

    @property
    def url(self) -> str:
        return f"{self.base_url}/v1/chat/completions" if self.chat else f"{self.base_url}/v1/completions"

    def body(self, planned: Planned) -> dict[str, object]:
        asked: dict[str, object] = {
            "model": self.model,
            "max_tokens": planned.output_len,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            asked["ignore_eos"] = True
        if self.chat:
            return {**asked, "messages": [{"role": "user", "content": planned.prompt}]}
        return {**asked, "prompt": planned.prompt}

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}


def session(target: Target) -> aiohttp.ClientSession:
    """As many connections as there are requests; a proxy of the environment is left alone."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_S),
        headers=target.headers,
    )


def named(target: Target, model: str) -> Target:
    return replace(target, model=model)


async def first_model(client: aiohttp.ClientSession, base_url: str) -> str:
    """The first model that a server lists. Raises EngineError."""
    try:
        async with client.get(f"{base_url}/v1/models") as response:
            return str((await response.json())["data"][0]["id"])
    except (aiohttp.ClientError, KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineError(
            f"{base_url} lists no model ({type(error).__name__}: {error}); name one with --model"
        ) from error


async def ask(client: aiohttp.ClientSession, target: Target, planned: Planned) -> Outcome:
    """One request from its first byte to its last. What fails is told in the outcome."""
    outcome = Outcome(begun=time.perf_counter())
    try:
        async with client.post(target.url, json=target.body(planned)) as response:
            if response.status != 200:
                outcome.error = f"HTTP {response.status}"
            else:
                await _read(response.content, outcome)
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
        outcome.error = type(error).__name__
    outcome.ended = time.perf_counter()
    return outcome


async def _read(content: aiohttp.StreamReader, outcome: Outcome) -> None:
    rest = b""
    done = False
    async for piece in content.iter_any():
        now = time.perf_counter()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                done = True
                continue
            chunk = _decode(data)
            if chunk.error is not None:
                outcome.error = "error event"
                return
            if chunk.usage is not None:
                outcome.prompt_tokens = chunk.usage.prompt_tokens
                outcome.output_tokens = chunk.usage.completion_tokens
            if any(_brings(choice) for choice in chunk.choices):
                outcome.chunks.append(now)
    if not done:
        outcome.error = "ended too early"
    elif not outcome.chunks:
        outcome.error = "no text came"


def _brings(choice: _Choice) -> bool:
    delta = choice.delta
    return bool(choice.text or (delta is not None and (delta.content or delta.reasoning_content)))
