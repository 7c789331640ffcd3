"""Checks of what stored rows say before it is followed: other programs can write rows as well."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.errors import LockingError
from pynamo_locking._io import header_requests

if TYPE_CHECKING:
    from pynamo_locking._core.queue import Mark
    from pynamo_locking._io.header_requests import HeaderTable
    from pynamo_locking._io.lock_document import LockRow

#: Of a row of changes, behind the id of its transaction; see `row_of_changes`.
_INDEX: Final = re.compile("[0-9]{5,9}")

#: So much of a stored name is shown in an error.
_SHOWN: Final = 255


def header_table_of(row: LockRow, mark: Mark) -> HeaderTable:
    """Return the table of transactions that a mark names, if the item's model declares it.

    Raises:
        LockingError: the model declares another table. Any writer of the item could have put that name there, so it is
            not asked.
    """
    declared = row.transactions
    if declared is None or mark.table != declared:
        raise LockingError(
            f"{row.label} carries the mark of the transaction {mark.id[:_SHOWN]!r} in the table "
            f"{mark.table[:_SHOWN]!r}, and its model declares "
            f"{'no table of transactions' if declared is None else repr(declared)} in Meta.transaction_table. That "
            f"table was not asked, and the item was left as it is. If it is yours, declare it, or complete the "
            f"transaction with recover(). If not, find out who has written the item, and remove tx from its attribute "
            f"{row.attribute!r}."
        )
    model: Any = row.model
    return replace(header_requests.header_table_of(model.Meta.transaction_table), connection=row.connection)


def check_row_of_changes(header_id: str, name: str) -> None:
    """Refuse a stored name that is no row of the transaction: it could be the header of another one.

    Raises:
        LockingError: it is not.
    """
    if not (name.startswith(f"{header_id}!") and _INDEX.fullmatch(name, len(header_id) + 1)):
        raise LockingError(
            f"the transaction {header_id[:_SHOWN]!r} is said to keep its changes in the row {name[:_SHOWN]!r}, which "
            f"is no row of its own. That row was neither read nor deleted. Find out who has written this."
        )


def check_place(header_table: HeaderTable, header_id: str, table: str) -> None:
    """Refuse a table of items that is named as one of another account or Region than the table of transactions.

    Raises:
        LockingError: it is.
    """
    place, declared = table.rpartition("/")[0], header_table.table.rpartition("/")[0]
    if place != declared:  # of an ARN all but the name; of a name nothing
        raise LockingError(
            f"the transaction {header_id!r} is said to have items in the table {table[:_SHOWN]!r}, which is named as "
            f"one of another account or Region than {header_table.table!r}. That table was not asked. Find out who has "
            f"written this."
        )
