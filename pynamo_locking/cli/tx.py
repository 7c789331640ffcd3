"""``tx list``, ``show``, ``recover`` and ``sweep``."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Annotated, Any, Final

from pynamodb.expressions.operand import Path
from rich.progress import Progress, SpinnerColumn, TextColumn

from pynamo_locking._core.transaction import Header, State
from pynamo_locking._io import headers, listing, runtime
from pynamo_locking._io.completion import participants
from pynamo_locking.cli import output
from pynamo_locking.cli.command import argument, command, flag, group, option
from pynamo_locking.cli.problems import Exit, Problem, usage
from pynamo_locking.exceptions import LockingError
from pynamo_locking.recovery import SweepReport, recover, sweep
from pynamo_locking.transaction_table import header_table_of

if TYPE_CHECKING:
    import typer

    from pynamo_locking import TransactionTable
    from pynamo_locking.cli.session import Session

_Id = Annotated[str, argument("ID", "The transaction's id, from `tx list` or an OutcomeUnknown.")]
_MODEL: Final = "A TransactionTable, or a model that names one, instead of --table."
_Model = Annotated[str | None, option("--model", "MODULE:MODEL", _MODEL)]
_State = Annotated[str | None, option("--state", "STATE", "pending, committed, finished or aborted.")]
_Force = Annotated[bool, flag("--force", "Abort it at once if it is not decided, although it may be alive.")]
_Yes = Annotated[bool, flag("--yes -y", "Do not ask.")]
_DryRun = Annotated[bool, flag("--dry-run", "Only say what would be done.")]
_Segments = Annotated[int, option("--segments", "NUMBER", "Scan so many at once.", min=1, max=256)]

_TABLE: Final[Any] = {"tables": ("transaction_table",)}
_COLUMNS: Final = ("id", "state", "owner", "items", "began", "renewed", "lease ends", "aborted by")


def attach(app: typer.Typer) -> None:
    """Add the commands."""
    tx = group("Transactions of more than 100 actions, which have a header of their own.")
    app.add_typer(tx, name="tx")
    command(
        tx,
        "list",
        list_,
        "pynamo-locking tx list --table transactions",
        "pynamo-locking tx list --state pending --json",
        **_TABLE,
    )
    command(
        tx,
        "show",
        show,
        "pynamo-locking tx show 5KXxQY1s --table transactions",
        **_TABLE,
    )
    command(
        tx,
        "recover",
        recover_,
        "pynamo-locking tx recover 5KXxQY1s",
        "pynamo-locking tx recover 5KXxQY1s --force --yes",
        **_TABLE,
    )
    command(
        tx,
        "sweep",
        sweep_,
        "pynamo-locking tx sweep --dry-run",
        "pynamo-locking tx sweep --model shop.models:Order --segments 4 --json",
        **_TABLE,
    )


def list_(
    session: Session,
    *,
    model: _Model = None,
    state: _State = None,
) -> int:
    """List transactions, the oldest first. Those that ended a day ago are gone.

    A consistent scan of the table. The exit code is 1 if some rows cannot be read; they are listed as well.
    """
    if state is not None and state not in [each.value for each in State]:
        raise usage(f"--state is one of {', '.join(each.value for each in State)}, not {state!r}.")
    table = session.transactions(model)
    path = Path([headers.STATE])
    condition = path.exists() if state is None else path == state
    found, unreadable = list[Header](), dict[str, str]()
    for image in listing.scan(table, condition):
        try:
            found += [header for header in [headers.header_in(image, table.Meta.table_name)] if header is not None]
        except LockingError as error:
            unreadable[image[headers.ID]["S"]] = str(error)
    found.sort(key=lambda header: (header.priority, header.id))
    documents, unreadable = [_document(header) for header in found], dict(sorted(unreadable.items()))
    document = {"table": table.Meta.table_name, "transactions": documents, "unreadable": unreadable}
    rows = [_cells(each) for each in documents]
    made = output.table(table.Meta.table_name, _COLUMNS, rows)

    def people(console: Any) -> None:
        console.print(made if rows else f"{document['table']}: no transactions.")
        for why in unreadable.values():
            console.print(output.plain(why))

    session.show(document, people)
    return Exit.NO if unreadable else Exit.OK


def show(session: Session, tx_id: _Id, model: _Model = None) -> int:
    """Show one transaction, and the items that may carry a mark of it.

    One consistent read, and one for each row of participants: some 1000 items.
    """
    table = session.transactions(model)
    header = headers.persistently(lambda: headers.read(header_table_of(table), tx_id))
    if header is None:
        raise _unknown(table, tx_id)
    document = {"table": table.Meta.table_name, **_document(header), "participants": _participants(table, header)}
    rows = [(each["table"], " / ".join(each["key"].values())) for each in document["participants"]]

    def people(console: Any) -> None:
        console.print(output.table(table.Meta.table_name, _COLUMNS, [_cells(document)]))
        if rows:
            console.print(output.table("items that may carry a mark of it", ("table", "key"), rows))

    session.show(document, people)
    return 0


def recover_(
    session: Session,
    *,
    tx_id: _Id,
    model: _Model = None,
    force: _Force = False,
    yes: _Yes = False,
) -> int:
    """Complete one transaction: finish it if it is committed, else abort it.

    One that is alive is waited for until it is decided, or shows no sign of life for a whole lease.
    """
    table = session.transactions(model)
    if force and not yes:
        session.confirm(f"{output.plain(tx_id)} may be alive. Abort it all the same?")
    with _progress(session) as progress:
        progress.add_task(f"recovering {output.plain(tx_id)}", total=None)
        state = recover(table, tx_id, force=force)
    if state is None:
        raise _unknown(table, tx_id)
    document = {"table": table.Meta.table_name, "id": tx_id, "state": state}
    session.show(document, lambda console: console.print(f"{output.plain(tx_id)} is {state}."))
    return 0


def sweep_(
    session: Session,
    *,
    model: _Model = None,
    dry_run: _DryRun = False,
    segments: _Segments = 1,
) -> int:
    """Complete all transactions whose process has died.

    Each one that is alive is watched for up to one lease. The exit code is 1 if some could not be completed.
    """
    table = session.transactions(model)
    with _progress(session) as progress:
        task = progress.add_task("looking", total=None)

        def on_progress(report: SweepReport) -> None:
            progress.update(task, description=_summary(report, dry_run=dry_run))

        report = sweep(table, segments=segments, dry_run=dry_run, on_progress=on_progress)
    counts = {name: getattr(report, name) for name in ("examined", "finished", "aborted", "pending")}
    failed = dict(sorted(report.failed.items()))
    document = {"table": table.Meta.table_name, "dry_run": dry_run, **counts, "failed": failed}

    def people(console: Any) -> None:
        console.print(_summary(report, dry_run=dry_run))
        for failed_id, why in failed.items():
            console.print(output.plain(f"{failed_id} could not be completed: {why}"))

    session.show(document, people)
    return Exit.NO if failed else Exit.OK


def _summary(report: SweepReport, *, dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    return (
        f"{report.examined} examined: {report.finished} {would}finished, {report.aborted} {would}aborted, "
        f"{report.pending} alive, {len(report.failed)} failed"
    )


def _progress(session: Session) -> Progress:
    """Return a progress line, which is shown on a terminal only."""
    console = output.console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    return Progress(*columns, console=console, transient=True, disable=session.as_json or not console.is_terminal)


def _unknown(table: type[TransactionTable], tx_id: str) -> Problem:
    return Problem(
        "no_such_transaction",
        f"nothing is known of the transaction {output.plain(tx_id)} in {table.Meta.table_name}: it had at most 100 "
        f"actions, or it ended more than a day ago, or it never began.",
        Exit.NO,
        id=tx_id,
    )


# Documents


def _document(header: Header) -> dict[str, Any]:
    now_ms = runtime.current.time_ms()
    began, _, _ = header.priority.partition("-")
    began_ms = int(began) if re.fullmatch("[0-9]{1,15}", began) else None  # another writer may have put anything there
    return {
        "id": header.id,
        "state": header.state.value,
        "owner": header.owner,
        "marked_items": header.items,
        "began_at": None if began_ms is None else output.text_of_ms(began_ms),
        "age_s": None if began_ms is None else (now_ms - began_ms) / 1000,
        "lease_s": header.lease,
        "since_renewal_s": (now_ms - header.until_ms + header.lease_ms) / 1000,
        "lease_ends_at": output.text_of_ms(header.until_ms),
        "lease_left_s": (header.until_ms - now_ms) / 1000,
        "aborted_by": header.by or None,
    }


def _cells(each: dict[str, Any]) -> tuple[object, ...]:
    is_pending, left = each["state"] == State.PENDING.value, each["lease_left_s"]
    ends = f"in {output.duration(left)}" if left >= 0 else f"{output.duration(-left)} ago"
    return (
        each["id"],
        each["state"],
        each["owner"],
        each["marked_items"],
        "" if each["age_s"] is None else f"{output.duration(each['age_s'])} ago",
        f"{output.duration(each['since_renewal_s'])} ago" if is_pending else "",
        ends if is_pending else "",
        each["aborted_by"] or "",
    )


def _participants(table: type[TransactionTable], header: Header) -> list[dict[str, Any]]:
    return [
        {
            "table": row.table,
            "key": {name: _text(value) for name, value in row.key.items()},
            "lock_attribute": row.attribute,
        }
        for row, _ in participants(header_table_of(table), header)
    ]


def _text(stored: dict[str, Any]) -> str:
    value = next(iter(stored.values()))
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
