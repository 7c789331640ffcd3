"""What transactions of any size cost, and how they behave under kills and contention.

    python -m benchmarks.transactions counts                 # requests and units, on dynoxide
    python -m benchmarks.transactions kills --seconds 60     # 8 processes, killed again and again, on both engines
    python -m benchmarks.transactions contention             # 16 workers over 10 hot accounts, at 5 ms
    python -m benchmarks.transactions unblock                # waiting for a transaction whose process is dead
    python -m benchmarks.transactions times                  # 100 and 1,000 items beside unprotected loops, at 5 ms
    python -m benchmarks.transactions growth                 # what grows with what, up to 10,000 items
    python -m benchmarks.transactions all

Each prints its tables as Markdown. With ``--json FILE`` the figures are written there as well; with ``--publish`` the
tables of `times` and `growth` replace those in benchmarks/results/transactions.md.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.progress import track

from benchmarks import (
    transaction_contention,
    transaction_counts,
    transaction_growth,
    transaction_times,
    transaction_unblock,
)
from benchmarks.latency import slowed
from benchmarks.locks.tables import fill
from benchmarks.parts import Parts, run, show
from tests.engines.engine import running
from tests.support.bank_audit import run_bank

if TYPE_CHECKING:
    from tests.engines.servers import Servers

BOTH: Final = ("dynoxide", "dynamodb-local")
PAGE: Final = Path(__file__).parent / "results" / "transactions.md"


def counts(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Count requests and units, which do not depend on the machine."""
    sizes = [size for size in transaction_counts.SIZES if size <= options.largest]
    wanted = [(kind, size) for kind in transaction_counts.KINDS for size in sizes]
    with running("dynoxide", servers) as engine:
        engine.bind(transaction_counts.Transactions, transaction_counts.Record)
        done = [transaction_counts.count(*each) for each in track(wanted, "counts", transient=True)]
    show("Requests and units", transaction_counts.as_markdown(done))
    return [each.as_dict() for each in done]


def kills(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Let processes be killed, and check everything."""
    done = []
    for name in BOTH:
        with running(name, servers) as engine:
            run = run_bank(engine, options.seconds, options.seed)
        parts = {"outcomes": dict(run.outcomes), "aborted_by": dict(run.aborted_by), "swept": asdict(run.swept)}
        done.append({"engine": name} | vars(run) | parts)
    show("Kills", as_columns(done))
    return done


def as_columns(runs: list[dict[str, Any]]) -> str:
    """Return a table with one column for each engine, and one row for each figure."""
    flat = [_flat(run) for run in runs]
    names = list(dict.fromkeys(name for run in flat for name in run))
    rows = [[name, *(str(run.get(name, 0)) for run in flat)] for name in names]
    rows.insert(1, ["---", *("---:" for _ in runs)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _flat(run: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in run.items():
        if isinstance(value, dict):
            flat |= {f"{name}: {part}": figure for part, figure in sorted(value.items())}
        else:
            flat[name] = f"{value:.0f}" if isinstance(value, float) else value
    return flat


def contention(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Let the contenders take turns, at a distance."""
    with slowed(servers["dynoxide"].url, options.trip) as url, running("dynoxide", servers) as engine:
        engine.host = url
        shape = (options.workers, options.transfers, options.rounds)
        races = list(transaction_contention.compare(engine, *shape))
    show(f"Contention, at {options.trip:g} ms", transaction_contention.as_markdown(races))
    return [race.as_dict() for race in races]


def unblock(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure how long the dead keep the living waiting."""
    with running("dynoxide", servers) as engine:
        total = options.samples * len(transaction_unblock.CASES)
        measured = transaction_unblock.measure(engine, options.samples, options.seed)
        samples = list(track(measured, "unblock", total=total, transient=True))
    show("Time until a blocked writer proceeds", transaction_unblock.as_markdown(samples))
    return [sample.as_dict() for sample in samples]


def times(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Change many items, beside loops that protect nothing, at a distance."""
    names, sizes = options.only or list(transaction_times.CONTENDERS), options.sizes
    total = options.rounds * len(names) * len(sizes)
    with slowed(servers["dynoxide"].url, options.trip) as url, running("dynoxide", servers) as engine:
        engine.host = url
        turns = transaction_times.compare(engine, sizes, names, options.rounds)
        done = list(track(turns, "times", total=total, transient=True))
    _publish("times", f"Many items, at {options.trip:g} ms", transaction_times.as_markdown(done), options)
    return [each.as_dict() for each in done]


def growth(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Count requests and units as more and more items take part, or stand by."""
    kinds = list(transaction_growth.KINDS)
    sizes = [size for size in transaction_growth.SIZES if size <= 2 * options.largest]
    with running("memory", servers) as engine:
        counted = transaction_growth.grow(engine, kinds, sizes)
        done = list(track(counted, "growth", total=len(kinds) * len(sizes), transient=True))
    _publish("growth", "What grows with what", transaction_growth.as_markdown(done), options)
    return [each.as_dict() for each in done]


def _publish(name: str, title: str, table: str, options: argparse.Namespace) -> None:
    show(title, table)
    if options.publish:
        fill(PAGE, name, table)


PARTS: Final[Parts] = {
    "counts": counts,
    "kills": kills,
    "contention": contention,
    "unblock": unblock,
    "times": times,
    "growth": growth,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transactions")
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--seed", default="1", help="of kills and their moments")
    parser.add_argument("--largest", type=int, default=5_000, help="counts, growth: items of the largest transaction")
    parser.add_argument("--seconds", type=float, default=60.0, help="kills: on each engine")
    parser.add_argument("--workers", type=int, default=16, help="contention: threads")
    parser.add_argument("--transfers", type=int, default=10, help="contention: of each worker, each round")
    parser.add_argument("--rounds", type=int, default=3, help="contention, times: how often the contenders take turns")
    parser.add_argument("--samples", type=int, default=10, help="unblock: of each case")
    parser.add_argument("--only", action="append", choices=list(transaction_times.CONTENDERS), help="times: who")
    parser.add_argument("--sizes", type=int, nargs="+", default=transaction_times.SIZES, help="times: how many items")
    parser.add_argument("--trip", type=float, default=5.0, help="contention, times: the round trip in ms")
    parser.add_argument("--publish", action="store_true", help="times, growth: into benchmarks/results/transactions.md")
    return parser.parse_args()


def main() -> None:
    """Measure what was asked for."""
    run(PARTS, _options())


if __name__ == "__main__":
    main()
