"""What lies below the device keeps right books when the disk is slow."""

from headrace.core.disk import DiskResult, TierSizes
from headrace.policy.tiers import MOST_WRITES, Tiers


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_a_block_that_came_down_twice_while_the_disk_was_busy_is_written_once():
    tiers = Tiers(TierSizes(host_blocks=(MOST_WRITES + 4,), block_bytes=(100,), disk_bytes=10**6))
    for number in range(MOST_WRITES):
        tiers.lower(name(number), 0)
    busy = tiers.take_orders()
    assert len(busy) == MOST_WRITES
    tiers.lower(name(99), 0)
    for number in range(100, 104):
        tiers.lower(name(number), 0)
    # The host has let go of it before its turn came; now it comes again.
    assert tiers.lower(name(99), 0) is not None
    written = []
    while busy:
        written += [order.name for order in busy]
        tiers.arrived([DiskResult(order.number, True) for order in busy])
        busy = tiers.take_orders()
    assert len(written) == len(set(written))
    assert tiers.disk_bytes == 100 * len(written)
