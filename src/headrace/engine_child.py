"""The engine's process, which engine_process.py starts: it reads what is wanted from its standard input, builds an
engine and serves its socket, until a signal, a message or its parent's end. Nothing to read means that none is wanted.
"""

import logging
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from headrace.collector import settle
from headrace.core.config import Config
from headrace.core.errors import ConfigError, HeadraceError, ModelError
from headrace.engine.kv_events import EventPublisher
from headrace.engine.loop import EngineLoop, report_failure
from headrace.engine_process import SETTINGS_AT_FAULT, Start, installed_package
from headrace.models.grammar import WARM_AFTER_S

try:
    from headrace.launch import BuiltEngine, build_engine
except HeadraceError as refused:  # kernels of other sources
    sys.exit(f"error: {refused}")


def _show_loading(done: int, total: int) -> None:
    """On the terminal, one line that is gone when all is loaded."""
    text = f"loading weights: {100 * done // total} %" if done < total else ""
    sys.stderr.write(f"\r{text:<30}\r")
    sys.stderr.flush()


def _warm_when_idle(built: BuiltEngine, ended: threading.Event) -> None:
    """Get ready for forms of outputs while nobody waits for anything."""
    while not ended.wait(WARM_AFTER_S):
        if not built.engine.has_work:
            built.grammars.warm()
            return


def _event_publisher(config: Config) -> EventPublisher | None:
    if config.kv_events_endpoint is None:
        return None
    return EventPublisher(config.kv_events_endpoint, config.kv_events_replay_endpoint, time.time())


def main() -> int:
    """Returns the exit status."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    plain = logging.StreamHandler(sys.stderr)
    notes = logging.getLogger("headrace.notes")
    notes.addHandler(plain)
    notes.propagate = False
    given = sys.stdin.buffer.read()
    if not given:
        return 0
    start = msgspec.msgpack.decode(given, type=Start)
    folder = Path(start.folder)
    if start.package != installed_package():
        report_failure(folder, "headrace was installed anew under the running server: restart the server")
        return SETTINGS_AT_FAULT
    try:
        events = _event_publisher(start.config)
        built = build_engine(start.config, progress=_show_loading if sys.stderr.isatty() else None)
    except HeadraceError as error:
        report_failure(folder, str(error))
        return SETTINGS_AT_FAULT if isinstance(error, ConfigError | ModelError) else 1
    loop = EngineLoop(built.engine, folder, built.ready, parent=start.parent, events=events)
    loop.stop_on(signal.SIGTERM)
    settle()
    ended = threading.Event()
    warming = threading.Thread(target=_warm_when_idle, args=(built, ended), name="headrace-warming", daemon=True)
    warming.start()
    loop.run()
    # A thread that lives on would keep the engine, of which the kernels say at the exit that it leaks.
    ended.set()
    warming.join(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
