"""The claims that benchmarks/batching.py prints, on a smaller load."""

from benchmarks.batching import compare
from benchmarks.scheduler import measure


def test_continuous_batching_and_paging_pay():
    report = compare(48, 8)
    static, continuous = report["static"], report["continuous"]
    assert static["tokens"] == continuous["tokens"]
    assert continuous["utilization"] > 2 * static["utilization"]
    assert report["paged"]["requests_at_once"] > 2 * report["contiguous"]["requests_at_once"]
    assert report["paged"]["waste"] < 0.1 < report["contiguous"]["waste"]
    assert compare(12, 4) == compare(12, 4)


def test_the_scheduler_benchmark_reports_its_keys():
    result = measure(4, 20, 40, depth=2)
    for key in ("schedule_us", "update_us", "step_us"):
        assert set(result[key]) == {"mean", "p50", "p99"}
        assert result[key]["p99"] >= result[key]["p50"] > 0
