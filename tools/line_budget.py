"""The line budget: no source file over 500 lines, all of them together under TOTAL_LIMIT. A file that outgrows it has
taken in a second idea; a project that outgrows it deletes before it adds."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("src", "csrc")
SUFFIXES = frozenset({".py", ".h", ".cpp", ".js", ".css", ".html"})
FILE_LIMIT = 500
TOTAL_LIMIT = 48_000


def count(root: Path) -> dict[Path, int]:
    """Lines of every source file of the budget, by path relative to root."""
    files = (path for room in ROOMS for path in sorted((root / room).rglob("*")) if path.suffix in SUFFIXES)
    return {path.relative_to(root): len(path.read_text(encoding="utf-8").splitlines()) for path in files}


def overruns(lines: dict[Path, int]) -> list[str]:
    """What breaks the budget, one sentence each."""
    found = [f"{path}: {n} lines, the limit is {FILE_LIMIT}" for path, n in lines.items() if n > FILE_LIMIT]
    total = sum(lines.values())
    if total > TOTAL_LIMIT:
        found.append(f"{total} lines in {' and '.join(ROOMS)}, the limit is {TOTAL_LIMIT}")
    return found


def main() -> int:
    lines = count(ROOT)
    found = overruns(lines)
    for sentence in found:
        sys.stderr.write(f"{sentence}\n")
    largest = max(lines, key=lines.__getitem__)
    sys.stdout.write(f"{len(lines)} files, {sum(lines.values())} lines; the largest is {largest}, {lines[largest]}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
