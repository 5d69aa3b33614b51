"""What a streamed token costs the API's process: processor time of a server over NullExecutor, a device that answers
with hashes, per token that its streams carry. Engine and clients have processes of their own and do not count.

    python benchmarks/http_overhead.py [--model MODEL] [--streams 64] [--output-len 256] [--rounds 3] [--json FILE]

MODEL's tokenizer and chat template are the server's; its weights are not loaded. Both routes are measured, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil
import uvicorn
from stream_reader import stream

from headrace.collector import settle
from headrace.core.config import Config
from headrace.engine.client import ProcessClient
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.engine.loop import EngineLoop
from headrace.engine.null_executor import NullExecutor
from headrace.engine.wire import Ready
from headrace.models.sources import locate_model
from headrace.models.text import load_text
from headrace.server.app import create_app
from headrace.server.connection import Connection
from headrace.server.settings import ServerSettings

CONTEXT = 1024
BLOCK = 16


class ChildEngine:
    """The engine's process, which is this file run again."""

    def __init__(self, vocab_size: int, slots: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-"))
        command = [sys.executable, __file__, "engine", str(self.folder), str(vocab_size), str(slots)]
        self.process = subprocess.Popen(command)

    def exit_status(self) -> int | None:
        return self.process.poll()

    def kill(self) -> None:
        self.process.kill()

    def restart(self) -> None:
        raise AssertionError("a benchmark's engine is not started again")


def run_engine(folder: Path, vocab_size: int, slots: int) -> None:
    blocks = slots * CONTEXT // BLOCK
    capacity = Capacity(slots, BLOCK, (blocks,), (None,), CONTEXT, vocab_size)
    config = Config(max_num_seqs=slots, max_num_batched_tokens=512, enable_prefix_caching=False)
    ready = Ready(CONTEXT, vocab_size, "null", blocks, BLOCK)
    EngineLoop(Engine(NullExecutor(capacity), config), folder, ready).run()


async def run_api(model: str, slots: int) -> None:
    text = load_text(Path(locate_model(Config(model=model).resolve()).model))
    engine = ChildEngine(text.tokenizer.vocab_size, slots)
    client = ProcessClient(engine)
    try:
        await client.start()
        settings = ServerSettings("null", "0", 0, eos_ids=text.tokenizer.eos_ids)
        app = create_app(client, text.tokenizer, text.chat_template, settings)
        config = uvicorn.Config(app, port=0, http=Connection, log_level="critical", lifespan="on")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        settle()
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await task
    finally:
        client.close()
        engine.kill()


async def run_streams(port: int, path: str, streams: int, length: int) -> int:
    more = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    body = {
        **more,
        "max_tokens": length,
        "ignore_eos": True,
    }
    return sum(await asyncio.gather(*(stream(port, path, body) for _ in range(streams))))


def measure(api: psutil.Process, port: int, path: str, streams: int, length: int) -> tuple[float, float, float]:
    """Microseconds of the API's processor time per token, those of them in the kernel, and tokens a second."""
    before, begun = api.cpu_times(), time.perf_counter()
    tokens = asyncio.run(run_streams(port, path, streams, length))
    after, elapsed = api.cpu_times(), time.perf_counter() - begun
    spent = after.user + after.system - before.user - before.system
    return 1e6 * spent / tokens, 1e6 * (after.system - before.system) / tokens, tokens / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=Config().model)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    command = [sys.executable, __file__, "api", options.model, str(options.streams)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    port = int(process.stdout.readline())
    api = psutil.Process(process.pid)
    figures: dict[str, list[float]] = {}
    try:
        for path in ("/v1/completions", "/v1/chat/completions"):
            asyncio.run(run_streams(port, path, 4, 16))
        for _ in range(options.rounds):
            for name in ("completions", "chat/completions"):
                cost, kernel, rate = measure(api, port, f"/v1/{name}", options.streams, options.output_len)
                print(f"{name}: {cost:.1f} us a token, {kernel:.1f} in the kernel, at {rate:.0f} tokens/s", flush=True)
                figures.setdefault(name, []).append(cost)
    finally:
        process.stdin.close()
        process.wait()
    medians = {f"{name.replace('/', '_')}_us_per_token": statistics.median(costs) for name, costs in figures.items()}
    print(json.dumps(medians))
    if options.json:
        options.json.write_bytes(msgspec.json.encode(medians))


if __name__ == "__main__":
    match sys.argv[1:2]:
        case ["engine"]:
            run_engine(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        case ["api"]:
            # The event loop that a server runs on.
            with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
                runner.run(run_api(sys.argv[2], int(sys.argv[3])))
        case _:
            main()
