"""An engine that answers a prompt with itself, one token a step, run by EngineLoop in a process of its own:
python echo_engine.py FOLDER serve|fail|die|other PARENT_PID. Prompt token 13 kills the process; 17 makes the
step slow; 19 makes it hang."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from headrace.core.errors import OverloadedError, RequestError
from headrace.core.request import FinishReason, OutputDelta
from headrace.engine.loop import EngineLoop, report_failure
from headrace.engine.wire import Ready, Stats

READY = Ready(max_model_len=1000, vocab_size=100, fingerprint="echo", blocks_total=8, block_size=16)


class EchoEngine:
    def __init__(self) -> None:
        self.live = {}
        self.steps = 0
        self.ended = []

    def add(self, request, now, *, replayed):
        if request.prompt_ids == [0]:
            raise RequestError("prompt: 0 is refused here", param="prompt", code="zero")
        if request.prompt_ids == [1]:
            raise OverloadedError("too much", retry_after=7.0)
        self.live[request.request_id] = (request, len(request.output_ids))

    def abort(self, request_ids, now):
        for request_id in request_ids:
            if self.live.pop(request_id, None):
                self.ended.append(OutputDelta(request_id, finish_reason=FinishReason.ABORT))

    @property
    def has_work(self):
        return bool(self.live or self.ended)

    def step(self, clock):
        self.steps += 1
        deltas, self.ended = self.ended, []
        for request_id, (request, done) in list(self.live.items()):
            token = request.prompt_ids[done % len(request.prompt_ids)]
            if token == 13:
                os.kill(os.getpid(), signal.SIGKILL)
            if token == 19:
                time.sleep(60)
            if token == 17:
                time.sleep(0.02)
            done += 1
            self.live[request_id] = (request, done)
            last = done == request.max_tokens
            deltas.append(OutputDelta(request_id, [token], finish_reason=FinishReason.LENGTH if last else None))
            if last:
                del self.live[request_id]
        return deltas

    def next_chore(self, now):
        return None

    def settle(self, clock, most_s):
        pass

    def inspect(self, request_id, steps, now):
        return [], []

    def stats(self):
        return Stats(step=self.steps, running=len(self.live))


def main(folder: Path, mode: str, parent: int) -> None:
    if mode == "fail":
        report_failure(folder, "no such model")
        sys.exit(1)
    if mode == "die":
        sys.exit(3)
    ready = READY if mode == "serve" else msgspec.structs.replace(READY, fingerprint=mode)
    loop = EngineLoop(EchoEngine(), folder, ready, parent=parent)
    loop.stop_on(signal.SIGTERM)
    loop.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
