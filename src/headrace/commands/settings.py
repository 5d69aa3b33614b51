"""Flags from Config: every field of core/config.py becomes an option of the commands that load a model, so that a
setting is written down in one place. A settings file (--config) holds the same names; MODEL and flags win over it.
"""

import dataclasses
import functools
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from headrace.commands.report import EXISTING_FILE
from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.core.settings_json import read_settings_json

_TYPES: dict[str, type] = {"int": int, "float": float, "str": str}

Command = Callable[..., Any]

_MODEL = click.argument("model", required=False)
_SETTINGS_FILE = click.option(
    "--config", "settings_file", type=EXISTING_FILE, help="Settings by name, in TOML or JSON; flags win over it."
)


def takes_config(*, server: bool = False) -> Callable[[Command], Command]:
    """Give a command MODEL, --config and a flag per setting; it is called with `config`, checked. Settings that
    concern the server alone are flags only where server is true, but any settings file may hold them."""
    fields = [f for f in dataclasses.fields(Config) if f.name != "model" and (server or not f.metadata["server_only"])]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def configured(model: str | None, settings_file: Path | None, **given: Any) -> Any:
            flags = {f.name: given.pop(f.name) for f in fields}
            return command(config=build_config(model, settings_file, flags), **given)

        flagged: Command = configured
        for option in (*map(_flag, reversed(fields)), _SETTINGS_FILE, _MODEL):
            flagged = option(flagged)
        return flagged

    return decorate


def build_config(model: str | None, settings_file: Path | None, flags: dict[str, Any]) -> Config:
    """A checked Config from a settings file, overlaid by flags that were given (not None) and MODEL. Raises
    ConfigError."""
    settings = read_settings(settings_file) if settings_file is not None else {}
    settings |= {name: value for name, value in flags.items() if value is not None}
    if model is not None:
        settings["model"] = model
    return Config.from_settings(settings).resolve()


def read_settings(path: Path) -> dict[str, Any]:
    """Names and values of a TOML or JSON file, dashes in names turned to underscores. Raises ConfigError."""
    try:
        if path.suffix == ".toml":
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".json":
            settings = read_settings_json(path.read_text(encoding="utf-8"))
        else:
            raise ConfigError(f"--config must be a .toml or .json file, got {path}", field="config")
    except ValueError as error:
        raise ConfigError(f"--config {path} cannot be read: {error}", field="config") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"--config {path} must hold settings by name, got a {type(settings).__name__}")
    named: dict[str, Any] = {}
    for given, value in settings.items():
        if (name := given.replace("-", "_")) in named:
            raise ConfigError(f"--config {path} gives {name} twice, with dashes and underscores", field=name)
        named[name] = value
    return named


def _flag(field: dataclasses.Field[Any]) -> Callable[[Command], Command]:
    """The option of one field. Its default is None, which means: not given."""
    dashed = field.name.replace("_", "-")
    kind, variable = str(field.type).split(" | ")[0], field.metadata["variable"]
    text = field.metadata["help"]
    if kind == "bool":
        return click.option(f"--{dashed}/--no-{dashed}", field.name, default=None, help=text)
    if field.default is not None:
        text = f"{text} [{field.default}]"
    return click.option(
        f"--{dashed}",
        field.name,
        type=_TYPES[kind],
        default=None,
        help=text,
        envvar=variable,
        show_envvar=variable is not None,
    )
