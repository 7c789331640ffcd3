"""A picture of who held which lock when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from demo import bank
from demo.phases import VICTIM
from demo.report import turns_in_order

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from demo.phases import Kill, Result

#: Paul Tol's muted colours: told apart by the colour-blind as well.
COLOURS: Final = ("#332288", "#88CCEE", "#44AA99", "#117733", "#DDCC77", "#CC6677", "#AA4499", "#999933")
DEAD: Final = "#1a1a1a"
INK: Final = "#333333"
KILL: Final = "#d00000"
TAKEOVER: Final = INK
#: What the lower part shows: so many seconds before the takeover, and after it.
BEFORE_S: Final = 0.25
AFTER_S: Final = 1.0
BAR: Final = 0.62


def draw(result: Result, path: Path) -> None:
    """Draw the phase with locks and write it to a file; the file's suffix is its format."""
    layout = ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12)
    figure = Figure(figsize=(12, 7.2), layout=layout, facecolor="white")
    figure.suptitle("Who held the lock of which account", x=0.012, ha="left", fontsize=16, weight="bold", color=INK)
    whole, part = figure.subplots(2, 1, height_ratios=(1, 1.05))
    for axes in (whole, part):
        _bars(axes, result)
        _dress(axes)
    whole.set_xlim(0, result.seconds * 1.005)
    _title(whole, "The whole run: one lane per account, one colour per process")
    if result.kill is not None:
        _mark_kill(whole, result, result.kill)
    _zoom(part, result)
    _legend(figure, result)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _lane(account: str) -> int:
    return len(bank.NAMES) - 1 - bank.NAMES.index(account)


def _colours(result: Result) -> dict[str, str]:
    workers = sorted({turn.worker for turn in result.turns}, key=lambda name: (len(name), name))
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(workers)} | {VICTIM: DEAD}


def _bars(axes: Axes, result: Result) -> None:
    colours = _colours(result)
    for account, turns in turns_in_order(result).items():
        axes.broken_barh(
            [(turn.granted - result.began, turn.released - turn.granted) for turn in turns if turn.worker != VICTIM],
            (_lane(account) - BAR / 2, BAR),
            facecolors=[colours[turn.worker] for turn in turns if turn.worker != VICTIM],
        )
    if result.kill is not None:
        _dead_bar(axes, result, result.kill)


def _dead_bar(axes: Axes, result: Result, kill: Kill) -> None:
    held = kill.at - kill.turn.granted
    below = _lane(kill.turn.account) - BAR / 2
    axes.broken_barh([(kill.turn.granted - result.began, held)], (below, BAR), facecolors=DEAD)
    axes.broken_barh(
        [(kill.at - result.began, kill.recovery_s or result.ended - kill.at)],
        (below, BAR),
        facecolors="#eeeeee",
        edgecolors="#bbbbbb",
        hatch="////",
        linewidth=0,
    )


def _dress(axes: Axes) -> None:
    axes.set_ylim(-0.6, len(bank.NAMES) - 0.4)
    axes.set_yticks([_lane(name) for name in bank.NAMES], bank.NAMES, fontsize=12, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", colors=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    axes.grid(axis="x", color="#e8e8e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("seconds since the start of the phase", color=INK)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=12, color=INK, pad=26)


def _mark_kill(axes: Axes, result: Result, kill: Kill) -> None:
    _line(axes, kill.at - result.began, "SIGKILL ", KILL, "right")
    if kill.recovery_s is None or kill.next is None:
        return
    takeover = kill.next.granted - result.began
    _line(axes, takeover, f" {kill.next.worker} takes over", TAKEOVER, "left")
    middle = (kill.at - result.began + takeover) / 2
    _boxed(axes, middle, _lane(kill.turn.account), f"{kill.recovery_s:.1f} s until the lease is over")


def _line(axes: Axes, at: float, text: str, colour: str, side: str) -> None:
    axes.axvline(at, color=colour, linewidth=1.6)
    axes.text(at, 1.02, text, transform=axes.get_xaxis_transform(), color=colour, ha=side, va="bottom", weight="bold")


def _boxed(axes: Axes, x: float, y: float, text: str) -> None:
    box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
    axes.text(x, y, text, ha="center", va="center", fontsize=9, color=INK, bbox=box)


def _zoom(axes: Axes, result: Result) -> None:
    if result.kill is None or result.kill.next is None:
        axes.set_visible(False)
        return
    takeover = result.kill.next.granted - result.began
    axes.set_xlim(takeover - BEFORE_S, takeover + AFTER_S)
    _title(axes, "The takeover: served in the order in which they came (numbers: tickets drawn after the dead process)")
    _line(axes, takeover, f" {result.kill.next.worker} takes over", TAKEOVER, "left")

    _number(axes, result, result.kill)


def _number(axes: Axes, result: Result, kill: Kill) -> None:
    """Write over each turn how many tickets after the dead one's it has."""
    start, end = axes.get_xlim()
    for turn in turns_in_order(result)[kill.turn.account]:
        middle = (turn.granted + turn.released) / 2 - result.began
        if turn.ticket > kill.turn.ticket and start < middle < end:
            number = str(turn.ticket - kill.turn.ticket)
            top = _lane(turn.account) + BAR / 2 + 0.05
            axes.text(middle, top, number, ha="center", va="bottom", fontsize=8, color=INK)


def _legend(figure: Figure, result: Result) -> None:
    handles = [Patch(color=colour, label=name) for name, colour in _colours(result).items()]
    handles.append(Patch(facecolor="#eeeeee", edgecolor="#bbbbbb", hatch="////", label="dead, lease not over"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(5, len(handles)), frameon=False, labelcolor=INK
    )
