"""Pictures of reports: groups of bars, one panel for each figure. Needs matplotlib (`pip install 'headrace[plan]'`),
which is loaded only when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.core.errors import ConfigError

_COLOURS = ("#9aa5b1", "#1f6feb", "#2da44e", "#bf8700")
_PANEL = (3.0, 2.4)
"""Inches."""


def draw_bars(path: Path, panels: Mapping[str, Mapping[str, float]], columns: int) -> None:
    """Write a picture of {title: {arm: value}} panels, `columns` in a row; the suffix says which kind (.png, .svg).
    Raises ConfigError without matplotlib, or for a kind that it does not know."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise ConfigError("a picture needs matplotlib: pip install 'headrace[plan]'", field="plot") from error
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, (title, values) in zip(axes, panels.items(), strict=False):
        bars = axis.bar(range(len(values)), list(values.values()), color=_COLOURS[: len(values)], width=0.6)
        axis.bar_label(bars, labels=[_text(value) for value in values.values()], fontsize=8)
        axis.set_xticks(range(len(values)), list(values), fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.margins(y=0.15)
        axis.set_yticks([])
        axis.spines[["top", "right", "left"]].set_visible(False)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise ConfigError(f"plot: {path} cannot be drawn: {error}", field="plot") from error


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
