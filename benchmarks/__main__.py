"""Measure the package beside its alternatives, all contenders in turns.

    python -m benchmarks                       # everything, which takes an hour
    python -m benchmarks cycles crash          # some parts
    python -m benchmarks contention --only edit --only PostgreSQL
    python -m benchmarks --small               # the smallest sizes, once: only to see that all of it works
    python -m benchmarks --publish             # everything, into benchmarks/measured.md and docs/benchmarks

The parts: cycles, contention, handover, crash, counts, transfers, times, processor, growth. Each prints a table: a
median of the rounds, and the range of them. What is published is always a whole run of one commit.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Final

from benchmarks import contention, crash, cycles, growth, handover, processor, transactions
from benchmarks.contenders import missing
from benchmarks.harness import Bench, Part, draw, table
from benchmarks.pages import filled, pages
from tests.engines.engine import DUMMY_ENVIRONMENT
from tests.engines.servers import Servers

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "measured.md"
PUBLISHED: Final = ROOT / "docs" / "benchmarks"
FIGURES: Final = PUBLISHED / "measured.json"
#: Parts of which pages show a picture.
DRAWN: Final = ("cycles", "contention", "handover", "transfers")

ROUNDS: Final = 5
PARTS: Final[dict[str, Part]] = {
    "cycles": Part("One cycle, alone, by the round trip", cycles.measure),
    "contention": Part("Contenders for one lock", contention.measure),
    "handover": Part("From a release to the next grant", handover.measure),
    "crash": Part("After a kill of the holder, in leases", crash.measure),
    "counts": Part("Requests and units of transactions", transactions.measure_counts, is_compared=False),
    "transfers": Part("Transactions that want the same items", transactions.measure_transfers),
    "times": Part("Many items, beside a loop without protection", transactions.measure_times),
    "processor": Part("Processor time of the client", processor.measure),
    "growth": Part("What grows with what", growth.measure, is_compared=False),
}


def facts() -> dict[str, str]:
    """Return where and with what this is measured."""
    packages = ("pynamodb", "boto3", "botocore")
    manifest = json.loads((ROOT / "tests" / "engines" / "package.json").read_text(encoding="utf-8"))
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    return {
        "commit": _git("rev-parse", "--short", "HEAD"),
        "date": datetime.now(tz=timezone.utc).date().isoformat(),
        "machine": f"{os.cpu_count()} cores of {model}, {platform.system()}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "dynoxide": manifest["dependencies"]["@dynoxide/linux-x64"],
    }


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603 - our own words


def publish(bench: Bench) -> None:
    """Write tables, pictures and figures to where they are read."""
    about = facts()
    parts = [f"## {part.title}\n\n{table(bench.of(name), part)}\n" for name, part in PARTS.items()]
    machine = ", ".join(f"{name} {value}" for name, value in about.items())
    head = (
        f"# Measured\n\n`make bench` writes this file. Medians of {bench.rounds} rounds, and their range. {machine}.\n"
    )
    RESULTS.write_text("\n".join([head, *parts]), encoding="utf-8")
    figures = [json.dumps(each._asdict()) for each in bench.measured]
    FIGURES.write_text(
        f'{{"measured": {json.dumps(about)},\n"figures": [\n' + ",\n".join(figures) + "\n]}\n", encoding="utf-8"
    )
    for name in DRAWN:
        draw(PARTS[name].title, bench.of(name), PUBLISHED / f"{name}.svg")
    for page in pages(ROOT):
        page.write_text(filled(page.read_text(encoding="utf-8"), bench.measured), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often all take turns")
    parser.add_argument("--only", action="append", default=[], help="contenders with this in their name")
    parser.add_argument("--small", action="store_true", help="the smallest sizes, one round: to see that it works")
    parser.add_argument("--publish", action="store_true", help="write into benchmarks/measured.md and docs/benchmarks")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}: choose of {', '.join(PARTS)}")
    if options.publish and (options.parts or options.only or options.small or options.rounds < ROUNDS):
        parser.error(f"--publish is for a whole run of {ROUNDS} rounds or more: leave out parts, --only and --small")
    if options.publish and _git("status", "--porcelain"):
        parser.error("what is published belongs to a commit: commit or stash your changes first")
    return options


def main() -> None:
    """Measure what was asked for."""
    options = _options()
    os.environ.update(DUMMY_ENVIRONMENT)
    logging.getLogger("pynamo_locking").setLevel(logging.ERROR)  # that the dead are aborted is the point
    sys.stdout.writelines(f"Left out: {line}\n" for line in missing())
    bench = Bench(Servers(), 1 if options.small else options.rounds, options.only, is_small=options.small)
    try:
        for name in options.parts or PARTS:
            bench.part = name
            PARTS[name].measure(bench)
            sys.stdout.write(f"\n## {PARTS[name].title}\n\n{table(bench.of(name), PARTS[name])}\n")
            sys.stdout.flush()
    finally:
        bench.servers.close()
    if options.publish:
        publish(bench)


if __name__ == "__main__":
    main()
