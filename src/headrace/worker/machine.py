"""What this machine lends to this process: cores by affinity and container quota, memory by container limit, and
the processor's features. Everything is read from files below a root, so that tests can bring their own machine.
"""

import math
import os
import platform
from pathlib import Path

from headrace.core.hardware import Hardware

_FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
)
_FEATURES_ARM = ("asimd", "asimddp", "i8mm", "bf16", "sve")


def this_machine(root: Path = Path("/")) -> Hardware:
    """The processor's name and features, and the memory and cores that this process may use."""
    name, features = _processor(root)
    return Hardware(name, allowed_memory(root), allowed_cores(root), features)


def allowed_cores(root: Path = Path("/")) -> int:
    """Cores in the affinity mask, or fewer if the container's quota is less (rounded up: half a core is one)."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    for folder in _cgroup_folders(root, "cpu"):
        quota = _cpu_quota(folder)
        if quota is not None:
            cores = min(cores, max(1, math.ceil(quota)))
    return cores


def allowed_processors() -> tuple[int, ...]:
    """Numbers of the processors in the affinity mask; none on systems that have no such mask."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def allowed_memory(root: Path = Path("/")) -> int:
    """Bytes of memory this process may use at all: the machine's, or less if its container's limit is less."""
    total = _meminfo(root).get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *(limit for limit, _ in _memory_limits(root))])


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be allocated now without swapping or passing a container's limit. Page cache counts as free."""
    free = _meminfo(root).get("MemAvailable", allowed_memory(root))
    return max(0, min([free, *(limit - used for limit, used in _memory_limits(root))]))


def _processor(root: Path) -> tuple[str, tuple[str, ...]]:
    name, flags = platform.processor() or platform.machine(), set[str]()
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = set(value.split())
            break
    return name, tuple(f for f in (*_FEATURES, *_FEATURES_ARM) if f in flags)


def _meminfo(root: Path) -> dict[str, int]:
    """Bytes by name."""
    sizes = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        fields = value.split()
        if len(fields) == 2 and fields[1] == "kB":
            sizes[name] = int(fields[0]) * 1024
    return sizes


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control group and its parents, innermost first; the limit of each holds. In a
    container the path seen may lie outside what is mounted: then only the mount's root is left."""
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controllers and controller)
        inner = mount / path.lstrip("/")
        folders += [f for f in (inner, *inner.parents) if f.is_relative_to(mount) and f.is_dir()]
    return folders


def _cpu_quota(folder: Path) -> float | None:
    """Cores that a control group may use (version 2, then 1); None if not limited."""
    fields = _read(folder / "cpu.max").split()
    if len(fields) == 2 and fields[0] != "max":
        return int(fields[0]) / int(fields[1])
    quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    if quota and period and int(quota) > 0:
        return int(quota) / int(period)
    return None


def _memory_limits(root: Path) -> list[tuple[int, int]]:
    """(limit, bytes used that cannot be reclaimed) of each control group that has a limit."""
    limits = []
    for folder in _cgroup_folders(root, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read(folder / limit_name).strip(), _read(folder / used_name).strip()
            if limit.isdigit() and used.isdigit():
                limits.append((int(limit), max(0, int(used) - _reclaimable(folder))))
    return limits


def _reclaimable(folder: Path) -> int:
    """Bytes of page cache that a control group holds but would give up."""
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _read(path: Path) -> str:
    """A file's text, or nothing where this system has no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""
