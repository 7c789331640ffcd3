"""The requests that remove a transaction's mark from an item: finish what it intends, or drop it.

Each names the transaction, so a second copy, or the same request of another process, changes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pynamo_locking._core.errors import LockingError
from pynamo_locking._io import answers, header_requests, lock_document, retries, statements, trust
from pynamo_locking._io.retries import Refused, persistently
from pynamo_locking._io.statements import Result, Write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamo_locking._core.queue import Mark
    from pynamo_locking._io.header_requests import HeaderTable
    from pynamo_locking._io.lock_document import LockRow

logger = logging.getLogger("pynamo_locking")


def finish(header_table: HeaderTable, row: LockRow, mark: Mark) -> bool:
    """Apply the mark of a transaction that is committed in that table.

    False: the row of its changes is gone, and nothing was sent; see `whole`.
    """
    if mark.op == "keep":
        drop(row, mark)
    elif mark.op == "delete":
        _send(row, "DeleteItem", mark)
    else:
        changes = whole(header_table, mark)
        if changes is None:
            return False
        _send(row, "UpdateItem", mark, changes)
    return True


def finish_all(header_table: HeaderTable, marked: Sequence[tuple[LockRow, Mark]]) -> None:
    """Apply up to 25 marks in one table: in one request, and each alone that was not applied by it; see `finish`."""
    results = (
        [Result.NOT_APPLIED] if len(marked) == 1 else statements.send([_finishing(row, mark) for row, mark in marked])
    )
    for (row, mark), result in zip(marked, results, strict=True):
        if result is not Result.APPLIED:
            finish(header_table, row, mark)


def _finishing(row: LockRow, mark: Mark) -> Write | None:
    if mark.spill:
        return None
    if mark.op == "delete":
        return _request(row, "DeleteItem", mark)
    return _request(row, "UpdateItem", mark, mark)


def drop(row: LockRow, mark: Mark) -> None:
    """Remove the mark from an item that stays as it is; delete a placeholder.

    Whether the item is a placeholder is checked in the mark itself: memory could be of another attempt.
    """
    if mark.is_ghost:
        _send(row, "DeleteItem", mark, ghost="attribute_exists")
    else:
        _send(row, "UpdateItem", mark, replace(mark, set={}, remove=()), ghost="attribute_not_exists")


def whole(header_table: HeaderTable, mark: Mark) -> Mark | None:
    """Return a mark with its changes, which may be in a row of their own.

    None: that row is gone, which happens after all items of the transaction were finished, this one included.

    Raises:
        LockingError: the mark names a row that does not belong to its transaction.
    """
    if not mark.spill:
        return mark
    trust.check_row_of_changes(mark.id, mark.spill)
    return header_requests.get_row(header_table, mark.spill, lambda row: lock_document.with_changes(mark, row))


def _request(row: LockRow, operation: str, mark: Mark, changes: Mark | None = None, *, ghost: str = "") -> Write:
    names = {"#l": row.attribute, "#tx": lock_document.TX, "#id": lock_document.TX_ID}
    values: dict[str, Any] = {":id": {"S": mark.id}}
    condition = "#l.#tx.#id = :id"
    if ghost:
        names |= {"#intent": lock_document.INTENT, "#ghost": lock_document.GHOST}
        condition += f" AND {ghost}(#l.#tx.#intent.#ghost)"
    kwargs: dict[str, Any] = {"TableName": row.table, "Key": row.key, "ConditionExpression": condition}
    if changes is not None:
        kwargs["UpdateExpression"] = _expression(changes, names, values)
    kwargs |= {"ExpressionAttributeNames": names, "ExpressionAttributeValues": values}
    return Write(row.connection, operation, kwargs)


def _send(row: LockRow, operation: str, mark: Mark, changes: Mark | None = None, *, ghost: str = "") -> None:
    request = _request(row, operation, mark, changes, ghost=ghost)
    try:
        persistently(lambda: retries.ask(*request))
    except Refused:
        logger.debug("another process has removed the mark of %s from %s", mark.id, row.label)
    except answers.BOTOCORE_EXCEPTIONS as error:
        raise LockingError(
            f"{row.label} carries the mark of the decided transaction {mark.id}, and DynamoDB refused to remove it: "
            f"{answers.code_of(error)}: {answers.message_of(error)}",
            cause=error,
        ) from error


def _expression(changes: Mark, names: dict[str, str], values: dict[str, Any]) -> str:
    set_, remove = list[str](), ["#l.#tx"]
    for i, (name, value) in enumerate(changes.set.items()):
        names[f"#s{i}"], values[f":s{i}"] = name, value
        set_.append(f"#s{i} = :s{i}")
    for i, name in enumerate(() if changes.is_ghost else changes.remove):  # a placeholder has nothing to remove
        names[f"#r{i}"] = name
        remove.append(f"#r{i}")
    return (f"SET {', '.join(set_)} " if set_ else "") + f"REMOVE {', '.join(remove)}"
