"""A simulation's report as one HTML file that needs nothing else: what was asked, the figures, and pictures of
latencies, of load over time, of where requests' time went, and of goodput against load where rates were swept. Whatever
comes from outside is escaped.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from headrace.simulate.pictures import draw_latencies, draw_load, draw_parts, draw_sweep
from headrace.simulate.watch import Watch

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .1rem 1.2rem .1rem 0; text-align: left; vertical-align: top }
td { font-variant-numeric: tabular-nums } th { font-weight: normal; color: #59636e }
svg { width: 100%; height: auto } p { color: #59636e; margin: .3rem 0 }
"""


def render(asked: Mapping[str, Any], report: Mapping[str, Any], watch: Watch, unit: str) -> str:
    """asked: what was simulated, by name. report: its figures, as `--json` has them; unit: of what a sweep offers.
    Raises ConfigError without matplotlib."""
    found = {name: value for name, value in report.items() if name not in ("replicas", "sweep")}
    if transfer := found.get("transfer"):
        found["transfer"] = {name: value for name, value in transfer.items() if name != "links"}
    parts = [
        _section("Asked", _table(_rows({k: v for k, v in asked.items() if v is not None}))),
        _section("Found", _table(_rows(found))),
    ]
    if len(watch.e2e):
        parts += [
            _section("Latencies", draw_latencies(watch), "Share of requests (ITL: of gaps between tokens)."),
            _section("Load over time", draw_load(watch), "Of all replicas together."),
            _section(
                "Where requests' time went",
                draw_parts(watch),
                "queue: before it first runs. prefill: from then to the first token. transfer: until another pool has "
                "what was computed. decode: to the last token. stalled: in between, while others had its place.",
            ),
        ]
    if sweep := report.get("sweep"):
        parts.append(_section("Goodput against load", draw_sweep(sweep, unit), "good: within the limits of latency."))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>headrace simulate</title>'
        f"<style>{_STYLE}</style></head><body><h1>headrace simulate</h1>\n{''.join(parts)}</body></html>\n"
    )


def _section(title: str, body: str, note: str = "") -> str:
    return f"<h2>{escape(title)}</h2>\n{f'<p>{escape(note)}</p>' if note else ''}{body}\n"


def _table(rows: Iterator[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>\n" for a, b in rows) + "</table>"


def _rows(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value and all(isinstance(v, int | float) for v in value.values()):
            yield prefix + name, ", ".join(f"{key} {_number(one)}" for key, one in value.items())
        elif isinstance(value, Mapping):
            yield from _rows(value, f"{prefix}{name}.")
        else:
            yield prefix + name, _number(value)


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"
