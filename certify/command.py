"""``python -m certify``."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from certify import STAGES, Course, ForeignTable, Place, Plan, Price, page
from pynamo_locking.cli import terminal
from pynamo_locking.cli.command import Commands
from pynamo_locking.cli.session import Session  # noqa: TC001 - typer reads the signatures
from pynamo_locking.cli.terminal import Exit, Problem, usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from certify import Report


#: Units that a run may use unless told otherwise: at most US$ 1.88 in us-east-1, if all were writes.
_MAX_UNITS: Final = 3_000_000

#: Exit code of a run that has stopped before its cap on units.
_CAPPED: Final = 3

_STAGES: Final = ", ".join(STAGES)


_PREFIX: Final = "What the names of the tables begin with."
_ONLY: Final = f"Only this stage; may be repeated: {_STAGES}."
_SCALE: Final = "How much of everything; 1 takes some minutes."
_CAP: Final = "Cap on read and write units together."
_REMOVE: Final = "Only remove the tables that an earlier run has left."

#: How a user calls it.
PROGRAM: Final = "python -m certify"

app = Commands("", program=PROGRAM, add_completion=False)


@app.add(
    "--prefix trial- --region eu-west-1",
    "--prefix trial- --dry-run  # the estimate, and nothing else",
    "--prefix trial- --remove  # the tables that a killed run has left",
    "--prefix trial- --endpoint http://localhost:8000 --scale 0.1 --yes",
)
def certify(  # noqa: PLR0913 - options
    session: Session,
    *,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help=_PREFIX)],
    only: Annotated[list[str] | None, typer.Option("--only", metavar="STAGE", help=_ONLY)] = None,
    scale: Annotated[float, typer.Option("--scale", metavar="NUMBER", help=_SCALE)] = 1.0,
    max_units: Annotated[int, typer.Option("--max-units", metavar="NUMBER", help=_CAP)] = _MAX_UNITS,
    read_price: Annotated[
        float, typer.Option("--read-price", metavar="US$", help="Of a million read units.")
    ] = Price.read,
    write_price: Annotated[
        float, typer.Option("--write-price", metavar="US$", help="Of a million write units.")
    ] = Price.write,
    seed: Annotated[str | None, typer.Option("--seed", metavar="TEXT", help="Of all choices.")] = None,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the page is written.")] = ".",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the estimate.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help=_REMOVE)] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> int:
    """Run the package's own checks on your DynamoDB, and write a dated page.

    It creates four tables on demand under the prefix, counts the units that it uses, stops before the cap, and removes
    the tables, also after Ctrl-C. A run that was killed leaves them; the next run with this prefix removes them. It
    never touches a table that it has not made. One run at a time may use a prefix.
    """
    if not prefix:
        raise usage("--prefix must not be empty.")
    plan = _plan(only, scale, seed)
    place = Place(prefix, session.settings.region, session.settings.endpoint)
    tell = _teller(session)
    course = Course(place, plan, max_units, Price(read_price, write_price), tell)
    try:
        if remove:
            removed = course.tables.remove()
            return session.show({"removed": removed}, _removed(removed))
        estimate = _estimate(course, plan, Price(read_price, write_price), max_units)
        if dry_run:
            return session.show(estimate, _said(estimate))
        course.tables.there()  # before the question, if there is a table that is not ours
        if yes:
            tell(_said(estimate))
        else:
            session.confirm(f"{_said(estimate)} Go on?")
        report = course.run()
    except ForeignTable as error:
        raise Problem("foreign_table", str(error), Exit.CONFIGURATION) from error
    return _show(session, report, Path(out), tell)


def _plan(only: list[str] | None, scale: float, seed: str | None) -> Plan:
    unknown = sorted(set(only or ()) - set(STAGES))
    if unknown:
        raise usage(f"there is no stage {unknown[0]!r}. The stages are {_STAGES}.")
    if not 0 < scale <= 100:  # noqa: PLR2004 - hours
        raise usage(f"--scale must be above 0, and at most 100; not {scale}.")
    return Plan(scale, tuple(name for name in STAGES if not only or name in only), seed or secrets.token_hex(4))


def _estimate(course: Course, plan: Plan, price: Price, cap: int) -> dict[str, Any]:
    reads, writes = plan.estimates()
    return {
        "tables": course.tables.names,
        "endpoint": course.tables.endpoint,
        "region": course.tables.region,
        "estimated_reads": round(reads),
        "estimated_writes": round(writes),
        "estimated_cost": round(price.of(reads, writes), 6),
        "max_units": cap,
        "max_cost": round(max(price.of(cap, 0), price.of(0, cap)), 6),
    }


def _said(estimate: dict[str, Any]) -> str:
    return (
        f"This creates the tables {', '.join(estimate['tables'])} at {estimate['endpoint']} and removes them. It will "
        f"use about {estimate['estimated_reads']:,} read and {estimate['estimated_writes']:,} write units, US$ "
        f"{estimate['estimated_cost']:.4f}; it stops before {estimate['max_units']:,} units, US$ "
        f"{estimate['max_cost']:.4f} at most."
    )


def _removed(names: list[str]) -> str:
    return f"Removed: {', '.join(names)}." if names else "There was nothing to remove."


def _teller(session: Session) -> Callable[[str], None]:
    """Return what tells how far a run is, on standard error."""

    def tell(line: str) -> None:
        log = {"log": {"level": "info", "message": line}}
        sys.stderr.write(f"{terminal.dump(log, lines=True) if session.as_json else line}\n")

    return tell


def _show(session: Session, report: Report, folder: Path, tell: Callable[[str], None]) -> int:
    document = report.document()
    try:
        files = page.write(document, folder)
    except OSError as error:
        raise Problem("not_written", f"the page cannot be written: {error}.", Exit.NOT_WRITTEN) from error
    for file in files:
        tell(f"written: {file}")
    code = session.show(document, page.markdown(document), is_well=report.has_passed, soft_wrap=True)
    return _CAPPED if report.is_capped else code
