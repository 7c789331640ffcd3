"""How plots are drawn: as SVG, for light and dark pages."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from pathlib import Path

#: Of lines and bars: each has a contrast of 3 or more on light and on dark pages.
COLOURS: Final = (
    "#3a83c5",
    "#d9731a",
    "#2f9e58",
    "#de4f4b",
    "#9a6fc9",
    "#a56f55",
    "#d257ab",
    "#808080",
    "#8f8a20",
    "#1b95a6",
)
_BLACK: Final = "#000000"
_WHITE: Final = "#ffffff"
_STYLE: Final = (
    "svg{--page:#ffffff;color:#1f2328;fill:currentColor}"
    "@media(prefers-color-scheme:dark){svg{--page:#131416;color:#e4e6ea}}"
)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of that many inches, which draws the same file for the same figures."""
    mpl.rcParams["svg.hashsalt"] = "pynamo_locking"
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["axes.facecolor"] = "none"
    mpl.rcParams["axes.prop_cycle"] = cycler(color=COLOURS)
    return Figure(figsize=(width, height), facecolor=_WHITE)


def save(figure: Figure, file: Path) -> None:
    """Write it."""
    figure.tight_layout()
    drawn = StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(follow_the_page(drawn.getvalue()))


def follow_the_page(svg: str) -> str:
    """Return it with black and white in the place of each other on a dark page."""
    svg = svg.replace(_BLACK, "currentColor").replace(_WHITE, "var(--page)")
    return svg.replace("</style>", f"{_STYLE}</style>", 1)
