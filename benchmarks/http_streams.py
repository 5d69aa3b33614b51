"""What the way over HTTP costs: the same requests (random prompts, greedy, EOS ignored) run in one process, and as
streamed completions from as many clients at once to a server of its own, in turns; medians and their ratio.

    python benchmarks/http_streams.py [--model MODEL] [--clients 32] [--input-len 128] [--output-len 128] [--rounds 3]

The clients run here too and take their share of the processor, as they would not in use; they only count bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from stream_reader import stream

_IN_PROCESS = [sys.executable, "-m", "headrace", "bench", "throughput"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(model: list[str], port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", "serve", *model, "--port", str(port), "--no-enable-prefix-caching"]
    process = subprocess.Popen(command)
    for _ in range(1200):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return process
        except (urllib.error.URLError, ConnectionError):
            if process.poll() is not None:
                raise SystemExit("the server ended before it was ready") from None
            time.sleep(0.1)
    process.kill()
    raise SystemExit("the server was not ready in time")


async def run_streams(port: int, prompts: list[list[int]], output_len: int) -> float:
    """Output tokens a second, from the first connection to the last byte."""
    begun = time.perf_counter()
    asked = {"max_tokens": output_len, "temperature": 0, "ignore_eos": True}
    tokens = await asyncio.gather(*(stream(port, "/v1/completions", asked | {"prompt": each}) for each in prompts))
    return sum(tokens) / (time.perf_counter() - begun)


def run_in_process(model: list[str], options: argparse.Namespace) -> float:
    report = Path(tempfile.mkdtemp()) / "report.json"
    shape = ["--num-prompts", options.clients, "--input-len", options.input_len, "--output-len", options.output_len]
    command = [*_IN_PROCESS, *model, *map(str, shape), "--no-enable-prefix-caching", "--json", str(report)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    figures = json.loads(report.read_text())
    report.unlink()
    return float(figures["output_tokens_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = [options.model] if options.model else []
    draw = random.Random(0)
    inside, outside = [], []
    for _ in range(options.rounds):
        inside.append(run_in_process(model, options))
        port = free_port()
        server = start_server(model, port)
        try:
            prompts = [[draw.randrange(100, 40000) for _ in range(options.input_len)] for _ in range(options.clients)]
            asyncio.run(run_streams(port, prompts[:1], 8))
            outside.append(asyncio.run(run_streams(port, prompts, options.output_len)))
        finally:
            server.terminate()
            server.wait(60)
        print(f"in process {inside[-1]:.1f} tok/s, {options.clients} streams {outside[-1]:.1f} tok/s", flush=True)
    figures = {
        "in_process_tokens_per_s": statistics.median(inside),
        "http_tokens_per_s": statistics.median(outside),
        "ratio": statistics.median(outside) / statistics.median(inside),
    }
    print(json.dumps(figures))
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
