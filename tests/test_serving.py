"""The whole server as its users see it: processes, a socket, signals, and the real default model."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

CODE = """
import json, sys
from headrace.core.config import Config
from headrace.core.errors import HeadraceError
from headrace.serving import serve
try:
    sys.exit(serve(Config(**json.loads(sys.argv[1]))))
except HeadraceError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(model: Path, **settings):
    """(url, process) of a server that has answered /health."""
    port = free_port()
    given = {"model": str(model), "port": port, "max_model_len": 2048, "num_kv_blocks": 512, **settings}
    process = subprocess.Popen([sys.executable, "-c", CODE, json.dumps(given)])
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(url), 30)
        yield url, process
    finally:
        for child in psutil.Process(process.pid).children() if process.poll() is None else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGCONT)
        process.terminate()
        process.terminate()
        process.wait(20)


def wait_for(condition, seconds=15.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this did not come true in time"
        time.sleep(0.02)


def health(url: str) -> int:
    return httpx.get(url + "/health", timeout=5).status_code


def answers(url: str) -> bool:
    try:
        return health(url) == 200
    except httpx.TransportError:
        return False


def complete(url: str, **body):
    given = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0, **body}
    return httpx.post(url + "/v1/completions", json=given, timeout=60)


def engine_of(process) -> psutil.Process:
    (child,) = psutil.Process(process.pid).children()
    return child


def kill_engine_in_mid_stream(url: str, engine: psutil.Process, streams) -> None:
    """It is a pause: the streams go on to their end, and who comes meanwhile is answered after it."""
    engine.kill()
    wait_for(lambda: health(url) == 503)
    waiting = complete(url)
    wait_for(lambda: health(url) == 200)
    for stream in streams:
        stream.join(60)
        assert stream.finish_reason() == "length"
    assert "Paris" in waiting.json()["choices"][0]["text"]


class Stream(threading.Thread):
    """A streamed completion, read in the background: its events and how it ended."""

    def __init__(self, url: str, **body) -> None:
        super().__init__()
        self.url, self.body, self.events = url, body, []
        self.begun = threading.Event()
        self.start()

    def run(self) -> None:
        given = {"prompt": "Count: one, two,", "temperature": 0, "ignore_eos": True, "stream": True, **self.body}
        with httpx.stream("POST", self.url + "/v1/completions", json=given, timeout=60) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.events.append(line.removeprefix("data: "))
                    self.begun.set()

    def told(self):
        """The text and the log-probabilities, however they were cut."""
        choices = [json.loads(event)["choices"][0] for event in self.events[:-1]]
        return "".join(c["text"] for c in choices), [p for c in choices for p in c["logprobs"]["token_logprobs"]]

    def finish_reason(self):
        assert self.events[-1] == "[DONE]"
        return json.loads(self.events[-2])["choices"][0]["finish_reason"]


@pytest.fixture(scope="module")
def server(default_model):
    with serving(default_model) as (url, process):
        yield url, process


def test_it_completes(server):
    url, _ = server
    answer = complete(url).json()
    assert "Paris" in answer["choices"][0]["text"]
    assert answer["usage"]["completion_tokens"] == 4


def test_case_43_a_stopped_engine_is_unhealthy_until_it_goes_on(server):
    url, process = server
    engine = engine_of(process)
    os.kill(engine.pid, signal.SIGSTOP)
    wait_for(lambda: health(url) == 503)
    os.kill(engine.pid, signal.SIGCONT)
    wait_for(lambda: health(url) == 200)
    assert complete(url).status_code == 200


def test_the_engine_is_a_process_of_its_own_in_a_private_folder(server):
    _, process = server
    sockets = [c.laddr for c in engine_of(process).net_connections("unix") if str(c.laddr).endswith("engine.sock")]
    assert sockets
    path = Path(sockets[0])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_an_idle_server_uses_no_processor(server):
    url, process = server
    complete(url, max_tokens=4)
    both = [psutil.Process(process.pid), engine_of(process)]

    def used() -> float:
        return sum(sum(each.cpu_times()[:2]) for each in both)

    time.sleep(0.2)  # what follows a request
    before = used()
    time.sleep(1.0)
    assert used() - before <= 0.05, "processor seconds in one second of waiting"


def test_case_48_sigterm_lets_streams_finish_and_refuses_new_requests(default_model, capfd):
    with serving(default_model) as (url, process):
        stream = Stream(url, max_tokens=200)
        assert stream.begun.wait(30)
        process.terminate()
        wait_for(lambda: health(url) == 503)
        assert complete(url).status_code == 503
        stream.join(120)
        assert stream.finish_reason() == "length"
        assert process.wait(20) == 0
    assert "finishing 1 request" in capfd.readouterr().err


def test_a_second_sigterm_stops_at_once(default_model):
    with serving(default_model) as (url, process):
        stream = Stream(url, max_tokens=2000)
        assert stream.begun.wait(30)
        process.terminate()
        wait_for(lambda: health(url) == 503)
        process.terminate()
        assert process.wait(20) == 0
        stream.join(20)
        assert "the server was stopped" in " ".join(stream.events)


def test_a_killed_engine_is_started_again_and_streams_go_on_unchanged(default_model):
    with serving(default_model) as (url, process):
        asked = {"temperature": 1, "seed": 7, "logprobs": 2, "max_tokens": 120}
        calm = Stream(url, **asked)
        calm.join(60)
        streams = [Stream(url, **asked), Stream(url, **asked | {"echo": True, "prompt": "One, two, three,"})]
        assert all(stream.begun.wait(30) for stream in streams)
        kill_engine_in_mid_stream(url, engine_of(process), streams)
        assert streams[0].told() == calm.told()


def test_the_engine_ends_when_the_api_is_killed(default_model):
    with serving(default_model) as (_, process):
        engine = engine_of(process)
        process.kill()
        process.wait()
        wait_for(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 10**6}, "ConfigError: max_model_len (1000000) must be at most 8192"),
        ({"host": "256.0.0.1"}, "ConfigError: cannot listen"),
        ({"model": "no/such/file.gguf"}, "ModelError: 'no/such/file.gguf'"),
    ],
)
def test_what_cannot_be_served_is_said_and_ends(default_model, settings, words):
    given = {"model": str(default_model), "port": free_port(), **settings}
    done = subprocess.run([sys.executable, "-c", CODE, json.dumps(given)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "words"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "")])
def test_a_signal_while_it_starts_ends_both_processes(default_model, tmp_path, number, words):
    given = {"model": str(default_model), "port": free_port()}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, json.dumps(given)],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job, and so all tests of one, is started with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_for(lambda: psutil.Process(process.pid).children())
    engine = engine_of(process)
    process.send_signal(number)
    assert words in process.communicate(timeout=60)[1]
    assert not engine.is_running()
    assert not list(tmp_path.glob("headrace-*"))


def test_a_server_that_ends_soon_says_nothing_of_it(default_model, capfd):
    with serving(default_model):
        pass
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_of_two_that_start_at_once_on_a_port_one_says_that_it_is_taken(default_model):
    given = {"model": str(default_model), "port": free_port()}
    command = [sys.executable, "-c", CODE, json.dumps(given)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        wait_for(lambda: any(one.poll() is not None for one in both), 30)
    finally:
        for one in both:
            one.terminate()
        said = [one.communicate(timeout=20)[1] for one in both]
    assert sum("cannot listen" in text and "Traceback" not in text for text in said) == 1


def test_an_admin_port_shows_what_the_api_does_not(default_model):
    admin = free_port()
    with serving(default_model, admin_port=admin) as (url, _):
        answer = complete(url).json()
        inside = f"http://127.0.0.1:{admin}"
        (told,) = httpx.get(f"{inside}/debug/requests/{answer['id']}", timeout=5).json()["requests"]
        assert told["record"]["generated_tokens"] == 4
        assert told["record"]["waited_s"] < told["record"]["ended_after_s"]
        steps = httpx.get(f"{inside}/debug/steps", timeout=5).json()["steps"]
        assert steps[0]["took_ms"] > 0
        assert "headrace:request_queue_time_seconds_count" in httpx.get(f"{inside}/metrics", timeout=5).text
        assert httpx.get(f"{url}/debug/steps", timeout=5).status_code == 404


def test_limits_are_each_keys_own(default_model, tmp_path):
    keys, limits = tmp_path / "keys.toml", tmp_path / "limits.toml"
    keys.write_text('[alice]\nkeys = ["key-of-alice-1234"]\n[bob]\nkeys = ["key-of-bob-12345"]\n')
    limits.write_text("[default]\nrequests_per_minute = 1\n")
    with serving(default_model, api_key_file=str(keys), tenant_limits=str(limits)) as (url, _):
        answers = [
            httpx.post(
                url + "/v1/completions",
                json={"prompt": "Hello", "max_tokens": 1},
                headers={"Authorization": f"Bearer {key}"},
                timeout=60,
            )
            for key in ("key-of-alice-1234", "key-of-alice-1234", "key-of-bob-12345")
        ]
        assert [answer.status_code for answer in answers] == [200, 429, 200]
        assert answers[1].json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(answers[1].headers["retry-after"]) <= 60
