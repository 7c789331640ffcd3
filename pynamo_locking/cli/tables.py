"""``tables create`` and ``tables check``."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Annotated, Any, Final

from pynamodb.exceptions import TableError
from rich.text import Text

from pynamo_locking._edge import administration, inspection
from pynamo_locking.cli import checks, models, output
from pynamo_locking.cli.command import argument, command, flag, group
from pynamo_locking.cli.problems import EXPECTED, Exit, usage

if TYPE_CHECKING:
    import typer
    from pynamodb.models import Model
    from rich.console import Console

    from pynamo_locking.cli.session import Session

_STYLES: Final = {checks.OK: "green", checks.NOTE: "cyan", checks.WARNING: "yellow", checks.PROBLEM: "bold red"}

_HELP: Final = "Models of your application; also the tables that they name."
_Models = Annotated[list[str] | None, argument("[MODULE:MODEL]...", _HELP)]


def attach(app: typer.Typer) -> None:
    """Add the commands."""
    tables = group("The tables of locks, of transactions, and of your models.", app, "tables")
    used: Any = {"tables": ("table", "transaction_table")}
    command(
        tables,
        create,
        "tables create --table locks --region eu-west-1",
        "tables create --table locks --transaction-table transactions",
        "tables create shop.models:Order shop.models:Customer",
        **used,
    )
    command(
        tables,
        check,
        "tables check --table locks",
        "tables check shop.models:Order --json",
        "tables check shop.models:Order --strict  # warnings count as problems",
        **used,
    )


def create(
    session: Session,
    *,
    names: _Models = None,
    enable_ttl: Annotated[bool, flag("--enable-ttl", "Enable TTL also for tables of locks that have items.")] = False,
) -> int:
    """Create the tables that are missing, and check all of them.

    They are billed on demand unless the model's Meta says otherwise, with TTL enabled where the model has an attribute
    for it. If a table that is there has other keys than its model, nothing is changed at all. Otherwise nothing that is
    there is changed, but for TTL where it is off: of tables of locks and transactions only while they are empty, unless
    --enable-ttl is given. Safe to run again, and by several at once.
    """
    found = _models(session, names)
    missing = [model for model in found if not checks.exists(model) and not administration.is_shared(model)]
    there = [model for model in found if model not in missing and checks.exists(model)]
    if any(checks.has_other_keys(model) for model in there):
        return _report(session, found, created=[], strict=False)
    created = [model for model in missing if administration.is_created(functools.partial(_create, model))]
    for model in [*missing, *there]:
        with contextlib.suppress(*EXPECTED):  # what it is, the findings say
            administration.describe_ready(model)
        _enable_ttl(model, whatever_is_there=enable_ttl)
    return _report(session, found, created=created, strict=False)


def check(
    session: Session,
    *,
    names: _Models = None,
    strict: Annotated[bool, flag("--strict", "Let warnings count as problems.")] = False,
) -> int:
    """Check that tables are what they have to be. Nothing is written.

    Keys, Region and replication, billing, TTL, encryption, and the permissions that can be seen without a write. The
    exit code is 1 if there is a problem.
    """
    return _report(session, _models(session, names), created=None, strict=strict)


def _models(session: Session, names: list[str] | None) -> list[type[Model]]:
    """Return the models to look at: those of the settings, those that are named, and the tables they name."""
    found: list[type[Model]] = []
    if session.settings.table is not None:
        found.append(session.locks())
    if session.settings.transaction_table is not None:
        found.append(session.transactions(None))
    for name in names or ():
        found += inspection.with_tables([session.model(name)])
    by_table: dict[tuple[str, str], type[Model]] = {}
    for model in found:  # of those for the same rows the last one, which is an application's own if there is one
        role = checks.role_of(model)
        is_one_of_many = role == "items" or administration.is_shared(model)
        by_table[model.Meta.table_name, f"{role} {model.__qualname__}" if is_one_of_many else role] = model
    if not by_table:
        raise usage(
            "which tables? Name models as module:Class, or tables with --table and --transaction-table (or the "
            "settings for them)."
        )
    return list(by_table.values())


def _create(model: type[Model]) -> None:
    meta: Any = model.Meta
    says_how = getattr(meta, "billing_mode", None) is not None or getattr(meta, "read_capacity_units", None) is not None
    options: Any = {} if says_how or checks.role_of(model) != "items" else {"billing_mode": "PAY_PER_REQUEST"}
    model.create_table(wait=True, **options)


def _enable_ttl(model: type[Model], *, whatever_is_there: bool) -> None:
    if not _lacks_ttl(model):
        return
    is_shared = administration.is_shared(model)
    is_asked = whatever_is_there or (checks.role_of(model) == "items" and not is_shared)
    if not is_asked and (is_shared or not administration.is_empty(model)):
        return
    try:
        model.update_ttl(ignore_update_ttl_errors=False)
    except TableError:
        if _lacks_ttl(model):  # else another process was faster
            raise


def _lacks_ttl(model: type[Model]) -> bool:
    return any(each.check == "ttl" and each.remedy.startswith(checks.CREATE) for each in checks.findings(model))


def _report(session: Session, found: list[type[Model]], *, created: list[type[Model]] | None, strict: bool) -> int:
    documents = list[dict[str, Any]]()
    for model in found:
        seen = [each.document() for each in checks.findings(model)]
        document = {"table": model.Meta.table_name, "role": checks.role_of(model), "model": _name(model)}
        documents.append(document | ({} if created is None else {"created": model in created}) | {"findings": seen})
    bad = {checks.PROBLEM, checks.WARNING} if strict else {checks.PROBLEM}
    is_ok = not any(finding["level"] in bad for each in documents for finding in each["findings"])
    session.show({"ok": is_ok, "tables": documents}, lambda console: _print(console, documents))
    return Exit.OK if is_ok else Exit.NO


def _name(model: type[Model]) -> str | None:
    """Return how a model of an application is named; None for those made up here."""
    return None if model.__module__ == models.__name__ else f"{model.__module__}:{model.__qualname__}"


def _print(console: Console, documents: list[dict[str, Any]]) -> None:
    for each in documents:
        title = f"{each['table']} ({each['role']}){', created' if each.get('created') else ''}"
        rows = [
            (each["check"], Text(each["level"], _STYLES[each["level"]]), each["detail"], each["remedy"])
            for each in each["findings"]
        ]
        console.print(output.table(title, ("check", "", "what was seen", "what to do"), rows))
