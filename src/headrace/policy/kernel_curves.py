"""How near to its hardware's limits a kernel comes, by shape: a few numbers for each kind of kernel, and the seconds
that follow from them. tools/fit_roofline.py fits them to measured kernels, policy/fitted_kernels.py holds the result.

A matrix product takes the time of its arithmetic or of reading its weights, whichever is longer, and a little more
where both are near: a norm of order 4 instead of the larger.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.hardware import Hardware
from headrace.core.model_spec import item_bytes

_ORDER = 4.0
# Times that arithmetic takes longer where each weight is unpacked to 16 bits before it is multiplied. A guess: what
# published kernels of 4 bits (Marlin, arXiv:2408.11743) fall short of dense ones by, at many rows.
_UNPACKING = 1.15


@dataclass(frozen=True, slots=True)
class Gemm:
    """compute, memory: shares of peak and bandwidth that a large one reaches. rows: rows at which half of `compute` is
    reached. activations: share of bandwidth at which rows come and go (quantizing them counts). What a kernel takes
    beside that when it runs alone overlaps with its neighbours in a step's graph, and is not counted."""

    compute: float
    memory: float
    rows: float
    activations: float

    def seconds(self, m: float, n: float, k: float, item: float, peak: float, bandwidth: float) -> float:
        """m rows of k inputs to n outputs; item: bytes of one weight."""
        arithmetic = 2.0 * m * n * k / (peak * self.compute) * (1.0 + self.rows / m)
        weights = n * k * item / (bandwidth * self.memory)
        inside = float((arithmetic**_ORDER + weights**_ORDER) ** (1 / _ORDER))
        return 2.0 * m * (n + k) / (bandwidth * self.activations) + inside


@dataclass(frozen=True, slots=True)
class Prefill:
    """Attention of chunks. compute: share of peak that long ones reach. length: at which half of it is reached."""

    compute: float
    length: float
    fixed: float

    def seconds(self, pairs: float, length: float, width: float, peak: float, reading: float = 0.0) -> float:
        """pairs of query and key; length: keys that a query sees on average; width: heads times (key + value) dims;
        reading: seconds that reading the keys and values takes at least."""
        arithmetic = 2.0 * pairs * width / (peak * self.compute) * (1.0 + self.length / max(length, 1.0))
        return self.fixed + max(arithmetic, reading)


@dataclass(frozen=True, slots=True)
class Decode:
    """Attention of single tokens. memory: share of bandwidth. entry: seconds for each sequence beside its traffic."""

    memory: float
    entry: float
    fixed: float

    def seconds(self, traffic: float, entries: float, bandwidth: float) -> float:
        return self.fixed + self.entry * entries + traffic / (bandwidth * self.memory)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """link: share of the link's bandwidth. fixed, rank: seconds, and seconds more for each rank."""

    link: float
    fixed: float
    rank: float

    def seconds(self, size: float, ranks: int, link: float) -> float:
        """size: bytes of what every rank holds and gets."""
        if ranks == 1:
            return 0.0
        return self.fixed + self.rank * ranks + 2.0 * size * (ranks - 1) / ranks / (link * self.link)


@dataclass(frozen=True, slots=True)
class SendReceive:
    """From one device to another. link, nic: shares of the bandwidth inside a node and between nodes; with each, the
    seconds that a message takes beside its traffic."""

    link: float
    link_fixed: float
    nic: float
    nic_fixed: float

    def seconds(self, size: float, hardware: Hardware, inside: bool) -> float:
        """size: bytes. inside: both are of one node."""
        if inside:
            return self.link_fixed + size / (hardware.link * self.link)
        return self.nic_fixed + size / (hardware.nic * self.nic)


@dataclass(frozen=True, slots=True)
class Kernels:
    """What one kind of hardware's kernels reach. Where gemm lacks a dtype, bf16's shares hold for it. decode is for
    caches of 16 bits, decode_narrow for those of fewer, None where decode's shares hold for it."""

    gemm: tuple[tuple[str, Gemm], ...]
    prefill: Prefill
    decode: Decode
    all_reduce: AllReduce
    send: SendReceive
    decode_narrow: Decode | None = None

    def decode_of(self, cache: str) -> Decode:
        narrow = item_bytes(cache) < item_bytes("bf16")
        return self.decode_narrow if narrow and self.decode_narrow is not None else self.decode

    def multiplier(self, hardware: Hardware, dtype: str) -> Multiplier:
        """How weights of this dtype are multiplied: as they are, or unpacked on the way."""
        done_in = multiplies(hardware, dtype)
        curves = dict(self.gemm)
        peak, item = hardware.peak(done_in), item_bytes(dtype)
        if item < item_bytes(done_in):
            peak /= _UNPACKING
        return Multiplier(curves.get(done_in, curves["bf16"]), peak, item)


@dataclass(frozen=True, slots=True)
class Multiplier:
    """Matrix products with weights of one dtype. item: bytes of one weight."""

    curve: Gemm
    peak: float
    item: float

    def seconds(self, m: float, n: float, k: float, bandwidth: float) -> float:
        return self.curve.seconds(m, n, k, self.item, self.peak, bandwidth)


def multiplies(hardware: Hardware, weights: str) -> str:
    """The dtype that a layer with these weights is computed in: theirs if the hardware has it, else unpacked to 16 bits
    or, on processors, to 32."""
    has = {dtype for dtype, _ in hardware.peaks}
    return next(dtype for dtype in (weights, "bf16", "fp32") if dtype in has)
