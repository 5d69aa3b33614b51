"""headrace bench serve against a served app over an engine that says what it is told to."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route
from tests.server.fake_engine import ByteTokenizer, FakeEngine, PlainTemplate, endless
from tests.server.serving import MODEL, served, settings

from headrace.cli import run
from headrace.core.errors import OverloadedError
from headrace.server.api_keys import split_keys
from headrace.server.app import create_app

SMALL = ("--random-input-len", "2", "--random-output-len", "5", "--num-prompts", "6")


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.reply = endless
    return engine


async def measured(app: Starlette, file: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The command's exit status and its report."""
    async with served(app) as port:
        given = ["bench", "serve", "--base-url", f"http://127.0.0.1:{port}", "--json", str(file), *SMALL, *arguments]
        status = await asyncio.to_thread(run, given)
    return status, json.loads(file.read_text()) if file.exists() else {}


def api(engine: FakeEngine, **changes: Any) -> Starlette:
    return create_app(engine, ByteTokenizer(), PlainTemplate(), settings(**changes))


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
async def test_every_request_is_answered_in_full(engine: FakeEngine, tmp_path: Path, backend: str, capsys) -> None:
    app = api(engine, api_keys=split_keys("k"))
    status, found = await measured(app, tmp_path / "out.json", "--backend", backend, "--api-key", "k")
    assert status == 0
    assert (found["completed"], found["failed"], found["output_tokens"]) == (6, 0, 30)
    assert found["input_tokens"] == sum(len(request.prompt_ids) for request in engine.added)
    assert found["goodput_share"] == 1.0
    assert set(found["ttft_ms"]) == {"mean", "p50", "p90", "p99"}
    assert found["max_stall_ms"] >= found["itl_ms"]["p99"] >= found["itl_ms"]["p50"]
    assert all(request.params.ignore_eos and request.max_tokens == 5 for request in engine.added)
    assert "goodput_per_s" in capsys.readouterr().out


async def test_bounds_concurrency_and_percentiles_are_kept(engine: FakeEngine, tmp_path: Path) -> None:
    engine.delay = 0.002
    status, found = await measured(
        api(engine), tmp_path / "out.json", "--max-concurrency", "2", "--slo-ttft-ms", "0.001", "--model", MODEL,
        "--metric-percentiles", "25", "--request-rate", "500", "--burstiness", "0.5",
    )  # fmt: skip
    assert status == 0
    assert (found["goodput_share"], found["max_concurrency"]) == (0.0, 2)
    assert set(found["tpot_ms"]) == {"mean", "p25"}


async def test_a_trace_says_what_is_sent(engine: FakeEngine, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": i, "input_length": 16, "output_length": 32, "hash_ids": [1]} for i in range(3)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    status, found = await measured(
        api(engine), tmp_path / "out.json", "--trace", str(trace), "--trace-scale", "16", "--trace-speed", "10"
    )
    assert (status, found["completed"], found["output_tokens"]) == (0, 3, 6)
    assert len({tuple(request.prompt_ids) for request in engine.added}) == 1


async def test_what_fails_is_counted_by_what_it_met_with(engine: FakeEngine, tmp_path: Path, capsys) -> None:
    turns = itertools.count()
    engine.refuse = lambda request: OverloadedError("full", retry_after=1) if next(turns) % 2 else None
    status, found = await measured(api(engine), tmp_path / "out.json")
    assert (status, found["completed"], found["errors"]) == (0, 3, {"HTTP 429": 3})
    engine.refuse = lambda request: OverloadedError("full", retry_after=1)
    status, found = await measured(api(engine), tmp_path / "out.json")
    assert (status, found["completed"], found["ttft_ms"]) == (1, 0, None)
    assert "no request of 6 was answered" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("events", "error"),
    [
        (['{"choices": [{"text": "a"}]}', '{"error": {"message": "late"}}', "[DONE]"], "error event"),
        (['{"choices": [{"text": "a"}]}'], "ended too early"),
        (['{"choices": []}', "[DONE]"], "no text came"),
        (["{", "[DONE]"], "DecodeError"),
    ],
)
async def test_answers_that_break_off_have_failed(tmp_path: Path, events: list[str], error: str) -> None:
    async def answer(request: Any) -> StreamingResponse:
        return StreamingResponse(iter(f"data: {event}\n\n" for event in events), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])
    status, found = await measured(app, tmp_path / "out.json", "--model", "m", "--num-prompts", "1")
    assert (status, found["errors"]) == (1, {error: 1})


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--base-url", "nowhere"), 2, "--base-url must be http"),
        (("--base-url", "http://127.0.0.1:1"), 1, "lists no model (ClientConnectorError: Cannot connect to host"),
        (("--base-url", "http://127.0.0.1:1", "--model", "m"), 1, "no request of 6 was answered"),
        (("--metric-percentiles", "99.9"), 2, "metric_percentiles must be whole numbers"),
    ],
)
def test_what_cannot_be_measured_is_said(arguments: tuple[str, ...], status: int, words: str, capsys) -> None:
    assert run(["bench", "serve", *SMALL, *arguments]) == status
    assert words in capsys.readouterr().err
