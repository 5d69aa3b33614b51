"""The claims that benchmarks/batching.py prints, on a smaller load."""

from benchmarks.batching import compare


def test_continuous_batching_and_paging_pay():
    report = compare(48, 8)
    static, continuous = report["static"], report["continuous"]
    assert static["tokens"] == continuous["tokens"]
    assert continuous["utilization"] > 2 * static["utilization"]
    assert report["paged"]["requests_at_once"] > 2 * report["contiguous"]["requests_at_once"]
    assert report["paged"]["waste"] < 0.1 < report["contiguous"]["waste"]
    assert compare(12, 4) == compare(12, 4)
