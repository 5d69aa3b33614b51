"""Config refuses by name what is unknown, contradictory or impossible, and says what is allowed."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.core.config import Config
from headrace.core.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"max_queued_requests": -1}, "max_queued_requests must be at least 0, got -1"),
        ({"shutdown_timeout": -1.0}, "shutdown_timeout must be at least 0"),
        ({"shutdown_timeout": float("nan")}, "shutdown_timeout must be at least 0"),
        ({"port": 65536}, "port must be from 0"),
        ({"block_size": 17}, "block_size must be one of 16, 32, got 17"),
        ({"isa": "neon"}, "isa must be one of auto, portable, avx2, avxvnni, avx512, avx512bf16"),
        ({"host": ""}, "host must not be empty"),
        ({"api_key": ""}, "api_key must not be empty"),
        ({"api_key": "a\nb"}, "api_key must be made of ASCII"),
        ({"api_key": " key"}, "api_key must be made of ASCII"),
        ({"api_key": "a,"}, "api_key must be made of ASCII"),
        ({"allowed_origins": "example.com"}, "allowed_origins must be http"),
        ({"allowed_origins": "https://a.example/path"}, "allowed_origins must be http"),
        ({"threads": 100_000}, "threads must be at most 1024"),
        ({"packed_cache_gib": -1}, "packed_cache_gib must be from 0 to 1048576, got -1.0"),
        ({"packed_cache_gib": float("nan")}, "packed_cache_gib must be from 0 to 1048576, got nan"),
        ({"seed": 2**63}, "seed must be a 64-bit integer"),
        ({"seed": -(10**5000)}, "seed must be a 64-bit integer"),
        ({"max_model_len": 2**70}, "max_model_len must be a 64-bit integer"),
        ({"kv_offloading_size": 0.0}, "kv_offloading_size must be above 0"),
        ({"kv_offloading_dir": "/x"}, "kv_offloading_dir needs kv_offloading_size"),
        ({"kv_offloading_dir_size": float("nan")}, "kv_offloading_dir_size must be above 0"),
        ({"kv_offloading_size": 1.0, "enable_prefix_caching": False}, "kv_offloading_size needs enable_prefix"),
        ({"num_kv_blocks": 4, "kv_cache_memory_bytes": 4}, "num_kv_blocks both set"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size must be 1"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 9}, r"max_num_batched_tokens \(8\) must be at least"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(settings, says):
    with pytest.raises(ConfigError, match=says) as caught:
        Config.from_settings(settings).resolve()
    assert caught.value.field in settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_num_seq": 4}, "did you mean max_num_seqs"),
        ({"zzzz": 4}, "known: "),
        ({"cpu_offload_gb": 4}, "kv_offloading_size"),
        ({"threads": "two"}, "threads must be int, got 'two'"),
        ({"threads": True}, "threads must be int, got True"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching must be bool, got 1"),
        ({"max_num_seqs": None}, "max_num_seqs must be int, got None"),
    ],
)
def test_an_unknown_name_or_type_is_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        Config.from_settings(settings)


def test_settings_of_the_server_are_refused_where_there_is_none():
    for field in dataclasses.fields(Config):
        given = {field.name: getattr(Config(), field.name)}
        if field.metadata["server_only"]:
            assert Config.from_settings(given) == Config()
            with pytest.raises(ConfigError, match="headrace serve"):
                Config.from_settings(given, server=False)
        else:
            assert Config.from_settings(given, server=False) == Config()


def test_dashes_are_underscores_and_whole_numbers_are_numbers():
    config = Config.from_settings({"max-num-seqs": 3, "shutdown-timeout": 5})
    assert (config.max_num_seqs, config.shutdown_timeout) == (3, 5.0)


def test_resolving_twice_changes_nothing():
    once = Config().resolve()
    assert once.kv_cache_dtype == "bf16"
    assert once.resolve() == once
