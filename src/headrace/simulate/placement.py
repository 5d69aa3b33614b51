"""Where replicas stand, and what links one to another: on the same node by its devices' links (NVLink), in the same
rack by both nodes' NICs, elsewhere by both racks' uplinks as well. A replica's devices send side by side. What links
reach of their bandwidth, and their latency, is measured between nodes (policy/fitted_kernels.py); an uplink's is a
share of what its rack's NICs carry (core/hardware.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.hardware import RACK_NODES, UPLINK_S, UPLINK_SHARE
from headrace.policy.fitted_kernels import kernels_of
from headrace.policy.roofline import Serving
from headrace.simulate.network import Link, Network

MIXED, NODES, RACKS = PLACEMENTS = ("mixed", "nodes", "racks")
"""The pools' replicas side by side, so that most nodes have both; each pool on nodes, or in racks, of its own."""


@dataclass(frozen=True, slots=True)
class Site:
    """A replica's first node, and its rack."""

    node: int
    rack: int


def place(
    replicas: tuple[int, int], devices: tuple[int, int], per_node: int, apart: str, rack_nodes: int
) -> list[Site]:
    """Sites of the replicas of the one pool and then of the other. devices: of a replica of each. One that fits into a
    node is in one; a larger one begins a node. apart: one of PLACEMENTS."""
    turns = [((i + 0.5) / n, pool, i) for pool, n in enumerate(replicas) for i in range(n)]
    order = sorted(turns) if apart == MIXED else sorted(turns, key=lambda turn: turn[1:])
    sites: dict[tuple[int, int], Site] = {}
    node, used, before = 0, 0, 0
    for _, pool, index in order:
        size = devices[pool]
        begins = pool != before and apart != MIXED
        if used and (begins or used + size > per_node):
            node, used = node + 1, 0
        if begins and apart == RACKS:
            node += -node % rack_nodes
        sites[pool, index] = Site(node, node // rack_nodes)
        before = pool
        used += size
        while used > per_node:
            node, used = node + 1, used - per_node
    return [sites[key] for key in sorted(sites)]


class Wiring:
    """The links between replicas at these sites, each replica served as told."""

    def __init__(self, sites: Sequence[Site], servings: Sequence[Serving], rack_nodes: int = RACK_NODES) -> None:
        self._sites = sites
        hardware = servings[0].hardware
        self._send = send = kernels_of(hardware.name).send
        links = []
        for replica, serving in enumerate(servings):
            links += _both(f"nvlink{replica}", serving.devices * hardware.link * send.link)
            links += _both(f"nic{replica}", serving.devices * hardware.nic * send.nic)
        uplink = rack_nodes * hardware.per_node * hardware.nic * send.nic * UPLINK_SHARE
        for rack in sorted({site.rack for site in sites}):
            links += _both(f"uplink{rack}", uplink)
        self.network = Network(links)

    def path(self, source: int, target: int) -> tuple[tuple[Link, ...], float]:
        """From one replica to another, and its latency in seconds."""
        links, (here, there) = self.network.links, (self._sites[source], self._sites[target])
        if here.node == there.node:
            return (links[f"nvlink{source}.out"], links[f"nvlink{target}.in"]), self._send.link_fixed
        first, last = links[f"nic{source}.out"], links[f"nic{target}.in"]
        if here.rack == there.rack:
            return (first, last), self._send.nic_fixed
        between = links[f"uplink{here.rack}.out"], links[f"uplink{there.rack}.in"]
        return (first, *between, last), self._send.nic_fixed + UPLINK_S

    def reach(self, source: int, target: int) -> tuple[float, float]:
        """Bytes a second that one more stream would get at least, and its latency in seconds."""
        path, latency = self.path(source, target)
        return min(link.bandwidth / link.slowness / (len(link.streams) + 1) for link in path), latency


def _both(name: str, bandwidth: float) -> list[Link]:
    return [Link(f"{name}.out", bandwidth), Link(f"{name}.in", bandwidth)]
