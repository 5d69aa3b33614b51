"""API keys: who may use the server, as which tenant, and whether they may go before others. Keys come from a setting or
from a file in which each tenant has a name; kept are only their hashes.
"""

import hashlib
import hmac
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.errors import ConfigError
from headrace.core.settings_json import read_settings_json


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. tenant: whose share of the engine it uses. may_raise_priority: it may go before others."""

    tenant: str = ""
    may_raise_priority: bool = True


ANYONE = Caller()
"""Every client of a server without keys, and of one whose keys have no tenants."""


class ApiKeys:
    """Finds a key's caller in time that depends on neither the key nor how much of it is right."""

    def __init__(self, callers: Iterable[tuple[str, Caller]]) -> None:
        self._callers = [(_digest(key.encode()), caller) for key, caller in callers]

    def find(self, key: bytes) -> Caller | None:
        digest, found = _digest(key), None
        for known, caller in self._callers:
            if hmac.compare_digest(digest, known):
                found = caller
        return found


class _Tenant(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[str]
    raise_priority: bool = False


def split_keys(keys: str) -> list[tuple[str, Caller]]:
    """Keys by commas, of one tenant without a name."""
    return [(key, ANYONE) for key in keys.split(",") if key]


def read_keys(path: Path) -> list[tuple[str, Caller]]:
    """Keys of a TOML or JSON file: by tenant, `keys`, and `raise_priority` if it may go before others. Raises
    ConfigError naming what is wrong, never a key."""
    callers: dict[str, Caller] = {}
    for name, given in _tables(path).items():
        try:
            tenant = msgspec.convert(given, _Tenant)
        except msgspec.ValidationError as error:
            raise ConfigError(f"api_key_file {path}: {name}: {error}", field="api_key_file") from None
        if not name or not tenant.keys:
            raise ConfigError(f"api_key_file {path}: each tenant needs a name and a key", field="api_key_file")
        for key in tenant.keys:
            if not is_key(key):
                raise ConfigError(
                    f"api_key_file {path}: {name}: a key must be made of ASCII letters, digits and signs",
                    field="api_key_file",
                )
            if key in callers:
                raise ConfigError(f"api_key_file {path}: {name}: a key is there twice", field="api_key_file")
            callers[key] = Caller(name, tenant.raise_priority)
    if not callers:
        raise ConfigError(f"api_key_file {path} has no keys", field="api_key_file")
    return list(callers.items())


def is_key(key: str) -> bool:
    """Whether a header can carry it."""
    return bool(key) and all("!" <= character <= "~" for character in key)


def _tables(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        tables = read_settings_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"api_key_file {path} cannot be read: {error}", field="api_key_file") from error
    if not isinstance(tables, dict):
        raise ConfigError(f"api_key_file {path} must hold tenants by name", field="api_key_file")
    return tables


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
