"""What `headrace plan` prints beside a plan: the catalogue of models and GPUs, and the napkin beside what is right."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import click

from headrace.plan.catalogue import Report
from headrace.plan.claim import Claim

_WIDTH = 110


def show_catalogue(report: Report) -> None:
    rows: list[tuple[str, ...]] = [
        ("model", "parameters", "active", "layers", "bf16", "fp8", "int4", "KV a token", "context")
    ]
    for name, m in report["models"].items():
        weights = [f"{m['weight_bytes'][dtype] / 1e9:,.1f} GB" for dtype in ("bf16", "fp8", "int4")]
        sizes = [f"{m[key] / 1e9:,.2f}e9" for key in ("parameters", "active_parameters")]
        kept = f"{m['kv_bytes_per_token']['bf16'] / 1024:,.1f} KiB"
        rows.append((name, *sizes, str(m["layers"]), *weights, kept, f"{m['max_position']:,}"))
    show_table(rows)
    click.echo("KV in 16 bits; weights with embedding and head in 16 bits.\n")
    rows = [("gpu", "memory", "bandwidth", "bf16", "fp8", "link", "PCIe", "NIC", "host", "USD an hour", "kernels")]
    for name, g in report["gpus"].items():
        peaks = g["operations_per_s"]
        links = [f"{g[key] / 1e9:,.0f} GB/s" for key in ("link_bytes_per_s", "pcie_bytes_per_s", "nic_bytes_per_s")]
        rows.append(
            (
                name,
                f"{g['memory_bytes'] / 2**30:,.0f} GiB",
                f"{g['bandwidth_bytes_per_s'] / 1e12:.2f} TB/s",
                *(f"{peaks[dtype] / 1e12:,.0f}e12" if dtype in peaks else "-" for dtype in ("bf16", "fp8")),
                *links,
                f"{g['host_memory_bytes'] / 2**30:,.0f} GiB",
                f"{g['price_per_hour_usd']:.2f} ({g['priced']})",
                "measured" if g["kernels_measured"] else "as h100's",
            )
        )
    show_table(rows)
    click.echo("Peaks dense, links one way. A price is a default near what clouds ask: give yours.")


def show_claims(claims: Sequence[Claim]) -> None:
    for claim in claims:
        click.echo(claim.claim)
        figures = [f"{name} {_figure(value)}" for name, value in (("theirs", claim.theirs), ("here", claim.right))]
        times = "" if claim.factor is None or claim.verdict == "right" else f", {claim.factor:.3g} x"
        click.echo(f"  {'   '.join(figures)}  {claim.unit}   [{claim.verdict}{times}]")
        click.echo(textwrap.fill(claim.why, _WIDTH, initial_indent="  ", subsequent_indent="  ") + "\n")
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in ("right", "wrong", "unclear")}
    click.echo(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def show_table(rows: Sequence[Sequence[str]]) -> None:
    """The first row is the head; the first column stands left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        click.echo("  ".join([f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)]).rstrip())


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.3g}"
