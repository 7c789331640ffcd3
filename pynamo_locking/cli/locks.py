"""``locks list``, ``show``, ``watch``, ``break`` and ``prune``."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from pynamo_locking._facade import inspection, keys, lock_target_of, logger, plain, text_of_ms
from pynamo_locking.cli import terminal
from pynamo_locking.cli.command import LOCKS, Commands
from pynamo_locking.cli.session import Session  # noqa: TC001 - typer reads the signatures
from pynamo_locking.cli.terminal import EXPECTED, Exit, Problem, explain, usage
from pynamo_locking.exceptions import ConfigurationError, InvalidInput, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from pynamo_locking import LockableMixin


# ``locks watch``: the same look again and again, until Ctrl-C.


#: Kinds of problems that pass: the next look may have an answer.
_PASSING: Final = ("unreachable", "failed")

#: Replaced by tests.
_sleep: Callable[[float], None] = time.sleep


def _repeated(look: Callable[[], dict[str, Any]], every: float) -> Iterator[dict[str, Any] | Problem]:
    """Yield each look, or the problem that it had if that may pass. A problem of the first look does not."""
    yield look()
    while True:
        _sleep(every)
        found: dict[str, Any] | Problem
        try:
            found = look()
        except EXPECTED as error:
            found = explain(error)
            if found.kind not in _PASSING:
                raise found from error
        yield found


def _print(looks: Iterator[dict[str, Any] | Problem], console: Console, every: float, *, as_json: bool) -> None:
    """Print each look. Of several problems in a row warn of the first one."""
    is_answered = True
    for found in looks:
        if isinstance(found, Problem):
            if is_answered:
                logger.warning("%s. Looking again every %g s.", found.message.rstrip("."), every)
        elif as_json:
            print(terminal.dump(found, lines=True), flush=True)  # noqa: T201 - the answer
        else:
            console.print(_table(found))
        is_answered = not isinstance(found, Problem)


def _draw(looks: Iterator[dict[str, Any] | Problem], console: Console, every: float) -> None:
    """Draw each look over the one before, on the second screen of the terminal."""
    live, shown = Live(console=console, auto_refresh=False, screen=True), _Screen("", "", every)
    try:  # not `with`: a signal while it starts has to restore the terminal as well
        for found in looks:
            if isinstance(found, Problem):
                shown = _Screen(shown.body, shown.at, every, trouble=found.message)
            else:
                shown = _Screen(_table(found), text_of_ms(int(time.time() * 1000)), every)
            live.start()
            live.update(shown, refresh=True)
    finally:
        live.stop()


@dataclass(frozen=True)
class _Screen:
    """A look, as much of it as fits, below a line that says how old it is, and why there is no newer one."""

    body: RenderableType
    at: str | None
    every: float
    trouble: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it."""
        head = f"{self.at}, every {self.every:g} s; Ctrl-C ends"
        if self.trouble:
            head = f"{head}\nnothing newer: {plain(self.trouble)}"
        options = options.update(height=None)
        lines = [*console.render_lines(head, options), *console.render_lines(self.body, options)]
        hidden = len(lines) - console.height
        if hidden > 0:
            del lines[console.height - 1 :]
            more = f"... {hidden + 1} more lines: make the window higher, or name a --prefix"
            lines.append(console.render_lines(more, options)[0])
        for line in lines:
            yield from line
            yield Segment.line()


# ``locks list``, ``show``, ``watch`` and ``break``.


_MODEL: Final = "Model of your application, instead of --table."
_ATTRIBUTE: Final = "Stored name of the LockAttribute of a --table."
_AGE: Final = "Only rows that TTL would have deleted so long ago, such as 12h or 30d."
_PREFIX: Final = "Only locks whose name, or hash key, begins so."

_Key = Annotated[str, typer.Argument(metavar="KEY", help="The lock's name, or the hash key of the item.")]
_Range = Annotated[str | None, typer.Argument(metavar="[RANGE_KEY]", help="The range key of the item.")]
_Model = Annotated[str | None, typer.Option("--model", metavar="MODULE:MODEL", help=_MODEL)]
_Attribute = Annotated[str, typer.Option("--attribute", metavar="NAME", help=_ATTRIBUTE)]
_Prefix = Annotated[str | None, typer.Option("--prefix", metavar="TEXT", help=_PREFIX)]
_All = Annotated[bool, typer.Option("--all", help="Also those without a holder and a waiter.")]
_Every = Annotated[
    float, typer.Option("--every", metavar="SECONDS", help="Time between two polls.", min=0.1, max=86400)
]
_Once = Annotated[bool, typer.Option("--once", help="Look once.")]
_Ticket = Annotated[int, typer.Option("--ticket", metavar="NUMBER", help="Of the entry, from `locks show`.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
_OlderThan = Annotated[str, typer.Option("--older-than", metavar="TIME", help=_AGE)]

_LOCK: Final = "lock"
_COLUMNS: Final = ("lock", "", "for", "ticket", "owner", "mode", "renewed", "lease", "lease ends", "last success")
_STYLES: Final = {"holds": "green", "waits": "yellow", "dead holder": "bold red", "dead waiter": "bold red"}

app: Final = Commands("Who holds which lock, and who waits.", name="locks", settings=LOCKS)


@app.add("list --table locks", "list --model shop.models:Order --json")
def list_(
    session: Session, *, model: _Model = None, attribute: _Attribute = _LOCK, prefix: _Prefix = None, all_: _All = False
) -> int:
    """List the locks that have a holder or a waiter.

    Reads the whole table of locks, or of the model if the locks are in its items: a consistent scan. The exit code is 1
    if some locks are broken; they are listed as well.
    """
    document = _listed(_model(session, model, attribute, prefix), prefix, with_free=all_)
    return session.show(document, _table(document), is_well=not document["unreadable"])


@app.add("show nightly-report --table locks", "show customer-7 2026-01 --model shop.models:Order")
def show(
    session: Session, *, key: _Key, range_key: _Range = None, model: _Model = None, attribute: _Attribute = _LOCK
) -> int:
    """Show one lock: its holders and its queue.

    One consistent read, and one more of the item if its lock is free. Of a model with a range key, KEY alone shows the
    ranges of it that are locked; if there are none, the command asks for the range key. The exit code is 1 if the lock
    is broken, or if there is no such item, which cannot be locked.
    """
    found = session.lockable(model, attribute)
    lock = _lock_document(found, key, range_key)
    lock["item_exists"] = not lock["is_free"] or inspection.has_item(found, *_keys(found, key, range_key))
    flaw = {lock["name"]: lock["unreadable"]} if lock["unreadable"] else {}
    people = _table({"table": lock["table"], "locks": [] if flaw else [lock], "unreadable": flaw})
    return session.show(lock, people, is_well=not flaw and lock["item_exists"])


@app.add("watch --table locks", "watch --prefix nightly- --every 5", "watch --once --json")
def watch(
    session: Session,
    *,
    model: _Model = None,
    attribute: _Attribute = _LOCK,
    prefix: _Prefix = None,
    all_: _All = False,
    every: _Every = 2.0,
    once: _Once = False,
) -> int:
    """Watch the locks that have a holder or a waiter, until Ctrl-C.

    Each poll costs what `list` costs. With --json each poll is one line. Without a terminal each poll is printed. While
    there is no answer it goes on polling. The exit code is 1 if the last poll has shown broken locks.
    """
    if once:
        return list_(session, model=model, attribute=attribute, prefix=prefix, all_=all_)
    found = _model(session, model, attribute, prefix)
    last: dict[str, Any] = {}

    def look() -> dict[str, Any]:
        last.update(_listed(found, prefix, with_free=all_))
        return dict(last)

    looks, console = _repeated(look, every), terminal.console()
    with contextlib.suppress(KeyboardInterrupt):
        if console.is_terminal and not console.is_dumb_terminal and not session.as_json:
            _draw(looks, console, every)
        else:
            _print(looks, console, every, as_json=session.as_json)
    return Exit.NO if last["unreadable"] else Exit.OK


@app.add(
    "break nightly-report --ticket 1795282008508123",
    "break a-1 --ticket 1795282242847019 --model shop.models:Order --yes",
)
def break_(
    session: Session,
    *,
    key: _Key,
    ticket: _Ticket,
    range_key: _Range = None,
    model: _Model = None,
    attribute: _Attribute = _LOCK,
    yes: _Yes = False,
) -> int:
    """Remove an entry from a queue by hand, whether its owner lives or not.

    What the owner writes under the lock is refused from then on; what it does elsewhere is not. It is told at its
    next renewal. If callers of the owner's process wait behind it, they lose their tickets and enter the queue again.
    Needs the ticket, so that no later entry is removed by mistake. The log names the operator.
    """
    found = session.lockable(model, attribute)
    before = _lock_document(found, key, range_key)
    name, table, who = plain(before["name"]), before["table"], terminal.operator()
    if before["unreadable"]:
        raise Problem("unreadable", f"the lock {name} is broken: {before['unreadable']}. Nothing was changed.", Exit.NO)
    role, entry = _entry(before, ticket)
    if not yes:
        session.confirm(_question(before, role, entry))
    what, whose = f"ticket {ticket} of {name} in {table}", f"that of {plain(entry['owner'])}, which {role}"
    try:
        is_gone = found.break_lock(*_keys(found, key, range_key), ticket=ticket)
    except OutcomeUnknown:
        terminal.leave_trace(f"{what} may have been broken by {who}; it is {whose}")
        raise
    if not is_gone:
        raise _no_ticket(_lock_document(found, key, range_key), ticket, "it has left meanwhile")
    terminal.leave_trace(f"{what} was broken by {who}; it was {whose}")
    document = {
        **{part: before[part] for part in ("table", "name", "key")},
        "ticket": ticket,
        "owner": entry["owner"],
        "callers": entry["callers"],
        "was": role,
        "broken": True,
        "broken_by": who,
    }
    return session.show(document, f"Ticket {ticket} of {name} is gone.")


@app.add("prune --table locks --dry-run", "prune --table shop.models:Locks --older-than 30d --yes")
def prune(session: Session, *, older_than: _OlderThan = "0s", dry_run: _DryRun = False, yes: _Yes = False) -> int:
    """Delete the rows of named locks that are no longer used, in a table without TTL.

    Those that TTL would have deleted so long ago: a day after the last lease, or later after a run of --once-per. A row
    with a holder or a waiter stays, one that has other attributes than a lock, and one whose lock is taken meanwhile.
    Tickets of a deleted name begin again at the time in µs, so they grow unless clocks are wrong. A consistent scan.
    """
    table, age_s = session.locks(), terminal.seconds_of(older_than, "--older-than")
    names = table.prune(older_than=age_s, dry_run=dry_run or not yes)
    if names and not (dry_run or yes):
        session.confirm(f"Delete the rows of {len(names)} locks in {table.Meta.table_name}?")
        names = table.prune(older_than=age_s)
    document = {"table": table.Meta.table_name, "dry_run": dry_run, "pruned": sorted(names)}
    return session.show(document, *map(plain, sorted(names)), f"{len(names)} {'to be ' if dry_run else ''}deleted.")


# Looking


def _model(session: Session, model: str | None, attribute: str, prefix: str | None) -> type[LockableMixin]:
    found = session.lockable(model, attribute)
    if prefix and [key.attr_type for key in keys.key_attributes(found)][:1] != ["S"]:
        raise usage(f"--prefix is for names and keys that are strings, and those of {found.Meta.table_name} are not.")
    return found


def _listed(model: type[LockableMixin], prefix: str | None, *, with_free: bool) -> dict[str, Any]:
    found = inspection.listed(model, prefix, with_free=with_free)
    made = sorted(found, key=lambda each: (each["name"], each["key"]["range"] or ""))
    broken = {each["name"]: each["unreadable"] for each in made if each["unreadable"]}
    sound = [each for each in made if not each["unreadable"]]
    return {"table": model.Meta.table_name, "locks": sound, "unreadable": broken}


def _table(document: dict[str, Any]) -> RenderableType:
    rows = [row for lock in document["locks"] for row in _rows(lock)]
    for name, why in document["unreadable"].items():
        rows.append((name, Text("broken", "bold red"), "", "", why, "", "", "", "", ""))
    if not rows:
        return f"{document['table']}: no lock is held."
    columns: tuple[str, ...] = _COLUMNS
    if not any(lock["last_success"] for lock in document["locks"]):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return terminal.table(document["table"], columns, rows, folds=("lock", "owner", _COLUMNS[-1]))


def _rows(lock: dict[str, Any]) -> list[tuple[object, ...]]:
    """Return a row for each entry, holders first; only the first one names the lock."""
    entries = [(inspection.shown_role(role, entry), entry) for role, entry in inspection.entries(lock)]
    made: list[tuple[object, ...]] = [(Text(role, _STYLES[role]), *_cells(entry)) for role, entry in entries]
    if lock["transaction"] is not None:
        what = f"transaction {lock['transaction']['id']}"
        made.append((Text("intent", "magenta"), "", "", what, lock["transaction"]["operation"], "", "", ""))
    if not made:
        made.append(("free" if lock.get("item_exists", True) else "no such item", "", "", "", "", "", "", ""))
    success = lock["last_success"]
    noted = "" if success is None else f"{success['ended_at']}, ticket {success['ticket']} by {success['owner']}"
    return [("" if i else lock["name"], *cells, "" if i else noted) for i, cells in enumerate(made)]


def _cells(entry: Mapping[str, Any]) -> tuple[object, ...]:
    left = entry["lease_left_s"]
    return (
        terminal.duration(inspection.lasted(entry)),
        entry["ticket"],
        _owner(entry),
        inspection.shown_lock_mode(entry),
        terminal.ago(entry["since_renewal_s"]),
        terminal.duration(entry["lease_s"]),
        Text(terminal.until(left), "" if left >= 0 else "bold red"),
    )


def _owner(entry: Mapping[str, Any]) -> str:
    more = "" if entry["callers"] == 1 else f" and {entry['callers'] - 1} more"
    return f"{entry['owner']}{more}{' (detached)' if entry['is_detached'] else ''}"


def _keys(model: type[LockableMixin], key: str, range_key: str | None) -> tuple[Any, Any]:
    texts = [key] if range_key is None else [key, range_key]
    if len(texts) < len(keys.key_attributes(model)) and getattr(model.Meta, "lock_table", None) is None:
        raise usage(f"the items of {model.Meta.table_name} have a range key: name it after the KEY.")
    try:
        hash_value, range_value = (*inspection.keys_from_text(model, texts), None)[:2]
        lock_target_of(model, hash_value, range_value)  # refuses values that cannot be a key
    except (ConfigurationError, InvalidInput) as error:
        raise usage(str(error)) from error
    return hash_value, range_value


def _lock_document(model: type[LockableMixin], key: str, range_key: str | None) -> dict[str, Any]:
    found = _keys(model, key, range_key)
    name, table, state = lock_target_of(model, *found).row.name, model.Meta.table_name, model.lock_state(*found)
    if found[1] is None and len(keys.key_attributes(model)) > 1 and not (state.entries or state.unreadable):
        raise usage(f"no range of {key!r} is locked. For the lock of an item, name its range key after the KEY.")
    return {"table": table, **inspection.shown(name, [key, *filter(None, [range_key])], state)}


# Breaking


def _entry(lock: dict[str, Any], ticket: int) -> tuple[str, dict[str, Any]]:
    for role, entry in inspection.entries(lock):
        if entry["ticket"] == ticket:
            return "held it" if role == "holds" else "waited", entry
    raise _no_ticket(lock, ticket, "no entry of the queue has it")


def _no_ticket(lock: dict[str, Any], ticket: int, why: str) -> Problem:
    tickets = [entry["ticket"] for _, entry in inspection.entries(lock)]
    now = f"those in it are {', '.join(map(str, tickets))}" if tickets else "the queue is empty"
    message = f"ticket {ticket} of {plain(lock['name'])} cannot be broken: {why}; {now}. Nothing was changed."
    return Problem("no_such_ticket", message, Exit.NO, ticket=ticket, tickets=tickets)


def _question(lock: dict[str, Any], role: str, entry: dict[str, Any]) -> str:
    who, renewed, behind = plain(entry["owner"]), terminal.ago(entry["since_renewal_s"]), entry["callers"] - 1
    others = f" {behind} more callers of its process lose their tickets with it." if behind else ""
    long = terminal.duration(inspection.lasted(entry))
    return (
        f"{plain(lock['name'])}: ticket {entry['ticket']} of {who}, which {role} for {long}, was renewed {renewed}."
        f"{others} Break it?"
    )
