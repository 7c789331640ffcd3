"""Tables of pages that quote a run: a comment before each names the figures and contenders that it shows.

    <!-- measured: contention | 8 contenders | cycles/s; longest, ms | edit(); NamedLock -->

The part, the case, the figures, and the contenders; without contenders, all of them. `make bench` writes the tables,
and a test compares them with the figures of the run.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Measured, told

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_QUOTE: Final = re.compile(r"(<!-- measured: (.*) -->\n)\n?(?:\|.*\n)*\n*")


def read(file: Path) -> list[Measured]:
    """Return what a run has measured."""
    return [Measured(**each) for each in json.loads(file.read_text(encoding="utf-8"))["figures"]]


def pages(root: Path) -> list[Path]:
    """Return the pages of the documentation that quote a run."""
    found = sorted(path for path in (root / "docs").rglob("*.md") if "_build" not in path.parts)
    return [path for path in found if "<!-- measured: " in path.read_text(encoding="utf-8")]


def filled(page: str, measured: Sequence[Measured]) -> str:
    """Return a page with the figures of a run in its tables."""
    return _QUOTE.sub(lambda quote: f"{quote[1]}\n{_table(quote[2], measured)}\n", page).rstrip() + "\n"


def _table(asked: str, measured: Sequence[Measured]) -> str:
    part, case, figures, *contenders = asked.split(" | ")
    names = figures.split("; ")
    found = {each.contender: each for each in measured if (each.part, each.case) == (part, case)}
    wanted = contenders[0].split("; ") if contenders else [*found]
    lines = [[case, *names], ["---", *("---:" for _ in names)]]
    for contender in wanted:
        each = found[contender]
        lines.append([contender, *(told(each.ratios if name == "ratio" else each.figures[name]) for name in names)])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
