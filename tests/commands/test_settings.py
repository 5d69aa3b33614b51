"""Flags and settings files become one checked Config."""

from __future__ import annotations

import dataclasses
import json

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from headrace.commands.settings import build_config, read_settings, takes_config
from headrace.core.config import DEFAULT_MODEL, Config
from headrace.core.errors import ConfigError


def parse(arguments: list[str], *, server: bool = True) -> Config:
    """The Config that a command with these arguments is called with; a usage error is raised."""
    seen: list[Config] = []

    @click.command()
    @takes_config(server=server)
    def command(config: Config) -> None:
        seen.append(config)

    CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False)
    return seen[0]


def test_no_flags_are_the_defaults():
    assert parse([]) == Config().resolve()
    assert parse([]).model == DEFAULT_MODEL


def test_every_setting_has_a_flag():
    @click.command()
    @takes_config(server=True)
    def command(config: Config) -> None:
        pass

    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for field in dataclasses.fields(Config):
        if field.name != "model":
            assert f"--{field.name.replace('_', '-')}" in options
    assert "--no-enable-prefix-caching" in options


def test_flags_reach_their_fields():
    config = parse(
        ["models/one", "--port", "9000", "--max-num-seqs", "8", "--no-enable-prefix-caching", "--api-key", "k"]
    )
    assert (config.model, config.port, config.max_num_seqs) == ("models/one", 9000, 8)
    assert (config.enable_prefix_caching, config.api_key) == (False, "k")


def test_server_flags_belong_to_serve_alone():
    with pytest.raises(click.NoSuchOption):
        parse(["--port", "9000"], server=False)


def test_an_unknown_flag_is_refused_with_the_nearest():
    with pytest.raises(click.NoSuchOption) as caught:
        parse(["--max-num-seq", "8"])
    assert "--max-num-seqs" in caught.value.format_message()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--block-size", "7"], "block_size must be one of 16, 32, got 7"),
        (["--tensor-parallel-size", "8"], "tensor_parallel_size must be 1"),
        (["--kv-cache-dtype", "fp8"], "kv_cache_dtype must be one of auto, bf16, fp32, int8, got 'fp8'"),
        (["--kv-cache-memory-bytes", "1", "--num-kv-blocks", "1"], "give one of them"),
    ],
)
def test_impossible_settings_are_refused(arguments, says):
    with pytest.raises(ConfigError, match=says):
        parse(arguments)


def test_a_settings_file_holds_every_setting(tmp_path):
    values = {
        f.name: getattr(Config(), f.name) for f in dataclasses.fields(Config) if getattr(Config(), f.name) is not None
    }
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(values | {"port": 1234}))
    assert parse(["--config", str(file)]).port == 1234


def test_flags_and_model_win_over_the_file(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('model = "a"\nmax-num-seqs = 3\nthreads = 2\n')
    config = parse(["b", "--config", str(file), "--threads", "1"])
    assert (config.model, config.max_num_seqs, config.threads) == ("b", 3, 1)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("s.toml", "max_num_sequences = 3", "unknown setting 'max_num_sequences'; did you mean max_num_seqs"),
        ("s.toml", 'threads = "two"', "threads must be int, got 'two'"),
        ("s.toml", "[engine]\nthreads = 2", "unknown setting 'engine'"),
        ("s.toml", "threads = ", "cannot be read"),
        ("s.json", "{", "cannot be read"),
        ("s.json", "[1]", "must hold settings by name, got a list"),
        ("s.json", '{"threads": 1, "threads": 2}', "'threads' is given twice"),
        ("s.json", '{"speculative_config": {"method": "ngram", "method": "suffix"}}', "'method' is given twice"),
        ("s.toml", "max-num-seqs = 1\nmax_num_seqs = 2", "gives max_num_seqs twice, with dashes"),
        ("s.yaml", "threads: 2", "must be a .toml or .json file"),
    ],
)
def test_a_bad_settings_file_is_refused(tmp_path, name, text, says):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        build_config(None, file, {})


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "port": st.integers(0, 65535),
            "threads": st.integers(1, 64),
            "enable_prefix_caching": st.booleans(),
            "shutdown_timeout": st.floats(0, 1e6),
            "served_model_name": st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=8),
        },
    )
)
def test_toml_json_and_flags_agree(tmp_path_factory, settings):
    folder = tmp_path_factory.mktemp("settings")
    as_json, as_toml = folder / "s.json", folder / "s.toml"
    as_json.write_text(json.dumps(settings))
    lines = [f"{name.replace('_', '-')} = {json.dumps(value)}" for name, value in settings.items()]
    as_toml.write_text("\n".join(lines))
    assert read_settings(as_json) == read_settings(as_toml) == settings
    assert build_config(None, as_json, {}) == build_config(None, None, settings)
