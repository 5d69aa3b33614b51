"""Pictures of reports: groups of bars, one panel for each figure, and waterfalls. They need matplotlib
(`pip install 'headrace[plan]'`), which is loaded only when a picture is drawn.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError

_COLOURS = ("#9aa5b1", "#1f6feb", "#2da44e", "#bf8700")
_PANEL = (3.0, 2.4)
"""Inches."""
_WATERFALL = (7.0, 0.32)
"""Inches: of the picture, and of a bar."""


def draw_bars(path: Path, panels: Mapping[str, Mapping[str, float]], columns: int) -> None:
    """Write a picture of {title: {arm: value}} panels, `columns` in a row; the suffix says which kind (.png, .svg).
    Raises ConfigError without matplotlib, or for a kind that it does not know."""
    rows = -(-len(panels) // columns)
    figure = _figure(_PANEL[0] * columns, _PANEL[1] * rows)
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
    _save(figure, path)


def draw_waterfall(path: Path, title: str, levels: Mapping[str, float]) -> None:
    """Write a picture of how a value came down from the first of {name: level} to the last: a bar for the first and the
    last, and what each between them took off. Raises ConfigError as draw_bars does."""
    names, values = list(levels), list(levels.values())
    figure = _figure(_WATERFALL[0], _WATERFALL[1] * (len(names) + 1))
    axis = figure.subplots()
    for row, value in enumerate(values):
        before = values[max(row - 1, 0)]
        whole = row in (0, len(values) - 1)
        left, right = (0.0, value) if whole else sorted((value, before))
        colour = _COLOURS[0] if whole else _COLOURS[2] if value <= before else _COLOURS[3]
        axis.barh(row, right - left, left=left, color=colour, height=0.6)
        change = "" if whole or not before else f"  ({100 * (value / before - 1):+.0f} %)"
        axis.annotate(f" {_text(value)}{change}", (right, row), va="center", fontsize=8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_title(title, fontsize=9)
    axis.margins(x=0.25)
    axis.set_xlim(left=0)
    axis.set_xticks([])
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    _save(figure, path)


def drawing(wanted: str = "a picture", field: str = "plot") -> Any:
    """matplotlib's Figure. ConfigError where it is not installed: what was wanted, and the field that asked for it."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise ConfigError(f"{wanted} needs matplotlib: pip install 'headrace[plan]'", field=field) from error
    return Figure


def _figure(width: float, height: float) -> Any:
    return drawing()(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise ConfigError(f"plot: {path} cannot be drawn: {error}", field="plot") from error


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
