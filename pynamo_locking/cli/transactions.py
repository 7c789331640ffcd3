"""``tx``: transactions of many items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from pynamo_locking._facade import plain, recovery
from pynamo_locking.cli import terminal
from pynamo_locking.cli.command import TRANSACTIONS, Commands
from pynamo_locking.cli.session import Session  # noqa: TC001 - typer reads the signatures
from pynamo_locking.cli.terminal import Exit, Problem, usage

if TYPE_CHECKING:
    from pynamo_locking import TransactionTable
    from pynamo_locking.transactions import SweepReport

_ID: Final = "The transaction's id, from `tx list` or an OutcomeUnknown."
_MODEL: Final = "A TransactionTable, or a model that names one, instead of --table."
_STATE: Final = "pending, committed, finished or aborted."
_FORCE: Final = "Abort it at once if it is not decided, although it may be alive."
_OLDER: Final = "Leave those alone that began or were renewed within so many seconds."

_Id = Annotated[str, typer.Argument(metavar="ID", help=_ID)]
_Model = Annotated[str | None, typer.Option("--model", metavar="MODULE:MODEL", help=_MODEL)]
_State = Annotated[
    str | None,
    typer.Option("--state", metavar="STATE", help=_STATE, autocompletion=lambda: recovery.STATES),
]
_Force = Annotated[bool, typer.Option("--force", help=_FORCE)]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
_Segments = Annotated[int, typer.Option("--segments", metavar="NUMBER", help="Scan so many at once.", min=1, max=256)]
_OlderThan = Annotated[float, typer.Option("--older-than", metavar="SECONDS", help=_OLDER, min=0)]

_COLUMNS: Final = ("id", "state", "owner", "items", "began", "renewed", "lease ends", "aborted because")

app: Final = Commands(
    "Transactions of more than 100 actions, each with a transaction record.", name="tx", settings=TRANSACTIONS
)


@app.add("list --table transactions", "list --state pending --json")
def list_(session: Session, *, model: _Model = None, state: _State = None) -> int:
    """List transactions, the oldest first. Those that ended a day ago are removed.

    A consistent scan of the table. The exit code is 1 if some rows cannot be read; they are listed as well.
    """
    if state is not None and state not in recovery.STATES:
        raise usage(f"--state is one of {', '.join(recovery.STATES)}, not {state!r}.")
    table = session.transactions(model)
    documents, unreadable = recovery.listed(table, state)
    document = {"table": table.Meta.table_name, "transactions": documents, "unreadable": unreadable}
    made = _table(table, documents) if documents else f"{table.Meta.table_name}: no transactions."
    return session.show(document, made, *map(plain, unreadable.values()), is_well=not unreadable)


@app.add("show 5KXxQY1s --table transactions")
def show(session: Session, tx_id: _Id, model: _Model = None) -> int:
    """Show one transaction, and the items that may carry a write intent of it.

    One consistent read, and one for each row of participants: some 1000 items.
    """
    table = session.transactions(model)
    found = recovery.shown(table, tx_id)
    if found is None:
        raise _unknown(table, tx_id)
    people = [_table(table, [found])]
    if items := [(each["table"], " / ".join(each["key"].values())) for each in found["participants"]]:
        people.append(terminal.table("items that may carry a write intent of it", ("table", "key"), items))
    return session.show({"table": table.Meta.table_name, **found}, *people)


@app.add("recover 5KXxQY1s", "recover 5KXxQY1s --force --yes")
def recover(session: Session, *, tx_id: _Id, model: _Model = None, force: _Force = False, yes: _Yes = False) -> int:
    """Complete one transaction: finish it if it is committed, else abort it.

    A transaction that is alive is waited for until it is decided, or was not renewed for a whole lease.
    """
    table = session.transactions(model)
    if force and not yes:
        session.confirm(f"{plain(tx_id)} may be alive. Abort it all the same?")
    with _progress(session) as progress:
        progress.add_task(f"recovering {plain(tx_id)}", total=None)
        state = table.recover(tx_id, force=force)
    if state is None:
        raise _unknown(table, tx_id)
    document = {"table": table.Meta.table_name, "id": tx_id, "state": state}
    return session.show(document, f"{plain(tx_id)} is {state}.")


@app.add("sweep --dry-run", "sweep --model shop.models:Order --segments 4 --json")
def sweep(
    session: Session,
    *,
    model: _Model = None,
    dry_run: _DryRun = False,
    segments: _Segments = 1,
    older_than: _OlderThan = 0.0,
) -> int:
    """Complete all transactions whose process has died.

    Each one that is alive is watched for up to one lease. The exit code is 1 if some could not be completed.
    """
    table = session.transactions(model)
    with _progress(session) as progress:
        task = progress.add_task("looking", total=None)
        report = table.sweep(
            segments=segments,
            dry_run=dry_run,
            older_than=older_than,
            on_progress=lambda report: progress.update(task, description=_summary(report, dry_run=dry_run)),
        )
    counts = {name: getattr(report, name) for name in ("examined", "finished", "aborted", "pending")}
    failed = dict(sorted(report.failed.items()))
    document = {"table": table.Meta.table_name, "dry_run": dry_run, **counts, "failed": failed}
    why = [plain(f"{failed_id} could not be completed: {why}") for failed_id, why in failed.items()]
    return session.show(document, _summary(report, dry_run=dry_run), *why, is_well=not failed)


def _summary(report: SweepReport, *, dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    return (
        f"{report.examined} examined: {report.finished} {would}finished, {report.aborted} {would}aborted, "
        f"{report.pending} alive, {len(report.failed)} failed"
    )


def _progress(session: Session) -> Progress:
    """Return a progress line, which is shown on a terminal only."""
    console = terminal.console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    return Progress(*columns, console=console, transient=True, disable=session.as_json or not console.is_terminal)


def _unknown(table: type[TransactionTable], tx_id: str) -> Problem:
    return Problem(
        "no_such_transaction",
        f"nothing is known of the transaction {plain(tx_id)} in {table.Meta.table_name}: it had at most 100 "
        f"actions, or it ended more than a day ago, or it never began.",
        Exit.NO,
        id=tx_id,
    )


def _table(table: type[TransactionTable], documents: list[dict[str, Any]]) -> Any:
    return terminal.table(table.Meta.table_name, _COLUMNS, [_cells(each) for each in documents])


def _cells(each: dict[str, Any]) -> tuple[object, ...]:
    is_pending, left = each["state"] == "pending", each["lease_left_s"]
    return (
        each["id"],
        each["state"],
        each["owner"],
        each["items_with_intents"],
        "" if each["age_s"] is None else terminal.ago(each["age_s"]),
        terminal.ago(each["since_renewal_s"]) if is_pending else "",
        terminal.until(left) if is_pending else "",
        each["abort_reason"] or "",
    )
