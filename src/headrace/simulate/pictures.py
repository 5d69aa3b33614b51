"""The pictures of a simulation's report: distributions of latencies, load over time, where requests' time went, and
what a sweep of rates gave. Needs matplotlib (`pip install 'headrace[plan]'`), which is loaded only when a picture is
drawn. Equal runs give equal bytes.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bench.picture import drawing
from headrace.simulate.watch import PARTS, Watch

COLOURS = ("#9aa5b1", "#1f6feb", "#2da44e", "#cf222e", "#bf8700")
_SIZE = (9.0, 2.8)
_WIDE = 30
"""Times by which the longest is longer than the shortest where a logarithmic scale shows more."""
_GROUPS = (("fastest half", 0.0, 0.5), ("50 to 90 %", 0.5, 0.9), ("90 to 99 %", 0.9, 0.99), ("slowest 1 %", 0.99, 1.0))
"""Of requests by their whole time."""


def draw_latencies(watch: Watch) -> str:
    """Share of requests (of gaps, for ITL) that took at most so long."""
    figure, axes = _figure(4)
    shown = (("TTFT", watch.ttft), ("TPOT", watch.tpot), ("ITL", watch.gaps), ("E2E", watch.e2e))
    for axis, (title, seconds) in zip(axes, shown, strict=True):
        times, share = _distribution(seconds, watch.counts if title == "ITL" else np.ones(len(seconds), np.int64))
        axis.step(times, share, where="post", color=COLOURS[1], linewidth=1.2)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("ms", fontsize=8)
        axis.set_ylim(0, 1.02)
        if len(times) and times[0] > 0 and times[-1] > _WIDE * times[0]:
            axis.set_xscale("log")
        for percent in (0.5, 0.99):
            axis.axhline(percent, color=COLOURS[0], linewidth=0.6, linestyle=":")
    axes[0].set_ylabel("share at most so long", fontsize=8)
    return _svg(figure)


def draw_load(watch: Watch) -> str:
    """Requests that run and wait, and the share of KV blocks in use."""
    figure, (requests, blocks) = _figure(2)
    seconds, running, waiting, used = watch.over_time.T
    requests.fill_between(seconds, running, step="post", color=COLOURS[1], alpha=0.6, linewidth=0, label="running")
    requests.step(seconds, waiting, where="post", color=COLOURS[3], linewidth=0.9, label="waiting")
    requests.legend(fontsize=7, frameon=False)
    requests.set_title("Requests", fontsize=9)
    blocks.fill_between(seconds, 100 * used, step="post", color=COLOURS[2], alpha=0.6, linewidth=0)
    blocks.set_title("KV blocks in use, %", fontsize=9)
    blocks.set_ylim(0, 105)
    for axis in (requests, blocks):
        axis.set_xlabel("s", fontsize=8)
        axis.set_xlim(seconds[0], max(seconds[-1], seconds[0] + 1e-9))
    requests.set_ylim(bottom=0)
    return _svg(figure)


def draw_parts(watch: Watch) -> str:
    """Mean seconds of each part, of the fastest requests to the slowest, and its share."""
    figure, (mean, share) = _figure(2)
    order = watch.parts[np.argsort(watch.parts.sum(axis=1), kind="stable")]
    groups = {}
    for name, low, high in _GROUPS:
        rows = order[int(low * len(order)) : max(int(low * len(order)) + 1, int(high * len(order)))]
        if len(rows):
            groups[name] = rows.mean(axis=0)
    names, values = list(groups)[::-1], np.array(list(groups.values()))[::-1]
    for axis, widths in ((mean, values), (share, 100 * values / np.maximum(values.sum(axis=1, keepdims=True), 1e-12))):
        left = np.zeros(len(names))
        for part, colour, width in zip(PARTS, COLOURS, widths.T, strict=False):
            axis.barh(range(len(names)), width, left=left, color=colour, label=part, height=0.6)
            left = left + width
    mean.set_yticks(range(len(names)), names, fontsize=8)
    share.set_yticks([])
    mean.set_title("Mean time, s", fontsize=9)
    share.set_title("Share of it, %", fontsize=9)
    share.legend(fontsize=7, frameon=False, ncols=len(PARTS), loc="upper center", bbox_to_anchor=(0.5, -0.12))
    return _svg(figure)


def draw_sweep(sweep: Sequence[Mapping[str, Any]], unit: str) -> str:
    """sweep: for each load, `offered` in this unit, goodput, requests_per_s, and ttft_ms and tpot_ms by percentile."""
    figure, (goodput, ttft, tpot) = _figure(3)
    offered = [one["offered"] for one in sweep]
    goodput.plot(
        offered, [one["requests_per_s"] for one in sweep], "o-", color=COLOURS[4], markersize=3, label="served"
    )
    goodput.plot(offered, [one["goodput"] for one in sweep], "o-", color=COLOURS[2], markersize=3, label="good")
    goodput.set_title("Goodput, requests/s", fontsize=9)
    goodput.set_ylim(bottom=0)
    for axis, name in ((ttft, "ttft_ms"), (tpot, "tpot_ms")):
        for percentile, colour in (("p50", COLOURS[1]), ("p99", COLOURS[3])):
            values = [one[name][percentile] for one in sweep]
            axis.plot(offered, values, "o-", color=colour, markersize=3, label=percentile)
        axis.set_title(f"{name[:4].upper()}, ms", fontsize=9)
        axis.set_ylim(bottom=0)
    for axis in (goodput, ttft, tpot):
        axis.set_xlabel(f"offered, {unit}", fontsize=8)
        axis.legend(fontsize=7, frameon=False)
    return _svg(figure)


def _distribution(
    seconds: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], most: int = 500
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Milliseconds and shares, at most so many points, the last among them."""
    if not len(seconds):
        return np.zeros(0), np.zeros(0)
    order = np.argsort(seconds, kind="stable")
    share = np.cumsum(counts[order]) / counts.sum()
    kept = np.unique(np.searchsorted(share, np.linspace(0, 1, most)).clip(max=len(share) - 1))
    return 1e3 * seconds[order][kept], share[kept]


def _figure(columns: int) -> tuple[Any, Any]:
    figure = drawing("html", "html")(figsize=_SIZE, layout="constrained")
    axes = figure.subplots(1, columns)
    for axis in axes:
        axis.tick_params(labelsize=7, which="both")
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> str:
    """One <svg> element, the same for the same figure."""
    from matplotlib import rc_context  # noqa: PLC0415  an optional extra

    file = io.StringIO()
    with rc_context({"svg.hashsalt": "headrace"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
