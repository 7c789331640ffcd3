"""Figures as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table: names to the left, figures to the right."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def milliseconds(value: float) -> str:
    """Return a time with as many digits as mean something."""
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"  # noqa: PLR2004 - three digits


def spread(values: Sequence[float]) -> str:
    """Return the range of the middle 80 % of some values."""
    ordered = sorted(values)
    left_out = len(ordered) // 10
    return f"{ordered[left_out]:.2f} to {ordered[-left_out - 1]:.2f}"


def fill(page: Path, name: str, text: str) -> None:
    """Replace what stands between two marks of a page.

    Raises:
        LookupError: the page has no such marks.
    """
    begin, end = f"<!-- figures: {name} -->", "<!-- end -->"
    pattern = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    old = page.read_text(encoding="utf-8")
    if not pattern.search(old):
        raise LookupError(f"{page} has no place for the figures of {name}: {begin} ... {end}")
    page.write_text(pattern.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", old), encoding="utf-8")
