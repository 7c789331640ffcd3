"""``tx``: transactions of many items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from rich.progress import Progress, SpinnerColumn, TextColumn

from pynamo_locking._facade import plain, recovery
from pynamo_locking.cli import terminal
from pynamo_locking.cli.command import argument, command, flag, group, option
from pynamo_locking.cli.terminal import Exit, Problem, usage

if TYPE_CHECKING:
    import typer

    from pynamo_locking import SweepReport, TransactionTable
    from pynamo_locking.cli.session import Session


_Id = Annotated[str, argument("ID", "The transaction's id, from `tx list` or an OutcomeUnknown.")]
_MODEL: Final = "A TransactionTable, or a model that names one, instead of --table."
_Model = Annotated[str | None, option("--model", "MODULE:MODEL", _MODEL)]
_State = Annotated[
    str | None,
    option("--state", "STATE", "pending, committed, finished or aborted.", autocompletion=lambda: recovery.STATES),
]
_Told = Annotated[str | None, option("--state", "STATE", "committed or aborted: what you know of it, if that is lost.")]
_Force = Annotated[bool, flag("--force", "Abort it at once if it is not decided, although it may be alive.")]
_Yes = Annotated[bool, flag("--yes -y", "Do not ask.")]
_DryRun = Annotated[bool, flag("--dry-run", "Only say what would be done.")]
_Segments = Annotated[int, option("--segments", "NUMBER", "Scan so many at once.", min=1, max=256)]

_OLDER: Final = "Leave those alone that began or were renewed within so many seconds."
_OlderThan = Annotated[float, option("--older-than", "SECONDS", _OLDER, min=0)]

_TABLE: Final[Any] = {"tables": ("transaction_table",)}
_COLUMNS: Final = ("id", "state", "owner", "items", "began", "renewed", "lease ends", "aborted by")


def attach(app: typer.Typer) -> None:
    """Add the commands."""
    tx = group("Transactions of more than 100 actions, which have a header of their own.", app, "tx")
    command(tx, list_, "tx list --table transactions", "tx list --state pending --json", **_TABLE)
    command(tx, show, "tx show 5KXxQY1s --table transactions", **_TABLE)
    command(tx, recover, "tx recover 5KXxQY1s", "tx recover 5KXxQY1s --force --yes", **_TABLE)
    command(tx, sweep, "tx sweep --dry-run", "tx sweep --model shop.models:Order --segments 4 --json", **_TABLE)
    command(tx, repair, "tx repair 5KXxQY1s", "tx repair 5KXxQY1s --state aborted --yes", **_TABLE)


def list_(session: Session, *, model: _Model = None, state: _State = None) -> int:
    """List transactions, the oldest first. Those that ended a day ago are removed.

    A consistent scan of the table. The exit code is 1 if some rows cannot be read; they are listed as well.
    """
    if state is not None and state not in recovery.STATES:
        raise usage(f"--state is one of {', '.join(recovery.STATES)}, not {state!r}.")
    table = session.transactions(model)
    documents, unreadable = recovery.listed(table, state)
    document = {"table": table.Meta.table_name, "transactions": documents, "unreadable": unreadable}
    rows = [_cells(each) for each in documents]
    made = terminal.table(table.Meta.table_name, _COLUMNS, rows)

    def people(console: Any) -> None:
        console.print(made if rows else f"{document['table']}: no transactions.")
        for why in unreadable.values():
            console.print(plain(why))

    session.show(document, people)
    return Exit.NO if unreadable else Exit.OK


def show(session: Session, tx_id: _Id, model: _Model = None) -> int:
    """Show one transaction, and the items that may carry a mark of it.

    One consistent read, and one for each row of participants: some 1000 items.
    """
    table = session.transactions(model)
    found = recovery.shown(table, tx_id)
    if found is None:
        raise _unknown(table, tx_id)
    document: dict[str, Any] = {"table": table.Meta.table_name, **found}
    rows = [(each["table"], " / ".join(each["key"].values())) for each in document["participants"]]

    def people(console: Any) -> None:
        console.print(terminal.table(table.Meta.table_name, _COLUMNS, [_cells(document)]))
        if rows:
            console.print(terminal.table("items that may carry a mark of it", ("table", "key"), rows))

    session.show(document, people)
    return 0


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
    session.show(document, lambda console: console.print(f"{plain(tx_id)} is {state}."))
    return 0


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

        def on_progress(report: SweepReport) -> None:
            progress.update(task, description=_summary(report, dry_run=dry_run))

        options: Any = {"segments": segments, "dry_run": dry_run, "older_than": older_than}
        report = table.sweep(on_progress=on_progress, **options)
    counts = {name: getattr(report, name) for name in ("examined", "finished", "aborted", "pending")}
    failed = dict(sorted(report.failed.items()))
    document = {"table": table.Meta.table_name, "dry_run": dry_run, **counts, "failed": failed}

    def people(console: Any) -> None:
        console.print(_summary(report, dry_run=dry_run))
        for failed_id, why in failed.items():
            console.print(plain(f"{failed_id} could not be completed: {why}"))

    session.show(document, people)
    return Exit.NO if failed else Exit.OK


def repair(session: Session, *, tx_id: _Id, model: _Model = None, state: _Told = None, yes: _Yes = False) -> int:
    """Make the broken rows of one transaction sound: numbers that cannot be read, items in rows of participants.

    One that is pending is aborted, also if it is alive. One whose state is lost needs --state. The log names the
    operator. Run `tx recover` next.
    """
    table = session.transactions(model)
    flaws = table.repair(tx_id, state=state, dry_run=True)
    if flaws and not yes:
        session.confirm(f"{plain(tx_id)}: {plain('; '.join(flaws))}. Make it sound, and abort it if it is pending?")
    flaws = table.repair(tx_id, state=state)
    if flaws is None:
        raise _unknown(table, tx_id)
    became = table.outcome(tx_id)
    if flaws:
        why = plain("; ".join(flaws))
        terminal.leave_trace(
            "the transaction %s in %s was repaired by %s, and is %s; %s",
            *(plain(tx_id), table.Meta.table_name, terminal.operator(), became, why),
        )
    document = {"table": table.Meta.table_name, "id": tx_id, "was": flaws, "repaired": bool(flaws), "state": became}
    said = f"is repaired, and {became}" if flaws else "has no broken row; nothing was changed"
    session.show(document, lambda console: console.print(f"{plain(tx_id)} {said}."))
    return Exit.OK


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


def _cells(each: dict[str, Any]) -> tuple[object, ...]:
    is_pending, left = each["state"] == "pending", each["lease_left_s"]
    return (
        each["id"],
        each["state"],
        each["owner"],
        each["marked_items"],
        "" if each["age_s"] is None else terminal.ago(each["age_s"]),
        terminal.ago(each["since_renewal_s"]) if is_pending else "",
        terminal.until(left) if is_pending else "",
        each["aborted_by"] or "",
    )
