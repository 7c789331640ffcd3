"""Everything about locks that can be measured on one machine.

    python -m benchmarks.locks cycles       # one uncontended cycle of everyone, at 0, 1, 5 and 20 ms
    python -m benchmarks.locks contention   # 1 to 128 contenders for one lock: the rush, then the steady state
    python -m benchmarks.locks combine      # changes that the callers of a process write together, beside others
    python -m benchmarks.locks throttled    # the same before an engine that throttles hot keys as a partition does
    python -m benchmarks.locks caps         # what a partition allows, by the length of the queue
    python -m benchmarks.locks handoff      # from a release to the next grant
    python -m benchmarks.locks bell         # 128 processes with one thread each, with the bell and without
    python -m benchmarks.locks crash        # after a kill of the holder
    python -m benchmarks.locks many         # 1 to 10,000 locks in one process
    python -m benchmarks.locks crowd        # 1 to 500 threads, and 1,000 tasks, of one process for one lock
    python -m benchmarks.locks queue        # a lock with a long queue
    python -m benchmarks.locks sizes        # transactions of 2 to 1,000 items
    python -m benchmarks.locks layer        # processor time, import time
    python -m benchmarks.locks all --publish

Each prints its tables as Markdown. With ``--publish`` they also go into ``benchmarks/results/locks.md``, the
pictures and ``locks.json`` into ``docs/benchmarks``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.progress import Progress

from benchmarks.contenders.optimistic import RetryLoop
from benchmarks.contenders.ours import Combine, Edit, LockedInItem, Modify
from benchmarks.latency import slowed
from benchmarks.locks import bell, caps, contention, crash, crowd, cycles, handoff, layer, many, plots, queue, sizes
from benchmarks.locks.tables import fill
from benchmarks.locks.variants import Variant, missing
from benchmarks.parts import Parts, run, show
from benchmarks.throttled import throttled
from benchmarks.transaction_counts import Record, Transactions
from pynamo_locking_simulator._engine.partitions import WRITE_UNITS
from tests.engines.engine import DUMMY_ENVIRONMENT, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine
    from tests.engines.servers import Servers

PUBLISHED: Final = Path(__file__).parents[2] / "docs" / "benchmarks"
RESULTS: Final = Path(__file__).parents[1] / "results" / "locks.md"
#: Of the tables that stand elsewhere than in `locks.md`.
PAGES: Final = {"caps": PUBLISHED.parent / "reference" / "costs.md"}
#: Where a table shall stand on the page, by its name, in the course of one run.
_tables: dict[str, str] = {}
_drawn: list[Callable[[Path], None]] = []


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[], None]]:
    with Progress(transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


def _table(name: str, title: str, text: str) -> None:
    _tables[name] = text
    show(title, text)


@contextmanager
def _at_a_distance(servers: Servers, round_trip_ms: float) -> Iterator[Engine]:
    """Run dynoxide behind a slow network."""
    with slowed(servers["dynoxide"].url, round_trip_ms) as url, running("dynoxide", servers) as engine:
        engine.host = url
        yield engine


def measure_cycles(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One after the other, at each distance."""
    done: list[cycles.Cycles] = []
    with _bar("cycles", options.turns * len(cycles.ROUND_TRIPS_MS)) as tick:
        for trip in cycles.ROUND_TRIPS_MS:
            done += cycles.measure(servers["dynoxide"].url, trip, options.turns, tick)
    _table("costs", "What a cycle takes of DynamoDB", cycles.costs_as_markdown(done))
    _table("cycles", "One cycle, alone", cycles.times_as_markdown(done))
    _drawn.append(lambda folder: plots.draw_cycles(done, folder / "locks-cycles.svg"))
    return [each.as_dict() for each in done]


def _crew(options: argparse.Namespace) -> list[Variant]:
    """Return those contenders that were asked for."""
    return [each for each in contention.all_variants() if any(part in each.name for part in options.only or [""])]


def measure_contention(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All levels of everyone, in turns."""
    crew, done = _crew(options), list[contention.Race]()
    course = contention.Course(options.seconds, options.rush, options.rounds)
    levels = [level for level in contention.LEVELS if options.at_least <= level <= options.contenders]
    total = len(levels) * len(crew) * options.rounds
    with _bar("contention", total) as tick, slowed(servers["dynoxide"].url, options.ms) as url:
        for level in levels:
            done += contention.compare(url, options.ms, crew, level, course, tick)
    _table("contention", "Contenders for one lock", contention.as_markdown(done))
    _drawn.append(lambda folder: plots.draw_contention(done, folder / "locks-contention.svg"))
    names = [each.kind.name for each in crew if each.kind in (RetryLoop, Modify, Edit, LockedInItem)]
    _drawn.append(lambda folder: plots.draw_versions(done, names, folder / "locks-versions.svg"))
    return [each.as_dict() for each in done]


def measure_combine(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Changes that are written one by one, and together."""
    crew, done = [each for each in _crew(options) if each.kind in (Edit, Modify, Combine)], list[contention.Race]()
    course = contention.Course(options.seconds, options.rush, options.rounds)
    levels = [level for level in contention.LEVELS[2:] if options.at_least <= level <= options.contenders]
    total = len(levels) * len(crew) * options.rounds
    with _bar("combine", total) as tick, slowed(servers["dynoxide"].url, options.ms) as url:
        for level in levels:
            done += contention.compare(url, options.ms, crew, level, course, tick)
    show("Changes that share a write", contention.as_markdown(done))
    return [each.as_dict() for each in done]


def measure_throttled(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Everyone once, at the highest levels, where a partition is what limits them."""
    crew, done = _crew(options), list[contention.Race]()
    levels = [level for level in contention.LEVELS[-2:] if level <= options.contenders] or [options.contenders]
    with (
        _bar("throttled", len(levels) * len(crew)) as tick,
        throttled(servers["dynoxide"].url, options.partition_units, options.burst) as (before, refusals),
        slowed(before, options.ms) as url,
    ):
        course = contention.Course(options.seconds, options.rush, 1, refusals)
        for level in levels:
            done += contention.compare(url, options.ms, crew, level, course, tick)
    _table("throttled", f"At {options.partition_units:g} write units a second", contention.as_markdown(done))
    return [each.as_dict() for each in done]


def measure_caps(servers: Servers, _options: argparse.Namespace) -> list[dict[str, Any]]:
    """What a partition allows."""
    with running("dynoxide", servers) as engine, _bar("caps", len(caps.KINDS) * len(caps.QUEUES)) as tick:
        engine.bind(*caps.MODELS)
        done = caps.measure(tick)
    _table("caps", "What a partition allows", caps.as_markdown(done))
    return [each.as_dict() for each in done]


def measure_handoff(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Release and grant."""
    with (
        _bar("handoff", len(handoff.all_variants())) as tick,
        slowed(servers["dynoxide"].url, options.ms) as url,
    ):
        done = handoff.report(tick, url, options.ms, options.samples)
    _table("handoff", "From a release to the next grant", handoff.as_markdown(done))
    _drawn.append(lambda folder: plots.draw_handoff(done, folder / "locks-handoff.svg"))
    return [each.as_dict() for each in done]


def measure_bell(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Processes of one machine."""
    with _bar("bell", 2 * options.rounds) as tick, slowed(servers["dynoxide"].url, options.ms) as url:
        count, times = options.contenders, (options.rush, options.seconds)
        done = bell.compare(url, options.ms, count, options.rounds, *times, tick)
    _table("bell", "Processes with one thread each", bell.as_markdown(done))
    return [each.as_dict() for each in done]


def measure_crash(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Kill and grant."""
    with _bar("crash", 8) as tick, slowed(servers["dynoxide"].url, options.ms) as url:
        done = crash.measure(url, options.ms, tick)
    _table("crash", "After a crash", crash.as_markdown(done))
    return [each.as_dict() for each in done]


def measure_many(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """More and more locks."""
    done = []
    counts = [count for count in many.COUNTS if count <= options.locks]
    with _bar("many", len(counts)) as tick, slowed(servers["dynoxide"].url, options.ms) as url:
        for count in counts:
            done.append(many.measure(url, count))
            tick()
    _table("many", "Many locks", many.as_markdown(done))
    return [each.as_dict() for each in done]


def measure_crowd(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """More and more callers of one process."""
    crowds = [each for each in crowd.CROWDS if each[1] <= options.callers]
    with _bar("crowd", len(crowds)) as tick, slowed(servers["dynoxide"].url, options.ms) as url:
        done = crowd.run(url, crowds, tick)
    _table("crowd", "One process, one lock", crowd.as_markdown(done))
    return [each.as_dict() for each in done]


def measure_queue(servers: Servers, _options: argparse.Namespace) -> list[dict[str, Any]]:
    """A longer and longer queue."""
    with running("dynoxide", servers) as engine, _bar("queue", len(queue.LENGTHS)) as tick:
        engine.bind(queue.Names)
        done = queue.measure(tick)
    _table("queue", "A long queue", queue.as_markdown(done))
    return [each.as_dict() for each in done]


def measure_sizes(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Larger and larger transactions."""
    with _at_a_distance(servers, options.ms) as engine, _bar("sizes", len(sizes.SIZES)) as tick:
        engine.bind(Transactions, Record)
        done = sizes.measure(options.samples // 4 + 1, tick)
    _table("sizes", "Transactions", sizes.as_markdown(done))
    return [each.as_dict() for each in done]


def measure_layer(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Processor time."""
    cpu: list[layer.Cpu] = []
    with _bar("layer", 3 * options.turns) as tick:
        for name in ("dynoxide", "memory"):
            with running(name, servers) as engine:
                cpu += layer.measure(engine, options.turns, tick)
        imports = layer.measure_imports(options.turns // 5 + 1, tick)
    _table("cpu", "Processor time", layer.cpu_as_markdown(cpu))
    _table("imports", "To import", layer.imports_as_markdown(imports))
    return [each.as_dict() for each in cpu] + [each.as_dict() for each in imports]


PARTS: Final[Parts] = {
    "cycles": measure_cycles,
    "contention": measure_contention,
    "combine": measure_combine,
    "throttled": measure_throttled,
    "caps": measure_caps,
    "handoff": measure_handoff,
    "bell": measure_bell,
    "crash": measure_crash,
    "many": measure_many,
    "crowd": measure_crowd,
    "queue": measure_queue,
    "sizes": measure_sizes,
    "layer": measure_layer,
}


def facts() -> dict[str, str]:
    """Return where and with what this was measured."""
    packages = ("pynamodb", "boto3", "botocore", "python-dynamodb-lock")
    model = next(
        line for line in Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines() if "model name" in line
    )
    return {
        "date": datetime.now(tz=timezone.utc).date().isoformat(),
        "machine": f"virtual machine, {os.cpu_count()} cores of {model.partition(':')[2].strip()}, {platform.system()}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "dynoxide": _engine_version(),
    }


def _engine_version() -> str:
    manifest = Path(__file__).parents[2] / "tests" / "engines" / "package.json"
    version: str = json.loads(manifest.read_text(encoding="utf-8"))["dependencies"]["@dynoxide/linux-x64"]
    return version


def publish(figures: dict[str, Any]) -> None:
    """Write tables, pictures and figures to where they are read; parts that were not measured stay."""
    file = PUBLISHED / "locks.json"
    old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    measured = {name: {"measured": facts(), "figures": figures[name]} for name in PARTS if name in figures}
    file.write_text(json.dumps(old | measured, indent=1) + "\n", encoding="utf-8")
    text = ", ".join(f"{name} {value}" for name, value in facts().items())
    for name, table in {"machine": text, **_tables}.items():
        fill(PAGES.get(name, RESULTS), name, table)
    for draw in _drawn:
        draw(PUBLISHED)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.locks")
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--publish", action="store_true", help="write into benchmarks/results and docs/benchmarks")
    parser.add_argument("--ms", type=float, default=5.0, help="round trip of the network, except where it varies")
    parser.add_argument("--turns", type=int, default=100, help="cycles, layer: of each contender")
    parser.add_argument("--seconds", type=float, default=20.0, help="races, bell: of each steady state")
    parser.add_argument("--rush", type=float, default=15.0, help="races: the longest rush, in s; bell: before it")
    parser.add_argument("--only", action="append", help="races: contenders with this in their name")
    parser.add_argument("--partition-units", type=float, default=WRITE_UNITS, help="throttled: of one key, a second")
    parser.add_argument("--burst", type=float, default=1.0, help="throttled: for how many s unused units are kept")
    parser.add_argument("--rounds", type=int, default=1, help="contention, bell: how often they take turns")
    parser.add_argument("--contenders", type=int, default=128, help="contention, throttled: the most; bell: processes")
    parser.add_argument("--at-least", type=int, default=1, help="contention: the fewest contenders")
    parser.add_argument("--samples", type=int, default=20, help="handoff, sizes: of each contender")
    parser.add_argument("--locks", type=int, default=10_000, help="many: the most")
    parser.add_argument("--callers", type=int, default=1000, help="crowd: the most")
    return parser.parse_args()


def main() -> None:
    """Measure what was asked for."""
    os.environ.update(DUMMY_ENVIRONMENT)
    options = _options()
    for line in missing():
        show("Left out", line)
    figures = run(PARTS, options)
    if options.publish:
        publish(figures)


if __name__ == "__main__":
    main()
