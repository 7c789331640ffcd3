"""``unique``: rows of unique values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pynamo_locking import VersionedMixin
from pynamo_locking.cli import terminal
from pynamo_locking.cli.command import Commands
from pynamo_locking.cli.session import Session  # noqa: TC001 - typer reads the signatures
from pynamo_locking.cli.terminal import usage

if TYPE_CHECKING:
    from pynamo_locking.unique import UniqueReport

_Model = Annotated[str, typer.Argument(metavar="MODULE:MODEL", help="A model of your application with Meta.unique.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_COLUMNS: Final = ("problem", "fields", "values", "items", "row of", "repaired")

app: Final = Commands("Unique values of your models, and the rows that keep them.", name="unique")


@app.add("check shop.models:User", "check shop.models:User --json")
def check(session: Session, name: _Model) -> int:
    """Compare the items of a model with the rows of their unique values, and change nothing.

    A consistent scan of both tables. The exit code is 1 if something does not fit.
    """
    return _shown(session, _model(session, name).check_unique())


@app.add("repair shop.models:User --yes")
def repair(session: Session, *, name: _Model, yes: _Yes = False) -> int:
    """Write missing rows of unique values, and remove those whose items do not have the value.

    Safe while others write. A value that several items have is reported, and left to you: the exit code is 1 then.
    """
    model = _model(session, name)
    if not yes:
        session.confirm(f"Mend the rows of the unique values of {model.Meta.table_name}?")
    return _shown(session, model.repair_unique())


def _model(session: Session, name: str) -> Any:
    model = session.model(name)
    if not issubclass(model, VersionedMixin):
        raise usage(f"{name} has no unique values: it is no VersionedMixin with a Meta.unique.")
    return model


def _shown(session: Session, report: UniqueReport) -> int:
    rows = [
        (
            each.kind,
            ", ".join(each.fields),
            ", ".join(map(str, each.values)),
            " and ".join(map(_key, each.items)),
            _key(each.holder or {}),
            "yes" if each.is_repaired else "no",
        )
        for each in report.problems
    ]
    summary = f"items: {report.items}, rows: {report.rows}, problems: {len(rows)}"
    made = terminal.table(summary, _COLUMNS, rows) if rows else f"{summary}."
    return session.show({**asdict(report), "is_sound": report.is_sound}, made, is_well=report.is_sound)


def _key(key: dict[str, Any]) -> str:
    return " / ".join(map(str, key.values()))
