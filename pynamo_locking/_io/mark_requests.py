"""The requests that remove a transaction's mark from an item: finish what it intends, or drop it.

Each names the transaction, so a second copy, or the same request of another process, changes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.errors import LockingError
from pynamo_locking._core.transaction import Fate
from pynamo_locking._io import (
    answers,
    header_requests,
    lock_document,
    retries,
    statements,
    transactional_reads,
    trust,
)
from pynamo_locking._io.pool import run_all
from pynamo_locking._io.retries import Refused, persistently
from pynamo_locking._io.statements import Result, Write
from pynamo_locking._io.stored import FORMAT, FORMAT_NAME, known_format_text, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamo_locking._core.queue import Mark
    from pynamo_locking._io.header_requests import HeaderTable
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image

logger = logging.getLogger("pynamo_locking")

#: Parallel requests, as many as of a commit unless it is told otherwise.
WORKERS: Final = 8


def settle(header_table: HeaderTable, what: Fate, marked: Sequence[tuple[LockRow, Mark]]) -> list[tuple[LockRow, Mark]]:
    """Finish or drop the marks of one decided transaction, by statements and several requests at once.

    Returns the marks that stay, since the rows of their changes are gone; see `whole`.
    """
    groups = statements.batches((row.connection, row.table) if _is_whole(mark) else None for row, mark in marked)
    gone: list[tuple[LockRow, Mark]] = []
    act = finish_all if what is Fate.FINISH else drop_all

    def job(group: list[int]) -> None:
        gone.extend(act(header_table, [marked[i] for i in group]))

    run_all([partial(job, group) for group in groups], WORKERS)
    return gone


def finish_all(header_table: HeaderTable, marked: Sequence[tuple[LockRow, Mark]]) -> list[tuple[LockRow, Mark]]:
    """Apply up to 25 marks in one table, as they are decided, in one request, and each alone that it did not apply.

    Returns those of which nothing was sent, since the rows of their changes are gone; see `whole`.
    """
    left = _sent_together(marked, [finishing(row, mark) for row, mark in marked])
    return [(row, mark) for row, mark in left if not finish(header_table, row, mark)]


def drop_all(_: HeaderTable, marked: Sequence[tuple[LockRow, Mark]]) -> list[tuple[LockRow, Mark]]:
    """As `finish_all`, of marks to drop; see `drop`."""
    for row, mark in _sent_together(marked, [_dropping(row, mark) for row, mark in marked]):
        drop(row, mark)
    return []


def _sent_together(
    marked: Sequence[tuple[LockRow, Mark]], writes: Sequence[Write | None]
) -> list[tuple[LockRow, Mark]]:
    """Send writes in one request; return the marks of those that it did not apply, or perhaps not."""
    if len(marked) == 1:
        return [*marked]
    results = statements.send(writes)
    return [one for one, result in zip(marked, results, strict=True) if result is not Result.APPLIED]


def finish(header_table: HeaderTable, row: LockRow, mark: Mark) -> bool:
    """Apply the mark of a transaction that is committed in that table.

    False: the row of its changes is gone, and nothing was sent; see `whole`.
    """
    changes = whole(header_table, mark) if mark.op == "save" else mark
    if changes is None:
        return False
    _send(row, mark, _finishing(row, changes))
    return True


def drop(row: LockRow, mark: Mark) -> None:
    """Remove the mark from an item that stays as it is; delete a placeholder.

    Whether the item is a placeholder is checked in the mark itself: memory could be of another attempt.
    """
    _send(row, mark, _dropping(row, mark))


def finishing(row: LockRow, mark: Mark) -> Write | None:
    """Return the request that applies a mark; None if the row of its changes has to be read."""
    return _finishing(row, mark) if mark.op != "save" or _is_whole(mark) else None


def _finishing(row: LockRow, mark: Mark) -> Write:
    if mark.op == "keep":
        return _dropping(row, mark)
    return _request(row, mark, None if mark.op == "delete" else mark)


def _dropping(row: LockRow, mark: Mark) -> Write:
    if mark.is_ghost:
        return _request(row, mark, None, ghost="attribute_exists")
    return _request(row, mark, replace(mark, set={}, remove=()), ghost="attribute_not_exists")


def documents(rows: Sequence[LockRow]) -> list[Image]:
    """Read the lock documents of up to a hundred items of one table, consistently, each with the key of its item.

    Raises:
        Unavailable: no usable answer came.
        BotoCoreError, ClientError: DynamoDB refused it for good.
    """
    [first, *_] = rows
    names = {"#l": first.attribute} | {f"#k{i}": name for i, name in enumerate(first.key)}
    how: dict[str, Any] = {"ProjectionExpression": ", ".join(names), "ExpressionAttributeNames": names}
    keys = [row.key for row in rows]
    return persistently(lambda: transactional_reads.get_batch(retries.ask, first.connection, first.table, keys, **how))


def whole(header_table: HeaderTable, mark: Mark) -> Mark | None:
    """Return a mark with its changes, which may be in a row of their own.

    None: that row is gone, which happens after all items of the transaction were finished, this one included.

    Raises:
        LockingError: the mark names a row that does not belong to its transaction.
    """
    if _is_whole(mark):
        return mark
    trust.check_row_of_changes(mark.id, mark.spill)
    return header_requests.get_row(header_table, mark.spill, lambda row: lock_document.with_changes(mark, row))


def _is_whole(mark: Mark) -> bool:
    """Tell whether a mark has its changes: they are in it, or its own transaction has worked it out."""
    return not mark.spill or bool(mark.set or mark.remove)


def _request(row: LockRow, mark: Mark, changes: Mark | None, *, ghost: str = "") -> Write:
    """Return the write that removes a mark: a delete without changes."""
    names = {"#l": row.attribute, "#tx": lock_document.TX, "#id": lock_document.TX_ID, "#f": FORMAT_NAME}
    values: dict[str, Any] = {":id": {"S": mark.id}, ":format": number(FORMAT)}
    condition = f"#l.#tx.#id = :id AND {known_format_text('#l.#f')}"
    if ghost:
        names |= {"#intent": lock_document.INTENT, "#ghost": lock_document.GHOST}
        condition += f" AND {ghost}(#l.#tx.#intent.#ghost)"
    kwargs: dict[str, Any] = {"TableName": row.table, "Key": row.key, "ConditionExpression": condition}
    if changes is not None:
        kwargs["UpdateExpression"] = _expression(changes, names, values)
    kwargs |= {"ExpressionAttributeNames": names, "ExpressionAttributeValues": values}
    kwargs["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    return Write(row.connection, "DeleteItem" if changes is None else "UpdateItem", kwargs)


def _send(row: LockRow, mark: Mark, request: Write) -> None:
    try:
        persistently(lambda: retries.ask(*request))
    except Refused as refused:
        lock_document.refuse_newer(row, (refused.image or {}).get(row.attribute, {}).get("M"))
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
