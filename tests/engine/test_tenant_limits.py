"""The file of tenants' limits: read in both formats, and refused with what is wrong in it."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError
from headrace.engine.tenant_limits import read_limits
from headrace.policy.limits import Limits, TenantLimits

EXPECTED = Limits(
    TenantLimits(requests_per_minute=60), {"alice": TenantLimits(tokens_per_minute=9, concurrent_requests=2)}
)
TOML = "[default]\nrequests_per_minute = 60\n[tenants.alice]\ntokens_per_minute = 9\nconcurrent_requests = 2\n"
JSON = """{"default": {"requests_per_minute": 60},
"tenants": {"alice": {"tokens_per_minute": 9, "concurrent_requests": 2}}}"""


@pytest.mark.parametrize(("name", "text"), [("limits.toml", TOML), ("limits.json", JSON)])
def test_both_formats(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_limits(tmp_path / name) == EXPECTED


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "limits.toml",
            "[default]\nrequests_per_hour = 1\n",
            "unknown field `requests_per_hour`.*; known: requests_per_minute, tokens_per_minute, concurrent_requests, "
            "weight$",
        ),
        ("limits.json", '{"tenants": {"a": {"rpm": 5}}}', "unknown field `rpm`.*; known: requests_per_minute, "),
        ("limits.json", '{"alice": {}}', "unknown field `alice`; known: default, tenants$"),
        ("limits.toml", "[default]\nrequests_per_minute = 'many'\n", r"Expected `int \| null`.*default"),
        ("limits.json", '{"default": {"requests_per_minute": 0}}', "requests_per_minute must be at least 1"),
        ("limits.json", "{", "cannot be read"),
        ("limits.toml", "[default\n", "cannot be read"),
        ("limits.toml", "\x00", "cannot be read"),
        ("limits.yaml", "", "must be a .toml or .json file"),
        ("limits.toml", None, "No such file"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_limits(tmp_path / name)
