"""What `headrace plan` prints beside a plan: the catalogue of models and GPUs, a napkin beside what is right, and what
each optimization saves.
"""

import textwrap
from collections.abc import Sequence

import click

from headrace.plan.ablation import FIRST, Ablation, assumed
from headrace.plan.catalogue import Report
from headrace.plan.claim import Claim
from headrace.plan.optimization import EFFORT
from headrace.plan.trial import Trial

_WIDTH = 110
_KEPT_FOR = {
    "saving": "nothing left to save",
    "waits": "shorter waits",
    "others": "nothing itself, caching of prefixes needs it",
}


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


def show_ablation(found: Ablation) -> None:
    head = ("GPUs", "USD an hour", "TTFT p50", "p99 ms", "ITL p99", "stall ms", "in time", "saves", "kept", "by")
    rows: list[tuple[str, ...]] = [("added one by one", *head)]
    rows.append(("naive", *_cells(found.naive), "", "", ""))
    for step in found.steps:
        of = step.optimization
        rows.append((of.name, *_cells(step.trial), _share(step.saved), "yes" if step.kept else "no", of.how))
    show_table(rows)
    click.echo("\nnaive: static batches, memory for the longest request from the start, 16 bits, no prefix cache")
    if found.first_saved is not None:
        click.echo(f"the first {FIRST} together save {100 * found.first_saved:.0f} %")
    rows = [("the whole, and without", *head[:7], "saves", "USD an hour"), ("the whole", *_cells(found.whole), "", "")]
    for step in found.steps:
        name = f"without {step.optimization.name}" if step.kept else f"with {step.optimization.name}"
        alone = step.alone or 0.0
        share = None if step.other is None else alone / max(step.other.cost, found.whole.cost)
        rows.append((name, *_cells(step.other), _share(share), "" if share is None else f"{alone + 0.0:,.0f}"))
    click.echo()
    show_table(rows)
    click.echo("\nwhat to do first, by what the whole saves with it for each grade of effort")
    for place, step in enumerate(found.first_to_do, 1):
        of = step.optimization
        worth = (
            f"{step.alone:,.0f} USD an hour" if step.alone is not None and step.alone > 0 else _KEPT_FOR[of.kept_for]
        )
        click.echo(f"{place:>2}. {of.name}: {worth}, effort {of.effort}")
    click.echo("assumed: " + "; ".join(f"{name}: {text}" for name, text in assumed(found.question).items()))
    click.echo("effort: " + "; ".join(f"{grade} {text}" for grade, text in EFFORT.items()))


def show_table(rows: Sequence[Sequence[str]]) -> None:
    """The first row is the head; the first column stands left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        click.echo("  ".join([f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)]).rstrip())


def _cells(trial: Trial | None) -> tuple[str, ...]:
    if trial is None:
        return ("-",) * 7
    w = trial.waits
    waits = (f"{1e3 * seconds:,.0f}" for seconds in (w.ttft_p50, w.ttft_p99, w.itl_p99, w.stall))
    return f"{trial.gpus:,}", f"{trial.cost:,.0f}", *waits, "yes" if trial.in_time else "no"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.1f} %"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.3g}"
