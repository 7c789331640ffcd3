"""What every command begins with: settings, the way to print, and the models it is about."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import typer
from typing_extensions import Self

from pynamo_locking._edge import administration
from pynamo_locking.cli import models, output
from pynamo_locking.cli import settings as where
from pynamo_locking.cli.problems import Exit, Problem, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamodb.models import Model
    from rich.console import Console

    from pynamo_locking import LockableMixin, NamedLock, TransactionTable
    from pynamo_locking.cli.settings import Settings


class Session:
    """One run of one command: its settings, from options, environment and file, and whether it prints JSON."""

    def __init__(self, options: Mapping[str, str | None], *, as_json: bool) -> None:
        self.as_json = as_json
        #: Of the process as it was started, for programs that it starts.
        self.environment: dict[str, str] = dict(os.environ)
        self.settings: Settings = where.load(options)
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as ends:  # should one of them fail
            ends.enter_context(where.profile_in_use(self.settings.profile))
            ends.enter_context(output.logging_to(self.settings.log_file, as_json=self.as_json))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.close()

    # Printing

    def show(self, document: Mapping[str, Any], people: Callable[[Console], object]) -> None:
        """Print the answer: as JSON, or as it is printed for people."""
        with output.written():
            if self.as_json:
                print(output.dump(document))  # noqa: T201 - the answer
            else:
                people(output.console())

    def confirm(self, question: str) -> None:
        """Ask the person, and go on only after a yes. Ctrl-C is a KeyboardInterrupt, all else a `Problem`."""
        if self.as_json:
            raise usage("with --json no question is asked: say --yes as well.")
        try:
            is_sure = typer.confirm(question, err=True)
        except typer.Abort as abort:
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise usage("there was no answer, so nothing was changed; without a terminal say --yes.") from None
        if not is_sure:
            raise Problem("not_confirmed", "nothing was changed.", Exit.NO)

    # Tables and models

    def model(self, spec: str) -> type[Model]:
        """Return an application's model, in the Region and at the endpoint of the settings if they name any."""
        self._ends.enter_context(models.modules_from_here())
        found = models.load(spec)
        self._ends.enter_context(models.reached_by(self.settings, found))
        return found

    def lockable(self, spec: str | None, lock_attribute: str) -> type[LockableMixin]:
        """Return the model whose locks a command is about: one that is named, or the one of the table's items."""
        if spec is not None:
            return models.as_lockable(spec, self.model(spec))
        table = self._table()
        if models.is_spec(table):
            return models.as_lockable(table, self.model(table))
        description = administration.describe(models.lock_table(self.settings, table))
        return models.lockable(self.settings, table, description, lock_attribute)

    def locks(self) -> type[NamedLock]:
        """Return the class of locks on names, in the table of the settings."""
        table = self._table()
        return (
            models.as_locks(table, self.model(table))
            if models.is_spec(table)
            else models.lock_table(self.settings, table)
        )

    def transactions(self, spec: str | None) -> type[TransactionTable]:
        """Return the table of transactions that a command is about."""
        table = self.settings.transaction_table
        spec = table if spec is None and table is not None and models.is_spec(table) else spec
        if spec is not None:
            return models.as_transactions(spec, self.model(spec))
        if self.settings.transaction_table is None:
            raise usage(
                "which table of transactions? Name it with --table, PYNAMO_LOCKING_TRANSACTION_TABLE, or "
                "transaction-table in [tool.pynamo-locking] of pyproject.toml; or a model with --model module:Class."
            )
        return models.transaction_table(self.settings, self.settings.transaction_table)

    def _table(self) -> str:
        if self.settings.table is None:
            raise usage(
                "which table? Name it with --table, PYNAMO_LOCKING_TABLE, or table in [tool.pynamo-locking] of "
                "pyproject.toml."
            )
        return self.settings.table
