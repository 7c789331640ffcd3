"""Checks that what a transaction has read is still so, in reads that no transaction on its way can deceive.

A plain read is no check: it may return the old value of a native transaction that is decided and not yet applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import paths as rules
from pynamo_locking._io import attempts, images, transport
from pynamo_locking._io.writes import Patience, refusal
from pynamo_locking.exceptions import ConfigurationError, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.connection import Connection
    from pynamodb.models import Model

    from pynamo_locking._io.requests import Image
    from pynamo_locking._io.resolving import Resolver
    from pynamo_locking._io.unit import Entry

#: Codes with which a transactional read of more than 4 MB is refused.
_TOO_LARGE: Final = frozenset({"ValidationException", "TransactionCanceledException"})


def validate(entries: Sequence[Entry], resolver: Resolver, pulse: Callable[[], None] = lambda: None) -> None:
    """Check that all items are what they were when they were read.

    Absent ones are checked together, in the first read: an item may come and go, a write id never comes again.
    What is stored and was read before that read, and is unchanged after it, was there at that moment too.

    Raises:
        StaleVersion, Conflict: one of them is not.
        TransactionConflict: other transactions kept them busy.
        ConfigurationError: more than a hundred of them were absent.
        StillPending: a transaction that is alive has one of them.
    """
    absent = [entry for entry in entries if entry.is_absent]
    if len(absent) > rules.MOST_ACTIONS:
        raise ConfigurationError(
            f"the transaction relies on {len(absent)} items that do not exist, and DynamoDB can check "
            f"{rules.MOST_ACTIONS} at once: read fewer of them, or use isolation='read_committed'."
        )
    ordered = in_order(entries)
    for chunk in rules.chunks([item_size(entry) for entry in ordered]):
        pulse()
        _validate_chunk([ordered[i] for i in chunk], resolver)


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """Return the items in the order in which they are checked: the absent ones first."""
    return sorted(entries, key=lambda entry: not entry.is_absent)


def _validate_chunk(entries: Sequence[Entry], resolver: Resolver) -> None:
    while True:
        marked = False
        for entry, image in zip(entries, read_together(entries), strict=True):
            row = entry.row
            mark = None if row is None else row.state(image).mark
            if row is not None and mark is not None:
                marked = True
                resolver.resolve(row, mark)
            else:
                _check(entry, image)
        if not marked:
            return


def _check(entry: Entry, image: Image | None) -> None:
    write = entry.final()
    if not images.holds(image, write.kwargs()):
        cause = transport.condition_failed(TransactWriteError, "the item is not the one that was read")
        raise refusal(write, TransactWriteError, image, cause)


def item_size(entry: Entry) -> int:
    """Return about how large an item is, in bytes."""
    if entry.is_absent:
        return 0
    return images.size_of(entry.base if isinstance(entry.base, dict) else entry.item.serialize(null_check=False))


def read_together(entries: Sequence[Entry]) -> list[Image | None]:
    """Return the stored items as they were at one moment, up to a hundred."""
    gets = [{"Get": {"TableName": entry.table, "Key": entry.key}} for entry in entries]
    return _get_together(entries[0].item._get_connection().connection, gets)


def settle(model: type[Model], keys: Sequence[Image]) -> None:
    """Return only once nothing is left to do to some items for native transactions that were decided before.

    DynamoDB applies such a transaction item by item: until it has done so, a plain read or a query may still show
    an item as it was before. A transactional read is refused for so long. What it reads is of no interest here.

    Raises:
        TransactionConflict: other transactions kept the items busy.
        TransactWriteError: DynamoDB refused the request for another reason.
    """
    connection = model._get_connection()
    get = {
        "TableName": connection.table_name,
        "ProjectionExpression": "#key",
        "ExpressionAttributeNames": {"#key": next(iter(keys[0]))} if keys else {},
    }
    for start in range(0, len(keys), rules.MOST_ACTIONS):
        _settle_some(
            connection.connection, [{"Get": {**get, "Key": key}} for key in keys[start:][: rules.MOST_ACTIONS]]
        )


def _settle_some(connection: Connection, gets: list[dict[str, Any]]) -> None:
    try:
        _get_together(connection, gets)
    except TransactionConflict:
        raise
    except TransactWriteError as error:
        if transport.code_of(error.cause) not in _TOO_LARGE or len(gets) == 1:
            raise
        half = len(gets) // 2  # more than 4 MB, which are counted before anything is left out
        _settle_some(connection, gets[:half])
        _settle_some(connection, gets[half:])


def _get_together(connection: Connection, gets: list[dict[str, Any]]) -> list[Image | None]:
    patience = Patience()
    while True:
        try:
            answer: dict[str, Any] = attempts.dispatch(connection, "TransactGetItems", {"TransactItems": gets})
        except transport.BOTOCORE_EXCEPTIONS as error:
            if patience.allows(error):
                continue
            if transport.is_refused_for_now(error, was_tried_once=True):
                raise also(TransactionConflict, TransactWriteError)(
                    f"other transactions kept the items of this one busy; nothing was written, and it can be tried "
                    f"again: {error}",
                    cause=error,
                ) from error
            raise TransactWriteError("Failed to read transaction items", transport.readable(error)) from error
        return [each.get("Item") for each in answer["Responses"]]
