"""Hardware: what a device can do, as data: accelerators by name (KNOWN), and whatever machine worker/machine.py
describes. Peaks are dense, without sparsity; bandwidths are bytes a second in one direction.

Sources: datasheets of NVIDIA's A100 80GB SXM, H100 SXM, H200 SXM, HGX B200 and L40S, AMD's Instinct MI300X; hosts and
NICs as in the makers' reference servers (DGX A100, DGX H100/H200/B200, eight MI300X on one board). Prices are round
numbers near what clouds asked on demand for one device an hour; they age, so they carry a date and can be replaced.
"""

import difflib
from dataclasses import dataclass

from headrace.core.errors import ConfigError

_GIB = 2**30
_PRICED = "2025-10"
RACK_NODES = 4
"""Nodes of a rack, where nobody says: as many of eight devices as its power usually allows."""
UPLINK_SHARE = 0.5
"""Of what a rack's NICs carry, what its uplink to other racks does (two to one, as leaf switches are often joined)."""
UPLINK_S = 4e-6
"""Seconds that a message takes longer through a rack's uplink and another's: two more switches and their cables."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """memory_bytes: what this process may use (a container's limit counts). threads: cores it may run on, 0 for a
    device that has none of its own. features: instruction sets that kernels may choose from, e.g. ("avx2", "fma").
    bandwidth: of memory. peaks: (dtype, operations a second). link: to the other devices of a node, per_node of them
    (1: no such link). pcie: to the host's memory, of which host_memory_bytes are this device's share. nic: to other
    nodes. price_per_hour: US dollars on the date `priced`, None where nobody asked."""

    name: str
    memory_bytes: int
    threads: int = 0
    features: tuple[str, ...] = ()
    bandwidth: float = 0.0
    peaks: tuple[tuple[str, float], ...] = ()
    link: float = 0.0
    per_node: int = 1
    pcie: float = 0.0
    nic: float = 0.0
    host_memory_bytes: int = 0
    price_per_hour: float | None = None
    priced: str = ""

    def peak(self, dtype: str) -> float:
        """Dense operations a second. ConfigError naming the dtypes that this hardware multiplies."""
        for name, rate in self.peaks:
            if name == dtype:
                return rate
        known = ", ".join(name for name, _ in self.peaks) or "none"
        raise ConfigError(f"{self.name} does not multiply {dtype}; it multiplies {known}")


def _gpu(
    name: str,
    memory_gib: float,
    bandwidth_tb: float,
    peaks_t: dict[str, float],
    links_gb: tuple[float, float, float],
    host_gib: int,
    price: float,
) -> Hardware:
    """peaks in 1e12 a second; links: to its node, to its host, to other nodes, in 1e9 bytes a second."""
    link, pcie, nic = links_gb
    return Hardware(
        name,
        int(memory_gib * _GIB),
        bandwidth=bandwidth_tb * 1e12,
        peaks=tuple((dtype, rate * 1e12) for dtype, rate in peaks_t.items()),
        link=link * 1e9,
        per_node=8,
        pcie=pcie * 1e9,
        nic=nic * 1e9,
        host_memory_bytes=host_gib * _GIB,
        price_per_hour=price,
        priced=_PRICED,
    )


_AMPERE = {"bf16": 312.0, "int8": 624.0}
_HOPPER = {"bf16": 989.5, "fp8": 1979.0, "int8": 1979.0}
_BLACKWELL = {"bf16": 2250.0, "fp8": 4500.0, "int8": 4500.0, "fp4": 9000.0}
_ADA = {"bf16": 362.0, "fp8": 733.0, "int8": 733.0}
_CDNA3 = {"bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9}

KNOWN: dict[str, Hardware] = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100", 80, 2.039, _AMPERE, (300, 32, 25), 256, 1.8),
        _gpu("h100", 80, 3.35, _HOPPER, (450, 64, 50), 256, 3.0),
        _gpu("h200", 141, 4.8, _HOPPER, (450, 64, 50), 256, 3.8),
        _gpu("b200", 180, 8.0, _BLACKWELL, (900, 64, 50), 512, 5.5),
        _gpu("l40s", 48, 0.864, _ADA, (32, 32, 25), 128, 1.2),
        _gpu("mi300x", 192, 5.3, _CDNA3, (448, 64, 50), 256, 3.0),
    )
}
"""Accelerators by name. An L40S has no link of its own: PCIe joins it to its node."""

_ENDINGS = ("-sxm", "-sxm4", "-sxm5", "-80g", "-80gb", "-141gb", "-hbm3", "-pcie4", "-oam")
_MAKERS = ("nvidia-", "amd-", "instinct-")


def known_hardware(name: str, field: str = "gpu") -> Hardware:
    """The accelerator of that name, also as others write it (a100-80g, H100_SXM, "NVIDIA H200"). ConfigError with the
    nearest for one that is not known; field: where it was named."""
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    for maker in _MAKERS:
        plain = plain.removeprefix(maker)
    while plain not in KNOWN and plain.endswith(_ENDINGS):
        plain = plain[: plain.rindex("-")]
    if plain in KNOWN:
        return KNOWN[plain]
    near = difflib.get_close_matches(plain, KNOWN, n=1)
    hint = f"; the nearest is {near[0]}" if near else ""
    raise ConfigError(f"{field} must be one of {', '.join(KNOWN)}, got {name!r}{hint}", field=field)
