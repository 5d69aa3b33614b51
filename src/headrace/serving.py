"""serve(): the API and its engine, each in a process of its own, until a signal ends both. The engine's process is
started before this one imports its web framework, so that both load side by side. With several API processes this one
only watches over them and the engine (supervisor.py).
"""

import dataclasses
import importlib
import signal
import socket
import sys
from pathlib import Path

from headrace.core.config import Config
from headrace.core.errors import ConfigError, EngineDeadError
from headrace.engine_process import SETTINGS_AT_FAULT, EngineProcess
from headrace.models.sources import locate_model

ADMIN_HOST = "127.0.0.1"
"""Who can reach it needs no key, so it is this machine alone."""


def serve(config: Config) -> int:
    """Returns the exit status. Raises ConfigError, ModelError, MachineError, or EngineDeadError with the reason for
    which the engine could not start."""
    name = config.served_model_name or _api_name(config.model)
    config = dataclasses.replace(locate_model(config), served_model_name=name)
    listeners, claim = _bind_all(config.host, config.port, config.api_server_count)
    admin = None if config.admin_port is None else _bind(ADMIN_HOST, config.admin_port, "admin_port")
    # Until who serves takes signals: it must not leave an engine behind that still loads.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    engine = EngineProcess(config)
    try:
        # Not at the top: importing these takes longer than all else this process does before it is ready.
        if config.api_server_count > 1:
            supervisor = importlib.import_module("headrace.supervisor")
            status: int = supervisor.Supervisor(config, engine, listeners, admin).run()
        else:
            status = importlib.import_module("headrace.api_process").run(config, engine, listeners[0], admin)
        return status
    except EngineDeadError as error:
        engine.close()
        if engine.exit_status() == SETTINGS_AT_FAULT:
            raise ConfigError(str(error)) from error
        raise
    except BaseException:
        engine.terminate()
        raise
    finally:
        for bound in (*listeners, admin, claim):
            if bound is not None:
                bound.close()
        engine.close()


def _api_name(model: str) -> str:
    """A file or folder goes by its own name, any other model by the name it was asked for."""
    path = Path(model)
    return path.name.removesuffix(".gguf") or model if path.exists() else model


def _bind_all(host: str, port: int, count: int) -> tuple[list[socket.socket], socket.socket | None]:
    """A listener for each API process, and what is held as long as they are. Linux spreads connections evenly over
    sockets that share a port; elsewhere all have the same one."""
    listener = _bind(host, port, "port")
    if count == 1 or sys.platform != "linux":
        return [listener] * count, None
    # Taken alone, it has shown that nobody else listens there, which sockets that share would not. Who is about to
    # listen has a name, which the kernel gives to one alone and takes back when that one ends.
    host, port = listener.getsockname()[:2]
    listener.close()
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0headrace {host}:{port}")
    except OSError as error:
        claim.close()
        raise _cannot_listen(host, port, "another server starts there", "port") from error
    return [_bind(host, port, "port", shared=True) for _ in range(count)], claim


def _bind(host: str, port: int, field: str, *, shared: bool = False) -> socket.socket:
    """Take the address before anything is loaded for it. field: the setting that the port is from. shared: with others
    that are bound so."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise _cannot_listen(host, port, why, field) from error
    return listener


def _cannot_listen(host: str, port: int, why: object, field: str) -> ConfigError:
    flag = field.replace("_", "-")
    return ConfigError(f"cannot listen on {host}:{port}: {why}; choose another --host or --{flag}", field=field)
