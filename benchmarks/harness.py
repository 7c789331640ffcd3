"""How everything is measured: contenders in turns, several rounds, medians and their range, one kind of table."""

from __future__ import annotations

import math
import statistics
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from benchmarks.latency import slowed
from tests.engines.engine import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from benchmarks.contenders import Variant
    from tests.engines.engine import Engine
    from tests.engines.servers import Servers

T = TypeVar("T")

#: Round trip of the network, in milliseconds, where a part does not vary it: inside a Region.
ROUND_TRIP_MS: Final = 5.0


class Part(NamedTuple):
    """What can be asked for.

    Attributes:
        title: of its table.
        measure: measures it.
        is_compared: with its first contender; otherwise it is counted, and the same on each machine.
    """

    title: str
    measure: Callable[[Bench], None]
    is_compared: bool = True


class Measured(NamedTuple):
    """What one contender did in one case.

    Attributes:
        part: that it belongs to.
        case: how large, how far, or how many.
        contender: who did it.
        figures: by name, one of each round.
        ratios: of the first figure to that of the first contender, one of each round.
    """

    part: str
    case: str
    contender: str
    figures: dict[str, list[float]]
    ratios: list[float]


@dataclass
class Bench:
    """One run.

    Attributes:
        servers: the engines.
        rounds: how often all take turns.
        only: contenders that are wanted have one of these in their name; all without.
        is_small: everything as small as it can be, only to see that it works.
        measured: what was measured, in order.
        part: that is measured now.
    """

    servers: Servers
    rounds: int
    only: Sequence[str] = ()
    is_small: bool = False
    measured: list[Measured] = field(default_factory=list)
    part: str = ""

    def of(self, part: str) -> list[Measured]:
        """Return what was measured of a part."""
        return [each for each in self.measured if each.part == part]

    def size(self, usual: T, small: T) -> T:
        """Choose between two sizes."""
        return small if self.is_small else usual

    def wanted(self, variants: Sequence[Variant]) -> list[Variant]:
        """Return those contenders that were asked for."""
        return [each for each in variants if any(part in each.name for part in self.only or [""])]

    @contextmanager
    def url(self, round_trip_ms: float = ROUND_TRIP_MS) -> Iterator[str]:
        """Run dynoxide behind a network."""
        with slowed(self.servers["dynoxide"].url, round_trip_ms) as url:
            yield url

    @contextmanager
    def engine(self, round_trip_ms: float = 0.0) -> Iterator[Engine]:
        """Run the same, to bind models to."""
        with self.url(round_trip_ms) as url, running("dynoxide", self.servers) as engine:
            engine.host = url
            yield engine

    def in_turns(
        self,
        case: str,
        turns: Mapping[str, Callable[[], dict[str, float]]],
        *,
        rounds: int | None = None,
        warm_up: int = 0,
    ) -> None:
        """Let contenders take turns.

        Args:
            case: how it is called in the table.
            turns: by contender, what makes a turn, and returns its figures by name. The first is the yardstick.
            rounds: None: those of the run.
            warm_up: rounds before that do not count.
        """
        seen: dict[str, dict[str, list[float]]] = {name: {} for name in turns}
        for number in range(-warm_up, rounds or self.rounds):
            for name, turn in turns.items():
                sys.stderr.write(f"{self.part}, {case}, round {number + 1}: {name}\n")
                figures = turn()
                for what, value in figures.items() if number >= 0 else ():
                    seen[name].setdefault(what, []).append(value)
        main = {name: next(iter(figures.values())) for name, figures in seen.items()}
        for name, own in main.items():
            base = next(iter(main.values()))
            ratios = [mine / theirs if theirs else math.nan for mine, theirs in zip(own, base, strict=True)]
            self.measured.append(Measured(self.part, case, name, seen[name], ratios))


# The table


def table(measured: Sequence[Measured], part: Part) -> str:
    """Return a table: a row for each case and contender, a column for each figure."""
    if not measured:
        return "No contender was asked for."
    names = list(dict.fromkeys(name for each in measured for name in each.figures))
    ratio = ["ratio"] if part.is_compared else []
    lines: list[list[str]] = [["case", "contender", names[0], *ratio, *names[1:]]]
    lines.append(["---", "---", *(["---:"] * (len(names) + len(ratio)))])
    for each in measured:
        cells = [told(each.figures.get(name, [])) for name in names]
        cells[1:1] = [told(each.ratios) for _ in ratio]
        lines.append([each.case, each.contender, *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def told(values: Sequence[float]) -> str:
    """Return a median, and the range if there is one."""
    if not values or math.isnan(values[0]):
        return "-"
    low, middle, high = map(_number, (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def _number(value: float) -> str:
    """Return it with three digits that mean something."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"  # noqa: PLR2004 - three digits


# The picture

#: Of bars: each has a contrast of 3 or more on light and on dark pages.
COLOURS: Final = ("#3a83c5", "#d9731a", "#2f9e58", "#de4f4b", "#9a6fc9", "#a56f55", "#d257ab", "#808080")
_STYLE: Final = (
    "svg{--page:#ffffff;color:#1f2328;fill:currentColor}"
    "@media(prefers-color-scheme:dark){svg{--page:#131416;color:#e4e6ea}}</style>"
)


def draw(title: str, measured: Sequence[Measured], file: Path) -> None:
    """Draw the first figure of a part: a bar for each contender and case, and the range of its rounds."""
    import matplotlib as mpl  # noqa: PLC0415 - only for what is published
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams.update({"svg.hashsalt": "pynamo_locking", "svg.fonttype": "none", "axes.facecolor": "none"})
    figure = Figure(figsize=(6.5, 0.16 * len(measured) + 1), facecolor="#ffffff")
    axis = figure.subplots()
    cases = list(dict.fromkeys(each.case for each in measured))
    rounds = [next(iter(each.figures.values())) for each in measured]
    for place, (each, values) in enumerate(zip(measured, rounds, strict=True)):
        middle = statistics.median(values)
        spread = [[middle - min(values)], [max(values) - middle]]
        colour = COLOURS[cases.index(each.case) % len(COLOURS)]
        axis.barh(place, middle, xerr=spread, color=colour, ecolor="#808080", height=0.8)
    axis.set_yticks(range(len(measured)), [f"{each.contender}, {each.case}" for each in measured], fontsize=7)
    axis.invert_yaxis()
    axis.set_xscale("log" if min(map(min, rounds)) > 0 else "symlog")
    axis.set_title(f"{title}: {next(iter(measured[0].figures))}", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    drawn = StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    svg = drawn.getvalue().replace("#000000", "currentColor").replace("#ffffff", "var(--page)")
    file.write_text(svg.replace("</style>", _STYLE, 1), encoding="utf-8")
