"""Several API processes over one engine, as clients see them: one server, whatever of it ends."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys

import httpx
import psutil
import pytest
from tests.test_serving import CODE, Stream, complete, free_port, health, kill_engine_in_mid_stream, serving, wait_for

from headrace.core.errors import ConfigError
from headrace.serving import _bind_all


def children(process, module: str) -> list[psutil.Process]:
    return [c for c in psutil.Process(process.pid).children() if module in " ".join(c.cmdline())]


def apis(process) -> list[psutil.Process]:
    return children(process, "headrace.api_child")


def the_engine(process) -> psutil.Process:
    (engine,) = children(process, "headrace.engine_child")
    return engine


def served_by(process, port: int) -> dict[int, int]:
    """Connections open now, by the API process that has them."""
    return {
        api.pid: sum(1 for c in api.net_connections("tcp") if c.status == "ESTABLISHED" and c.laddr.port == port)
        for api in apis(process)
    }


class CutStream(Stream):
    """One whose server may vanish."""

    def run(self) -> None:
        with contextlib.suppress(httpx.RemoteProtocolError):
            super().run()


def on_both(url: str, process, **body) -> list[Stream]:
    """Streams, begun, of which each API process has one at least."""
    port = int(url.rpartition(":")[2])
    streams: list[Stream] = [CutStream(url, **body)]
    while not all(served_by(process, port).values()) or not all(stream.begun.wait(30) for stream in streams):
        assert len(streams) < 40, "one process takes all connections"
        streams.append(CutStream(url, **body))
    return streams


def finished(url: str) -> float:
    text = httpx.get(url + "/metrics", timeout=30).text
    (count,) = re.findall(r'request_success_total\{finished_reason="length",.*\} (.*)', text)
    return float(count)


@pytest.fixture(scope="module")
def server(default_model):
    with serving(default_model, api_server_count=2, access_log=True) as (url, process):
        wait_for(lambda: len(apis(process)) == 2)
        yield url, process


def test_any_process_tells_the_metrics_of_all(server):
    url, process = server
    before = finished(url)
    streams = on_both(url, process, max_tokens=60)
    for stream in streams:
        stream.join(60)
    assert {finished(url) for _ in range(12)} == {before + len(streams)}


def test_an_engine_that_is_killed_is_a_pause_for_the_streams_of_every_process(server):
    url, process = server
    asked = {"temperature": 1, "seed": 7, "logprobs": 2, "max_tokens": 150}
    calm = Stream(url, **asked)
    calm.join(60)
    streams = on_both(url, process, **asked)
    kill_engine_in_mid_stream(url, the_engine(process), streams)
    for stream in streams:
        assert stream.told() == calm.told()


def test_a_killed_api_process_takes_its_own_streams_alone_and_is_started_again(server):
    url, process = server
    streams = on_both(url, process, max_tokens=300)
    victim = apis(process)[0]
    before = finished(url)
    victim.kill()
    ends = []
    for stream in streams:
        stream.join(60)
        ends.append(stream.events[-1] == "[DONE]")
    assert True in ends and False in ends
    wait_for(lambda: len(apis(process)) == 2)
    assert finished(url) == before + sum(ends)
    running = r"num_requests_running\{.*\} 0\.0"
    wait_for(lambda: re.search(running, httpx.get(url + "/metrics", timeout=30).text) is not None)
    for stream in on_both(url, process, max_tokens=100):
        stream.join(60)
        assert stream.finish_reason() == "length"


def test_requests_without_a_seed_get_different_ones_in_every_process(server):
    url, process = server
    streams = on_both(url, process, max_tokens=40, temperature=1)
    for stream in streams:
        stream.join(60)
    texts = ["".join(re.findall(r'"text":"(.*?)"', event)[0] for event in s.events[:-1]) for s in streams]
    assert len(set(texts)) == len(texts)


def test_sigterm_drains_every_process_and_the_second_does_not_wait(default_model):
    with serving(default_model, api_server_count=2) as (url, process):
        wait_for(lambda: len(apis(process)) == 2)
        all_of_it = [*apis(process), the_engine(process)]
        short, streams = Stream(url, max_tokens=100), on_both(url, process, max_tokens=1900)
        assert short.begun.wait(30)
        process.terminate()
        wait_for(lambda: health(url) == 503)
        assert complete(url).status_code == 503
        short.join(60)
        assert short.finish_reason() == "length"
        process.terminate()
        assert process.wait(20) == 0
        for stream in streams:
            stream.join(20)
            assert "the server was stopped" in " ".join(stream.events)
        wait_for(lambda: not any(each.is_running() for each in all_of_it))


def test_all_end_with_the_supervisor(default_model):
    with serving(default_model, api_server_count=2) as (_, process):
        all_of_it = [*apis(process), the_engine(process)]
        process.kill()
        process.wait()
        wait_for(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in all_of_it))


def test_of_two_that_start_on_one_port_at_once_the_second_is_refused():
    bound, claim = _bind_all("127.0.0.1", 0, 2)
    port = bound[0].getsockname()[1]
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: another server starts there; choose"):
        _bind_all("127.0.0.1", port, 2)
    for one in (*bound, claim):
        one.close()
    again, claim = _bind_all("127.0.0.1", port, 2)
    for one in (*again, claim):
        one.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 10**6}, "ConfigError: max_model_len (1000000) must be at most 8192"),
        ({"api_server_count": 0}, "ConfigError: api_server_count must be from 1 to 64, got 0"),
        ({"api_key_file": "no-such-file"}, "error: api_key_file"),
    ],
)
def test_what_cannot_be_served_is_said_once_and_leaves_no_process(default_model, settings, words):
    given = {"model": str(default_model), "port": free_port(), "api_server_count": 2, **settings}
    code = CODE.replace("Config(**json.loads(sys.argv[1]))", "Config(**json.loads(sys.argv[1])).resolve()")
    done = subprocess.run([sys.executable, "-c", code, json.dumps(given)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
