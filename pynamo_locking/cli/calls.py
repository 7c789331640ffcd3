"""``calls``: calls that may be made twice, those of an `IdempotencyTable`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pynamodb.exceptions import DoesNotExist

from pynamo_locking._facade import inspection, plain, runtime
from pynamo_locking.cli import terminal
from pynamo_locking.cli.command import CALLS, Commands
from pynamo_locking.cli.session import Session  # noqa: TC001 - typer reads the signatures
from pynamo_locking.cli.terminal import Exit, Problem, usage
from pynamo_locking.exceptions import Conflict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking.recipes import IdempotencyTable

_KEY: Final = "The key of the call, with its prefix, as in `calls list`."
_RESULT: Final = "Its work was done, and this is what callers get."
_AFTER: Final = "For how long the result counts."
_FORGET: Final = "It may be made again."

_Key = Annotated[str, typer.Argument(metavar="KEY", help=_KEY)]
_Prefix = Annotated[str | None, typer.Option("--prefix", metavar="TEXT", help="Only keys that begin so.")]
_Result = Annotated[str | None, typer.Option("--result", metavar="JSON", help=_RESULT)]
_After = Annotated[float, typer.Option("--expires-after", metavar="SECONDS", help=_AFTER)]
_Forget = Annotated[bool, typer.Option("--forget", help=_FORGET)]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_COLUMNS: Final = ("call", "", "for", "owner", "lease ends", "waiting")

app: Final = Commands("Idempotent calls that are in progress, or whose process has died.", name="calls", settings=CALLS)


@app.add("list --table calls", "list --table shop.models:Calls --json")
def list_(session: Session, *, prefix: _Prefix = None) -> int:
    """List the calls that are in progress, and those that were abandoned: the lease has ended without a result.

    A consistent scan of the table. The exit code is 1 if some rows cannot be read; they are listed as well.
    """
    table = session.calls()
    without_result = ~(table.kept_until_ms > runtime.current.time_ms())
    found = list(inspection.listed(table, prefix, only=without_result))
    calls = sorted((_call(table, each) for each in found if each["holders"]), key=lambda call: str(call["key"]))
    broken = {each["name"]: each["unreadable"] for each in found if each["unreadable"]}
    rows = [_cells(each) for each in calls] + [(name, "broken", "", why, "", "") for name, why in broken.items()]
    made = terminal.table(table.Meta.table_name, _COLUMNS, rows) if rows else f"{table.Meta.table_name}: no calls."
    document = {"table": table.Meta.table_name, "calls": calls, "unreadable": broken}
    return session.show(document, made, is_well=not broken)


@app.add('settle charge#o-17 --result \'{"receipt": "r-17"}\'', "settle charge#o-18 --forget --yes")
def settle(
    session: Session,
    *,
    key: _Key,
    result: _Result = None,
    expires_after: _After = 86_400.0,
    forget: _Forget = False,
    yes: _Yes = False,
) -> int:
    """Say what became of an abandoned call, for callers with on_abandoned="raise", which do not make it again.

    With --result its callers get that; it must be what the serializer of the application reads. With --forget the next
    caller makes the call. The exit code is 1 if the call goes on, or has ended. The log names the operator.
    """
    if (result is None) is not forget:
        raise usage("say one of the two: --result, with what callers get, or --forget, to let the call be made again.")
    try:
        value = None if result is None else json.loads(result)
    except ValueError as error:
        raise usage(f"--result is not JSON: {error}.") from error
    table, name = session.calls(), plain(key)
    if not yes:
        what = "be made again" if forget else f"have the result {plain(str(result))}"
        session.confirm(f"Let the call {name} {what}?")
    try:
        if forget:
            table.forget(key)
        else:
            table.settle(key, value, expires_after=expires_after)
    except (Conflict, DoesNotExist) as error:
        raise Problem("not_settled", str(error), Exit.NO, key=key) from error
    became, who = "forgotten" if forget else "done", terminal.operator()
    terminal.leave_trace(f"the call {name} in {table.Meta.table_name} was settled as {became} by {who}")
    document = {"table": table.Meta.table_name, "key": key, "settled": became, "settled_by": who}
    return session.show(document, f"{name} is settled as {became}.")


def _call(table: type[IdempotencyTable], lock: Mapping[str, Any]) -> dict[str, Any]:
    [entry, *_], skew = lock["holders"], table.lock_settings().max_clock_skew
    is_over = -entry["lease_left_s"] > (entry["lease_s"] if skew is None else skew)
    facts = {name: entry[name] for name in ("owner", "ticket", "held_s", "entered_at", "lease_ends_at", "lease_left_s")}
    state = "abandoned" if is_over else "in progress"
    return {"key": lock["name"], "state": state, **facts, "waiters": len(lock["waiters"])}


def _cells(call: Mapping[str, Any]) -> tuple[object, ...]:
    held, ends = terminal.duration(call["held_s"]), terminal.until(call["lease_left_s"])
    return call["key"], call["state"], held, call["owner"], ends, call["waiters"]
