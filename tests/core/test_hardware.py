"""Known accelerators: found by the names that people and tools write, and true to their datasheets."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError
from headrace.core.hardware import KNOWN, known_hardware


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("a100-80g", "a100"),
        ("A100 SXM", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("h100_sxm", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("H200_SXM", "h200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("l40s", "l40s"),
    ],
)
def test_names_as_they_are_written(written: str, name: str) -> None:
    assert known_hardware(written).name == name


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"a100, h100, h200.*'h300'.*nearest is h[12]00"):
        known_hardware("h300")


@pytest.mark.parametrize("name", KNOWN)
def test_every_field_of_a_known_accelerator_is_filled(name: str) -> None:
    gpu = KNOWN[name]
    assert min(gpu.memory_bytes, gpu.bandwidth, gpu.link, gpu.pcie, gpu.nic, gpu.host_memory_bytes) > 0
    assert gpu.price_per_hour is not None and gpu.price_per_hour > 0 and gpu.priced
    # Every one of them needs hundreds of operations for a byte read: decoding is bound by memory.
    assert 100 < gpu.peak("bf16") / gpu.bandwidth < 500


def test_a_dtype_that_it_does_not_multiply_is_refused() -> None:
    assert known_hardware("h100").peak("fp8") == pytest.approx(1979e12)
    with pytest.raises(ConfigError, match="a100 does not multiply fp8; it multiplies bf16, int8"):
        known_hardware("a100").peak("fp8")
