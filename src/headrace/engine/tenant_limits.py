"""The operator's file of what each tenant may ask for, in TOML or JSON, checked field by field."""

from pathlib import Path

import msgspec

from headrace.core.errors import ConfigError
from headrace.policy.limits import Limits, TenantLimits


def read_limits(path: Path) -> Limits:
    """Raises ConfigError naming the file and what is wrong in it."""
    if path.suffix not in (".toml", ".json"):
        raise ConfigError(f"tenant_limits must be a .toml or .json file, got {path}", field="tenant_limits")
    decode = msgspec.toml.decode if path.suffix == ".toml" else msgspec.json.decode
    try:
        return decode(path.read_bytes(), type=Limits)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        known = ""
        if "unknown field" in str(error):
            # Below the top there are only tenants' limits.
            of = TenantLimits if " - at " in str(error) else Limits
            known = f"; known: {', '.join(of.__struct_fields__)}"
        raise ConfigError(f"tenant_limits {path} cannot be read: {error}{known}", field="tenant_limits") from error
