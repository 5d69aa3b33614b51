"""What the documents tell readers to type exists and runs."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from headrace import cli

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> dict[str, click.Command]:
    """Every command by its words, groups opened."""
    found: dict[str, click.Command] = {}
    context = click.Context(cli.headrace)
    for name in cli.COMMANDS:
        command = cli.headrace.get_command(context, name)
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": command.commands[inner] for inner in command.commands}
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_flags_exist(document):
    known = commands()
    text = document.read_text()
    for name in re.findall(r"(?:\.venv/bin/|`)headrace ([a-z]+)", text):
        assert name in known, f"{document.name}: headrace {name}"
    flags = {flag for command in known.values() for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    flags |= {"--help", "--version"}
    for script in (ROOT / "benchmarks").glob("*.py"):
        flags |= set(re.findall(r'add_argument\("(--[a-z-]+)"', script.read_text()))
    for flag in re.findall(r"`(--[a-z][a-z-]+)", text):
        assert flag in flags, f"{document.name}: {flag}"


def test_the_readme_has_the_two_commands_at_its_top():
    assert (ROOT / "README.md").read_text().splitlines()[2:4] == [
        "    make serve     # set up, fetch a small model, serve it on http://127.0.0.1:8000",
        "    make test      # set up and run every test",
    ]


@pytest.mark.usefixtures("default_model")
def test_the_readme_runs_without_a_server(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    offline = next(block for block in blocks if "from headrace import" in block)
    exec(compile(offline, "README.md", "exec"), {})
    assert len(capsys.readouterr().out.strip()) > 20


def test_the_architecture_names_files_that_exist():
    sources = {
        path.relative_to(ROOT).as_posix() for room in ("src", "csrc", "tests") for path in (ROOT / room).rglob("*.*")
    }
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|cpp))`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(named) > 40
    for name in named:
        assert any(source.endswith(f"/{name}") or source == name for source in sources), name


def test_links_between_documents_lead_somewhere():
    for document in (*DOCUMENTS, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
