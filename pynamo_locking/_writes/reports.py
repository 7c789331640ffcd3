"""Events of writes that were refused or are in doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core import events
from pynamo_locking._io.event_stream import clocks, emit
from pynamo_locking._io.reports import harmless
from pynamo_locking._items import keys
from pynamo_locking.exceptions import (
    Conflict,
    ItemLocked,
    NotUnique,
    OutcomeUnknown,
    StaleVersion,
    TransactionAborted,
    TransactionConflict,
)

if TYPE_CHECKING:
    from pynamo_locking._writes.write import Write

#: The names under which errors are reported, the most specific first.
_KINDS: Final = (StaleVersion, ItemLocked, NotUnique, TransactionConflict, TransactionAborted, Conflict, OutcomeUnknown)


def name_of_error(error: BaseException) -> str:
    """Return the name of an error's kind: its own class may be a combination with PynamoDB's."""
    return next((kind for kind in _KINDS if isinstance(error, kind)), type(error)).__name__


def _refusal(about: dict[str, Any], error: BaseException) -> None:
    about = {**clocks(), **about, "error": name_of_error(error)}
    if isinstance(error, OutcomeUnknown):
        emit(events.WriteInDoubt(**about, write_id=error.write_id))
    elif isinstance(error, StaleVersion):
        emit(events.WriteRefused(**about, expected=error.expected, actual=error.actual))
    elif isinstance(error, ItemLocked):
        emit(events.WriteRefused(**about, holder=error.holder, holder_ticket=error.ticket))
    elif isinstance(error, TransactionAborted):
        emit(events.WriteRefused(**about, by=error.by))
    elif isinstance(error, Conflict):
        emit(events.WriteRefused(**about))


@harmless
def write_failed(write: Write, error: Exception) -> None:
    """Report a conflict of a single write, or its unknown outcome."""
    model, item = type(write.item), write.item
    values = [None if name is None else getattr(item, name) for name in (item._hash_keyname, item._range_keyname)]
    about = {
        "table": item._get_connection().table_name,
        "model": model,
        "name": keys.name_of(model, keys.key_of(model, *values)),
        "operation": write.operation.verb,
    }
    _refusal(about, error)


@harmless
def commit_failed(transaction_id: str, table: str, error: Exception) -> None:
    """Report the same of a transaction, given the table of its first item."""
    _refusal({"table": table, "model": None, "name": transaction_id, "operation": "transaction"}, error)
