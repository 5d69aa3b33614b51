"""Measured limits of this machine: each instruction set has some, and what cannot be had is refused."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError

cpu_ceilings = pytest.importorskip("headrace.ops.cpu_ceilings", reason="the kernels are not built: make kernels")
cpu = pytest.importorskip("headrace.ops.cpu", reason="the kernels are not built: make kernels")


@pytest.mark.parametrize("isa", cpu.available_isas())
def test_every_instruction_set_is_measured(isa):
    found = cpu_ceilings.measure_ceilings(2, isa, rounds=1000, read_bytes=1 << 24, tries=1)
    assert found.threads == 2
    assert min(found.int8_per_s, found.float32_per_s, found.read_bytes_per_s) > 0
    assert found.barrier_us > 0


@pytest.mark.parametrize(("threads", "isa", "field"), [(0, "auto", "threads"), (1, "z80", "isa")])
def test_what_cannot_be_had_is_refused(threads, isa, field):
    with pytest.raises(ConfigError) as error:
        cpu_ceilings.measure_ceilings(threads, isa)
    assert error.value.field == field
