"""The command line's front: what each failure prints and returns, and what --help may import."""

from __future__ import annotations

import subprocess
import sys
import types

import click
import pytest

import headrace
from headrace import cli
from headrace.core.errors import ConfigError, EngineError, MachineError, ModelError, RequestError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Replaces `headrace serve` by a command that raises what it is told to."""

    def install(error: BaseException) -> None:
        @click.command()
        def command() -> None:
            raise error

        module = types.ModuleType("fake_command")
        module.serve = command
        monkeypatch.setitem(sys.modules, "fake_command", module)
        monkeypatch.setitem(cli.COMMANDS, "serve", ("fake_command", "serve", "Serve."))

    return install


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("port must be from 0 to 65535, got 70000", field="port"), 2),
        (ModelError("model.gguf: tensor 'x' is torn"), 2),
        (RequestError("temperature must be from 0 to 2, got 5", param="temperature"), 2),
        (MachineError("8 GiB are needed, 4 GiB are free"), 1),
        (EngineError("the step failed"), 1),
    ],
)
def test_an_error_is_one_line_and_a_status(failing, capsys, error, status):
    failing(error)
    assert cli.run(["serve"]) == status
    captured = capsys.readouterr()
    assert captured.err == f"error: {error}\n"
    assert captured.out == ""


def test_a_fault_of_ours_is_not_hidden(failing):
    failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.run(["serve"])


def test_ctrl_c_is_no_error(failing, capsys):
    failing(KeyboardInterrupt())
    assert cli.run(["serve"]) == 130
    assert "error" not in capsys.readouterr().err


def test_an_unknown_command_is_refused_with_the_nearest(capsys):
    assert cli.run(["sevre"]) == 2
    assert capsys.readouterr().err == "error: no command 'sevre'; did you mean serve?\n"


def test_an_unknown_command_like_none_is_refused_with_all(capsys):
    assert cli.run(["zzzzzz"]) == 2
    assert "there are serve, generate, chat" in capsys.readouterr().err


def test_help_names_every_command(capsys):
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    for name, (_, _, line) in cli.COMMANDS.items():
        assert name in text
        assert line in text


def test_help_imports_no_engine():
    code = (
        "import sys\nfrom headrace import cli\ncli.run(['--help'])\n"
        "heavy = {'numpy', 'zmq', 'asyncio', 'starlette', 'uvicorn', 'tokenizers', 'jinja2', 'torch'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or None)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_version(capsys):
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"headrace {headrace.__version__}\n"


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_loads_and_has_help(name, capsys):
    assert cli.run([name, "--help"]) == 0
    assert f"Usage: headrace {name}" in capsys.readouterr().out


def test_no_command_shows_the_help_and_is_no_error(capsys):
    assert cli.run([]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Usage: headrace")
    assert "serve" in shown
