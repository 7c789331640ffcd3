"""The pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.drawing import new_figure, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.figure import Figure

    from benchmarks.locks.contention import Race
    from benchmarks.locks.cycles import Cycles
    from benchmarks.locks.handoff import Handoff

#: The marks of lines, so that they can be told apart without colours.
_MARKS = "osD^vP*Xph<>8d"
#: In inches: what a phone shows without making letters too small.
_WIDTH = 5.4


def _figure(height: float, rows: int) -> tuple[Figure, Any]:
    figure = new_figure(_WIDTH, height)
    axes = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(b=False)
    return figure, axes


def _labels(names: list[str]) -> list[str]:
    return [name.replace(", ", ",\n") for name in names]


def draw_cycles(done: list[Cycles], file: Path) -> None:
    """Draw the ratio to no protection of everyone, at each distance that has a network."""
    trips = [trip for trip in dict.fromkeys(each.round_trip_ms for each in done) if trip]
    names = list(dict.fromkeys(each.contender for each in done))
    figure, axes = _figure(0.42 * len(names) + 1, 1)
    height = 0.8 / len(trips)
    for k, trip in enumerate(trips):
        ratios = {each.contender: each.ratio for each in done if each.round_trip_ms == trip}
        places = [len(names) - i - height * k for i in range(len(names))]
        axes[0].barh(places, [ratios[name] for name in names], height=height, label=f"{trip:g} ms")
    axes[0].set_yticks([len(names) - i - height for i in range(len(names))], _labels(names), fontsize=9)
    axes[0].axvline(1.0, color="black", linewidth=0.8)
    axes[0].set_title("one uncontended read-modify-write:\ntime, in times of an unprotected one", fontsize=10)
    axes[0].legend(title="round trip", frameon=False, fontsize=9)
    save(figure, file)


def draw_contention(races: list[Race], file: Path) -> None:
    """Draw throughput and waits against the number of contenders."""
    values: list[tuple[str, Callable[[Race], float]]] = [
        ("cycles a second", lambda each: each.cycles_per_s),
        ("wait, 99 of 100 below, ms", lambda each: each.wait_p99_ms),
        ("requests for each cycle", lambda each: each.requests),
    ]
    names = dict.fromkeys(each.contender for each in races if not each.contender.endswith("polls like ours"))
    _lines(races, values, list(names), file)


def draw_versions(races: list[Race], names: list[str], file: Path) -> None:
    """Draw locks beside versions only."""
    values: list[tuple[str, Callable[[Race], float]]] = [
        ("cycles a second", lambda each: each.cycles_per_s),
        ("wait, longest, ms", lambda each: each.wait_max_ms),
        ("write units for each cycle", lambda each: each.write_units),
    ]
    _lines(races, values, names, file)


def _lines(races: list[Race], values: list[tuple[str, Callable[[Race], float]]], names: list[str], file: Path) -> None:
    figure, axes = _figure(3 * len(values) + 0.25 * len(names) / 2, len(values))
    for axis, (title, value) in zip(axes, values, strict=True):
        for mark, name in zip(_MARKS, names, strict=False):
            points = [(each.threads, value(each)) for each in races if each.contender == name and value(each) > 0]
            axis.plot(*zip(*points, strict=True), marker=mark, markersize=4, linewidth=1, label=name)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        levels = sorted({each.threads for each in races})
        axis.set_xticks(levels, [str(level) for level in levels])
        axis.set_title(title, fontsize=10)
    axes[-1].set_xlabel("contenders for one lock", fontsize=9)
    lines = axes[0].get_legend_handles_labels()
    axes[-1].legend(*lines, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False, fontsize=9)
    save(figure, file)


def draw_handoff(done: list[Handoff], file: Path) -> None:
    """Draw how long a lock is nobody's."""
    names = list(dict.fromkeys(each.contender for each in done))
    figure, axes = _figure(0.42 * len(names) + 1, 1)
    for k, where in enumerate(("same process", "other process")):
        medians = {each.contender: each.median_ms for each in done if each.where == where}
        places = [len(names) - i - 0.4 * k for i in range(len(names))]
        axes[0].barh(places, [medians[name] for name in names], height=0.4, label=where)
    axes[0].set_yticks([len(names) - i - 0.2 for i in range(len(names))], _labels(names), fontsize=9)
    axes[0].set_xscale("log")
    axes[0].set_title("from the beginning of a release\nto the next grant: median, ms", fontsize=10)
    axes[0].legend(frameon=False, fontsize=9)
    save(figure, file)
