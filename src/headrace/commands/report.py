"""What a reporting command prints (a table of two columns), writes (--json FILE) and draws (--plot FILE). Keys carry
their unit: _ms, _per_s, _bytes.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

Report = Mapping[str, Any]


class NewFile(click.Path):
    """A file to be written, whose folder is looked for before anything is computed."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        file = Path(str(super().convert(value, param, ctx)))
        if not file.parent.is_dir():
            self.fail(f"there is no folder {str(file.parent)!r} to write it in", param, ctx)
        return file


EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json",
    "json_file",
    type=NewFile(),
    help="Also write the report there.",
)
plot_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--plot",
    type=NewFile(),
    help="Also draw the report there, as .png or .svg; needs the `plan` extra.",
)


@contextmanager
def counting(length: int, label: str) -> Iterator[Callable[[int], object]]:
    """A bar on stderr, moved by so many of its length. It appears with the first: an error before comes alone."""
    bar = click.progressbar(length=length, label=label, file=sys.stderr)
    try:
        yield bar.update
    finally:
        if bar.pos:
            bar.render_finish()


def show(report: Report, json_file: Path | None) -> None:
    """Print a report as a table and write it as JSON where asked."""
    rows = list(_rows(report))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")
    write_json(report, json_file)


def write_json(report: Report, json_file: Path | None) -> None:
    """Write a report as JSON where asked."""
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _rows(report: Report, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in report.items():
        if isinstance(value, Mapping) and value:
            yield from _rows(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _text(name, value)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, list | tuple | str | Mapping) and not value:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(_text(name, item) for item in value)
    if name.endswith("_bytes"):
        return f"{value:,}  ({value / 2**20:,.1f} MiB)" if value >= 2**16 else f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
