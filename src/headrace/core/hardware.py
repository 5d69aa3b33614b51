"""Hardware: what a device can do, as data. Known ones by name come with the planner; this machine is measured by
worker/machine.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """memory_bytes: what this process may use (a container's limit counts). threads: cores it may run on.
    features: instruction sets that kernels may choose from, e.g. ("avx2", "fma")."""

    name: str
    memory_bytes: int
    threads: int
    features: tuple[str, ...] = ()
