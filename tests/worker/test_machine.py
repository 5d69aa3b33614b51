"""The machine as a container shows it: limits of any enclosing control group hold, in both versions' files."""

from __future__ import annotations

import os

import pytest

from headrace.worker.machine import allowed_cores, allowed_memory, available_memory, this_machine

MIB = 2**20


def write(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_D_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path):
    write(
        tmp_path,
        proc__meminfo="MemTotal:  4194304 kB\nMemFree: 1 kB\nMemAvailable: 3145728 kB\nHugePages_Total: 0\n",
        proc__cpuinfo="processor: 0\nmodel name\t: Mill 3000\nflags\t\t: fpu avx2 fma avx512f\n",
    )
    return tmp_path


def test_without_limits_the_machine_is_what_it_says(root):
    machine = this_machine(root)
    assert machine.name == "Mill 3000"
    assert machine.features == ("avx2", "fma", "avx512f")
    assert machine.memory_bytes == 4096 * MIB
    assert machine.threads == len(os.sched_getaffinity(0))
    assert available_memory(root) == 3072 * MIB


def test_version_2_limits_hold_also_those_of_parents(root):
    write(root, proc__self__cgroup="0::/pod/box\n")
    base = "sys__fs__cgroup__pod__"
    write(
        root,
        **{
            base + "memory_D_max": str(512 * MIB),
            base + "memory_D_current": str(300 * MIB),
            base + "memory_D_stat": f"anon 5\ninactive_file {100 * MIB}\n",
            base + "cpu_D_max": "50000 100000",
            base + "box__memory_D_max": "max",
            base + "box__memory_D_current": "0",
            base + "box__cpu_D_max": "max 100000",
        },
    )
    assert allowed_memory(root) == 512 * MIB
    assert available_memory(root) == 312 * MIB
    assert allowed_cores(root) == 1


def test_version_1_limits_hold(root):
    write(root, proc__self__cgroup="4:memory:/box\n3:cpu,cpuacct:/box\n1:name=systemd:/box\n")
    base = "sys__fs__cgroup__"
    write(
        root,
        **{
            base + "memory__box__memory_D_limit_in_bytes": str(256 * MIB),
            base + "memory__box__memory_D_usage_in_bytes": str(56 * MIB),
            base + "cpu__box__cpu_D_cfs_quota_us": "-1",
            base + "cpu__box__cpu_D_cfs_period_us": "100000",
        },
    )
    assert allowed_memory(root) == 256 * MIB
    assert available_memory(root) == 200 * MIB
    assert allowed_cores(root) == len(os.sched_getaffinity(0))


def test_a_path_outside_the_mount_falls_back_to_the_mounted_root(root):
    write(root, proc__self__cgroup="0::/somewhere/else\n", sys__fs__cgroup__memory_D_max=str(64 * MIB))
    write(root, sys__fs__cgroup__memory_D_current="0")
    assert allowed_memory(root) == 64 * MIB


def test_this_very_machine_has_something_to_lend():
    machine = this_machine()
    assert machine.threads >= 1
    assert 0 < available_memory() <= machine.memory_bytes
