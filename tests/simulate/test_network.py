"""Links in virtual time: bytes take what bandwidth and company say, and none is lost; and where replicas stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.hardware import KNOWN, UPLINK_S, UPLINK_SHARE
from headrace.policy.fitted_kernels import kernels_of
from headrace.policy.roofline import Serving
from headrace.simulate.network import NEVER, Link, Network, Stream
from headrace.simulate.placement import PLACEMENTS, Site, Wiring, place


def run(network: Network, until: float = NEVER) -> dict[Stream, float]:
    """When each closed stream ended."""
    ended = {}
    while network.next <= until and network.next < NEVER:
        now = network.next
        ended.update(dict.fromkeys(network.advance(now), now))
    return ended


def line(*bandwidths: float) -> tuple[Network, list[Link]]:
    links = [Link(f"nic{i}.out", rate) for i, rate in enumerate(bandwidths)]
    return Network(links), links


def test_one_alone_has_the_narrowest_link_of_its_path():
    network, links = line(100.0, 25.0)
    stream = Stream(tuple(links), 0.0)
    assert not network.feed(stream, 50.0, 1.0, last=True)
    assert run(network) == {stream: 3.0}
    assert [link.carried for link in links] == [50.0, 50.0]


def test_two_have_half_each_and_the_whole_again_alone():
    network, (link,) = line(10.0)
    long, short = Stream((link,), 0.0), Stream((link,), 0.0)
    network.feed(long, 100.0, 0.0, last=True)
    network.feed(short, 20.0, 0.0, last=True)
    assert run(network) == {short: 4.0, long: 12.0}


def test_what_one_cannot_use_the_others_may():
    network, (shared, narrow) = line(10.0, 2.0)
    held, free = Stream((shared, narrow), 0.0), Stream((shared,), 0.0)
    network.feed(held, 20.0, 0.0, last=True)
    network.feed(free, 80.0, 0.0, last=True)
    assert (held.rate, free.rate) == (2.0, 8.0)
    assert run(network) == {held: 10.0, free: 10.0}


def test_a_stream_runs_dry_and_goes_on_when_it_is_fed():
    network, (link,) = line(10.0)
    stream = Stream((link,), 0.0)
    network.feed(stream, 10.0, 0.0)
    assert run(network) == {} and stream.sent == 10.0
    network.feed(stream, 5.0, 3.0)
    network.feed(stream, 5.0, 3.25, last=True)
    assert run(network) == {stream: 4.0}
    assert network.feed(stream, 0.0, 5.0, last=True)


def test_a_slow_link_is_slow_for_as_long():
    network, (link, other) = line(10.0, 10.0)
    one, two = Stream((link,), 0.0), Stream((other,), 0.0)
    network.feed(one, 20.0, 0.0, last=True)
    network.feed(two, 20.0, 0.0, last=True)
    network.slow([("nic0", 2.0), ("nic0.out", 2.0)], 1.0)
    assert run(network, 2.0) == {two: 2.0}
    network.slow([], 2.0)
    assert run(network) == {one: 2.75}
    assert network.named("nic") == [link, other] and network.named("nic1.out") == [other]
    assert network.named("nic2") == network.named("ni") == []


@given(
    st.lists(st.sampled_from([1.0, 3.0, 10.0]), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.integers(1, 15), st.sampled_from([0.0, 0.5, 7.0, 40.0]), st.floats(0, 5), st.booleans()),
        max_size=12,
    ),
)
def test_no_byte_is_lost_and_no_link_carries_more_than_it_can(bandwidths, asked):
    network, links = line(*bandwidths)
    now, sizes, cancelled = 0.0, {}, set()
    ended: dict[Stream, float] = {}
    for mask, size, gap, gives_up in asked:
        path = tuple(link for i, link in enumerate(links) if mask >> i & 1) or (links[0],)
        stream = Stream(path, 0.0)
        sizes[stream] = size
        if network.feed(stream, size, now, last=True):
            ended[stream] = now
        for link in links:
            assert sum(one.rate for one in link.streams) <= link.bandwidth * (1 + 1e-12)
        # Max-min: each stream has a full link on which nobody has more.
        for one in [one for link in links for one in link.streams]:
            assert any(
                sum(other.rate for other in link.streams) > link.bandwidth * (1 - 1e-9)
                and one.rate >= max(other.rate for other in link.streams) * (1 - 1e-9)
                for link in one.path
            )
        ended |= run(network, now + gap)
        now += gap
        if gives_up and stream not in ended:
            network.cancel(stream, now)
            cancelled.add(stream)
    ended |= run(network)
    assert set(ended) == set(sizes) - cancelled
    assert all(stream.sent == pytest.approx(sizes[stream], abs=1e-9) for stream in ended)
    for link in links:
        carried = sum(stream.sent for stream in sizes if link in stream.path)
        assert link.carried == pytest.approx(carried, abs=1e-6)


def test_replicas_stand_in_nodes_and_racks_as_asked():
    assert place((1, 2), (4, 4), 8, "mixed", 2) == [Site(0, 0), Site(0, 0), Site(1, 0)]
    assert place((1, 2), (4, 4), 8, "nodes", 2) == [Site(0, 0), Site(1, 0), Site(1, 0)]
    assert place((1, 2), (4, 4), 8, "racks", 2) == [Site(0, 0), Site(2, 1), Site(2, 1)]
    # One of two nodes and a half leaves the rest of its last node to nobody that does not fit.
    assert place((2, 1), (20, 8), 8, "nodes", 4) == [Site(0, 0), Site(3, 0), Site(6, 1)]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), st.sampled_from(PLACEMENTS))
def test_no_node_has_more_devices_than_it_holds(prefill, decode, one, other, apart):
    sites = place((prefill, decode), (one, other), 8, apart, 3)
    devices = [one] * prefill + [other] * decode
    used: dict[int, int] = {}
    for site, size in zip(sites, devices, strict=True):
        assert site.rack == site.node // 3
        for node in range(site.node, site.node + -(-size // 8)):
            left = min(size, 8)
            used[node] = used.get(node, 0) + left
            size -= left
    assert max(used.values()) <= 8
    if apart != "mixed":
        assert not {s.node for s in sites[:prefill]} & {s.node for s in sites[prefill:]}
    if apart == "racks":
        assert max(s.rack for s in sites[:prefill]) < min(s.rack for s in sites[prefill:])


def test_paths_go_by_links_nics_and_uplinks():
    gpu, send = KNOWN["h100"], kernels_of("h100").send
    sites = [Site(0, 0), Site(0, 0), Site(1, 0), Site(4, 1)]
    wiring = Wiring(sites, [Serving(gpu, 2)] * 4, rack_nodes=4)
    names = [[link.name for link in wiring.path(0, target)[0]] for target in (1, 2, 3)]
    assert names == [
        ["nvlink0.out", "nvlink1.in"],
        ["nic0.out", "nic2.in"],
        ["nic0.out", "uplink0.out", "uplink1.in", "nic3.in"],
    ]
    assert wiring.reach(0, 1) == (2 * gpu.link * send.link, send.link_fixed)
    assert wiring.reach(0, 2) == (2 * gpu.nic * send.nic, send.nic_fixed)
    assert wiring.reach(0, 3) == (2 * gpu.nic * send.nic, send.nic_fixed + UPLINK_S)
    uplink = wiring.network.links["uplink0.out"].bandwidth
    assert uplink == pytest.approx(4 * gpu.per_node * gpu.nic * send.nic * UPLINK_SHARE)
