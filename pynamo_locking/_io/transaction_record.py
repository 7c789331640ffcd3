"""All requests for a transaction's record and its further rows, and checks of what they say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core.errors import InvalidInput, LockingError
from pynamo_locking._core.lease import IDLE_TTL_S, next_renewal
from pynamo_locking._core.row_keys import OwnKeys, cut
from pynamo_locking._core.transactions import KEEP, RetentionTimes, TransactionRecord, TransactionStatus, public_reason
from pynamo_locking._io import client, event_stream, protocol, responses, runtime
from pynamo_locking._io.client import Refused, persistently
from pynamo_locking._io.model_doors import own_keys_of
from pynamo_locking._io.responses import foreign_row_error, of_transactions
from pynamo_locking._io.stored_rows import FORMAT, FORMAT_NAME, StoredRow, number
from pynamo_locking._pynamodb import connection_of, ttl_attribute_of
from pynamo_locking.exceptions import TransactionAborted, also

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pynamodb.connection import Connection

    from pynamo_locking._core.lock_queue import WriteIntent
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.protocol import Clause
    from pynamo_locking._io.stored_rows import Image


_T = TypeVar("_T")

#: Stored names.
ID: Final = "id"
STATE: Final = "state"
PRIORITY: Final = "priority"
OWNER: Final = "owner"
BEAT: Final = "beat"
LEASE: Final = "lease_ms"
UNTIL: Final = "until_ms"
BY: Final = "by"
ITEMS: Final = "items"
ROWS: Final = "rows"
EARLY: Final = "early"
EXPIRES: Final = "expires_s"
CLEAN: Final = "clean"
CONTENT: Final = "content"
ABANDONED: Final = "abandoned"

#: Which fields of a record are numbers, and their stored names.
_FIELDS: Final = {"heartbeats": BEAT, "lease_ms": LEASE, "until_ms": UNTIL, "items": ITEMS, "rows": ROWS}

_ALONE: Final = OwnKeys(ID)

#: What to do about a broken row.
_ADVICE: Final = "Restore that attribute by hand: without its row a transaction counts as aborted."


class RecordTable(NamedTuple):
    connection: Connection
    table: str
    keep: RetentionTimes = KEEP
    keys: OwnKeys = _ALONE
    expires: str = EXPIRES

    @property
    def place(self) -> str:
        """The table, and the prefix of its rows if it has other items: what intents name."""
        return self.keys.place(self.table)

    def ends(self, keep_s: int) -> dict[str, Any]:
        """Return the stored time of expiry of a row that is kept for so long."""
        return number(runtime.current.time_ms() // 1000 + keep_s)

    def key(self, row_id: str) -> dict[str, Any]:
        if self.keys.is_shared and len(row_id.encode()) > self.keys.longest_name:
            raise InvalidInput(
                f"a row of {self.place!r} has a name of at most {self.keys.longest_name} bytes, beside the prefix: "
                f"{row_id[:40]!r}... is longer."
            )
        return self.keys.of(row_id)

    def names(self) -> dict[str, Any]:
        """Return the names that the requests of `protocol` take from the table."""
        return {"#id": self.keys.hash_name, "#expires": self.expires}

    def asked(self, clause: Clause, **values: Any) -> dict[str, Any]:
        given = {f":{name}": value for name, value in values.items()}
        return {"TableName": self.table, **protocol.alone(clause, self.names() | given)}

    def row(self, image: Image | None) -> Image | None:
        """Return the image of a row as in a separate table; None if it is none of ours.

        Raises:
            UnknownFormat: a newer release has stored it.
        """
        row = None if image is None else self.keys.alone(image, ID, {self.expires: EXPIRES})
        if row is not None:
            self.named(row[ID]["S"]).refuse_newer(row)
        return row

    def named(self, row_id: str) -> StoredRow:
        return StoredRow(f"the row {row_id!r} of {self.table!r}", self.table, self.key(row_id), _ADVICE)


def record_table_of(table: Any) -> RecordTable:
    connection, keep, ttl = connection_of(table), RetentionTimes.of(table.Meta), ttl_attribute_of(table).attr_name
    return RecordTable(connection.connection, connection.table_name, keep, own_keys_of(table), ttl)


def ask(record_table: RecordTable, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        return client.ask(record_table.connection, operation, kwargs)
    except responses.BOTOCORE_EXCEPTIONS as error:
        raise of_transactions(record_table.table, record_table.key(""), error) from error


def begin(record_table: RecordTable, record: TransactionRecord) -> None:
    """Create a pending record. Until it is acknowledged no intent may name it, or the intent would seem an orphan."""
    put_once(record_table, begun(record_table, record), PRIORITY)


class RecordLease:
    """The lease of a pending record, which the process of its transaction renews between requests, in any thread.

    Attributes:
        table: where the record is.
        record: as it is begun.
    """

    def __init__(self, table: RecordTable, record: TransactionRecord) -> None:
        self.table = table
        self.record = record
        self._heartbeats = 0
        self._renewed_at = runtime.current.monotonic()  # as the end of the lease in the record
        self._renewing = runtime.current.mutex()

    def begin(self) -> None:
        begin(self.table, self.record)

    def renew_if_due(self) -> None:
        """Renew the lease if a renewal is due; `TransactionAborted` if the record is not pending."""
        with event_stream.scope(), self._renewing:
            now = runtime.current.monotonic()
            if now < next_renewal(self._renewed_at, self.record.lease):
                return
            self._heartbeats += 1
            self._renewed_at = now
            stored = renew(self.table, self.record, self._heartbeats)
        if stored.state is not TransactionStatus.PENDING:
            raise aborted(self.record.id, stored)


def aborted(transaction_id: str, stored: TransactionRecord) -> TransactionAborted:
    """Return the error for a transaction that another process has aborted."""
    return also(TransactionAborted, TransactWriteError)(
        f"the transaction {transaction_id} was aborted by another process ({public_reason(stored.by)}); "
        f"nothing was written. Run it again from the start.",
        reason=public_reason(stored.by),
    )


def begun(record_table: RecordTable, record: TransactionRecord) -> dict[str, Any]:
    """Return a pending record as it is stored."""
    return {
        **_state_and_owner(record_table, record),
        **{name: number(getattr(record, field)) for field, name in _FIELDS.items()},
        EARLY: {"BOOL": record.is_validated_early},
    }


def _state_and_owner(record_table: RecordTable, record: TransactionRecord) -> dict[str, Any]:
    return {
        **record_table.key(record.id),
        FORMAT_NAME: number(FORMAT),
        STATE: {"S": record.state.value},
        PRIORITY: {"S": record.priority},
        OWNER: {"S": record.owner},
    }


def put_record(record_table: RecordTable, record: TransactionRecord) -> dict[str, Any]:
    """Return the action that stores the final record of a native transaction; that of `give_up` refuses it."""
    item = {**_state_and_owner(record_table, record), record_table.expires: _final_expiry(record_table)}
    return {"Put": {"Item": item, **record_table.asked(protocol.NEW_ROW)}}


def give_up(record_table: RecordTable, record: TransactionRecord) -> TransactionRecord:
    """Store an aborted record, unless a record is stored already; return what is stored then."""
    over = {BY: {"S": record.by}, CLEAN: {"BOOL": True}, record_table.expires: _final_expiry(record_table)}
    item = {**_state_and_owner(record_table, record), **over}
    return record_in(put_once(record_table, item, PRIORITY), record_table) or record


def put_once(record_table: RecordTable, item: Mapping[str, Any], known_by: str) -> Image | None:
    """Store a row whose name is never used twice; return the row that is already there, such as an earlier copy.

    Raises:
        ConfigurationError: that row lacks the attribute `known_by`, so another program has stored it.
    """
    kwargs = {"Item": item, **record_table.asked(protocol.NEW_ROW)}
    try:
        persistently(lambda: ask(record_table, "PutItem", kwargs))
    except Refused as refused:
        check_own(record_table, refused.image or {}, known_by)
        return record_table.row(refused.image)
    return None


def check_own(record_table: RecordTable, image: Mapping[str, Any], known_by: str) -> None:
    if known_by not in image:
        name = image.get(record_table.keys.hash_name, {}).get("S")
        raise foreign_row_error(
            f"nothing can be kept in the row {name!r}", record_table.table, f"no attribute {known_by!r}"
        )


def read(record_table: RecordTable, transaction_id: str) -> TransactionRecord | None:
    """Read a record, consistently. None if there is none (any more)."""
    return record_in(_image(record_table, transaction_id), record_table)


def record_in(image: Mapping[str, Any] | None, record_table: RecordTable | None = None) -> TransactionRecord | None:
    """Return the record in the image of a row of that table (see `RecordTable.row`); None if there is none.

    Raises:
        CorruptRow: its state is unknown, or a number is not whole. Other attributes of a wrong type count as missing.
    """
    if image is None or (STATE not in image and PRIORITY not in image):
        return None
    name = image[ID]["S"]
    row = StoredRow(f"the row {name!r}", "", {ID: image[ID]}) if record_table is None else record_table.named(name)

    def text(name: str) -> str:
        return str(image.get(name, {}).get("S", ""))

    def whole(name: str) -> int:
        return row.read(image, name, lambda stored: int(stored.get("N", 0))) if name in image else 0

    return TransactionRecord(
        id=name,
        state=row.read(image, STATE, lambda stored: TransactionStatus(stored["S"])),
        priority=text(PRIORITY),
        owner=cut(text(OWNER)),
        by=text(BY),
        is_validated_early=image.get(EARLY, {}).get("BOOL") is not False,  # a missing attribute leaves it open
        **{field: whole(name) for field, name in _FIELDS.items()},
    )


def renew(record_table: RecordTable, record: TransactionRecord, heartbeats: int) -> TransactionRecord:
    """Renew the lease of a pending transaction; return what is stored then.

    Beats only grow, so a late copy cannot take a newer renewal back. Nothing changes if the transaction is no longer
    pending, or has a newer heartbeat.
    """
    until_ms = number(runtime.current.time_ms() + record.lease_ms)
    return _change(
        record_table,
        record.id,
        protocol.RENEW_RECORD,
        TransactionStatus.PENDING,
        beat=number(heartbeats),
        until_ms=until_ms,
    )


def abort(
    record_table: RecordTable, transaction_id: str, by: str, *, heartbeats: int | None = None
) -> TransactionRecord:
    """Abort a pending transaction; return what is stored then, which may be that it is committed.

    Nothing changes if there is a newer heartbeat than number `heartbeats`; None ignores it.
    """
    clause = protocol.ABORT if heartbeats is None else protocol.ABORT + protocol.NOT_RENEWED
    # Its intents are not dropped yet, so it stays as long as the rows that help to find them.
    ends, state = record_table.ends(record_table.keep.keep_rows_s), {"S": TransactionStatus.ABORTED.value}
    values: dict[str, Any] = {"state": state, "by": {"S": by}, "expires": ends, "seen": number(heartbeats or 0)}
    return _change(record_table, transaction_id, clause, TransactionStatus.PENDING, **values)


def finish(record_table: RecordTable, transaction_id: str) -> TransactionRecord:
    """Note that nothing is left to do; only when every item with an intent is known to be finished."""
    values = {"state": {"S": TransactionStatus.FINISHED.value}, "expires": _final_expiry(record_table)}
    return _change(
        record_table,
        transaction_id,
        protocol.DECIDE + protocol.SET_RECORD_EXPIRY,
        TransactionStatus.COMMITTED,
        **values,
    )


def clean(record_table: RecordTable, transaction_id: str, *, is_certain: bool) -> TransactionRecord:
    """Note that no intent of an aborted transaction is left, so that no sweep searches for one.

    `is_certain` if all requests for intents were answered, which only their sender knows. Otherwise an intent may still
    arrive, and nothing changes until a day after the abort.
    """
    clause = protocol.CLEAN if is_certain else protocol.CLEAN + protocol.ROW_EXPIRED
    a_day_ago = record_table.ends(record_table.keep.keep_rows_s - IDLE_TTL_S)
    values: dict[str, Any] = {"clean": {"BOOL": True}, "expires": _final_expiry(record_table), "old": a_day_ago}
    return _change(record_table, transaction_id, clause, TransactionStatus.ABORTED, **values)


def decision(record_table: RecordTable, transaction_id: str, to: TransactionStatus) -> dict[str, Any]:
    """Return the action of the native transaction that decides."""
    clause = protocol.DECIDE + protocol.SET_RECORD_EXPIRY if to.is_final else protocol.DECIDE
    values = {"state": {"S": to.value}, "expires": _final_expiry(record_table)}
    return {"Update": _update(record_table, transaction_id, clause, TransactionStatus.PENDING, **values)}


def still_pending(record_table: RecordTable, transaction_id: str) -> dict[str, Any]:
    """Return the action of a native transaction that changes nothing, and is refused after the decision.

    It is an update, since a ConditionCheck needs a permission that no other request for records needs.
    """
    # R8: a placeholder is created only in one transaction with this.
    pending = {"S": TransactionStatus.PENDING.value}
    return {"Update": _update(record_table, transaction_id, protocol.DECIDE, TransactionStatus.PENDING, state=pending)}


def _final_expiry(record_table: RecordTable) -> dict[str, Any]:
    # R10: longer than any request can still be on its way.
    return record_table.ends(record_table.keep.keep_finished_s)


def _update(
    record_table: RecordTable, transaction_id: str, clause: Clause, from_: TransactionStatus, **values: Any
) -> dict[str, Any]:
    asked = record_table.asked(clause, **values, **{"from": {"S": from_.value}})
    return {"Key": record_table.key(transaction_id), **asked}


def _change(
    record_table: RecordTable, transaction_id: str, clause: Clause, from_: TransactionStatus, **values: Any
) -> TransactionRecord:
    kwargs = _update(record_table, transaction_id, clause, from_, **values) | {"ReturnValues": "ALL_NEW"}
    try:
        image = persistently(lambda: ask(record_table, "UpdateItem", kwargs)).get("Attributes")
    except Refused as refused:
        image = refused.image
    # A missing record counts as aborted: see `resolution_of_intent`.
    return record_in(record_table.row(image), record_table) or TransactionRecord(
        transaction_id, TransactionStatus.ABORTED, by="expired"
    )


# Further rows of a transaction: where the intents are, what did not fit into them, the idempotency key
def put_row(record_table: RecordTable, row_id: str, content: Mapping[str, Any], *, expires: bool) -> None:
    """Store a further row of the transaction; `expires` if it only helps to find the intents."""
    item = extra_row(record_table, row_id, content)
    if expires:
        item[record_table.expires] = record_table.ends(record_table.keep.keep_rows_s)
    put_once(record_table, item, CONTENT)


def extra_row(record_table: RecordTable, row_id: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {**record_table.key(row_id), FORMAT_NAME: number(FORMAT), CONTENT: {"M": dict(content)}}


def once(record_table: RecordTable, row_id: str, transaction_id: str) -> dict[str, Any]:
    """Return the action of a transaction that stores its key: refused while the key is known, or after `abandon`."""
    content, ends = {"id": {"S": transaction_id}}, record_table.ends(record_table.keep.keep_keys_s)
    item = {**extra_row(record_table, row_id, content), record_table.expires: ends}
    asked = record_table.asked(protocol.CLAIM_KEY, now=record_table.ends(0), me={"S": transaction_id})
    return {"Put": {"Item": item, **asked}}


def abandon(record_table: RecordTable, row_id: str, transaction_ids: Sequence[str]) -> str | None:
    """Note in the row of a key that transactions were given up, unless one has stored the key: return its id.

    The row names all of them: a later transaction with the key passes, and none of these, however late.
    """
    now, ends = record_table.ends(0), record_table.ends(record_table.keep.keep_keys_s)
    asked = record_table.asked(protocol.ABANDON_KEY, me={"SS": list(transaction_ids)}, now=now, ends=ends)
    kwargs = {"Key": record_table.key(row_id), **asked}
    try:
        persistently(lambda: ask(record_table, "UpdateItem", kwargs))
    except Refused as refused:
        return _holder(record_table, record_table.row(refused.image))
    return None


def get_row(record_table: RecordTable, row_id: str, parse: Callable[[Mapping[str, Any]], _T]) -> _T | None:
    """Return what was stored in a further row of a transaction; `CorruptRow` if `parse` cannot read it."""
    image = image_of(record_table, row_id)
    return None if image is None else _content(record_table, image, parse)


def image_of(record_table: RecordTable, row_id: str) -> dict[str, Any] | None:
    return persistently(lambda: _image(record_table, row_id))


def _image(record_table: RecordTable, row_id: str) -> dict[str, Any] | None:
    kwargs = {"TableName": record_table.table, "Key": record_table.key(row_id), "ConsistentRead": True}
    return record_table.row(ask(record_table, "GetItem", kwargs).get("Item"))


def _content(record_table: RecordTable, image: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], _T]) -> _T:
    return record_table.named(image[ID]["S"]).read(image, CONTENT, lambda stored: parse(stored["M"]))


def key_holder(record_table: RecordTable, row_id: str) -> str | None:
    """Return the id of the transaction that stored a key, unless it has expired: DynamoDB may remove it days later.

    Raises:
        ConfigurationError: another program has stored an item of that name.
        CorruptRow: the row cannot be read.
    """
    return _holder(record_table, image_of(record_table, row_id))


def _holder(record_table: RecordTable, image: Mapping[str, Any] | None) -> str | None:
    if image is None or (ABANDONED in image and CONTENT not in image):
        return None
    check_own(record_table, image, CONTENT)

    ends_s = record_table.named(image[ID]["S"]).read(image, EXPIRES, lambda stored: int(stored["N"]))
    transaction_id = _content(record_table, image, lambda content: str(content["id"]["S"]))
    return None if ends_s <= runtime.current.time_ms() // 1000 else transaction_id


def delete_row(record_table: RecordTable, row_id: str) -> None:
    """Remove a further row once the transaction does not need it."""
    kwargs = {"Key": record_table.key(row_id), **record_table.asked(protocol.DELETE_ROW)}
    try:
        persistently(lambda: ask(record_table, "DeleteItem", kwargs))
    except Refused as refused:  # it is gone, or was never ours
        record_table.row(refused.image)


# Checks of what stored rows say before it is followed: other programs can write rows as well.


#: Of a row of changes, behind the id of its transaction; see `row_of_changes`.
_INDEX: Final = re.compile("[0-9]{5,9}")

#: So much of a stored name is shown in an error.
_SHOWN: Final = 255


def declared_record_table(row: LockRow, intent: WriteIntent) -> RecordTable:
    """Return the table of transactions that an intent names, if the item's model declares it.

    Raises:
        LockingError: the model declares another table. Any writer of the item could have put that name there, so it is
            not asked.
    """
    declared = row.transactions
    if declared is None or intent.table != declared:
        raise LockingError(
            f"{row.label} carries the intent of the transaction {intent.id[:_SHOWN]!r} in the table "
            f"{intent.table[:_SHOWN]!r}, and its model declares "
            f"{'no table of transactions' if declared is None else repr(declared)} in Meta.transaction_table. That "
            f"table was not asked, and the item was left as it is. If it is yours, declare it, or complete the "
            f"transaction with recover(). If not, find out who has written the item, and remove tx from its attribute "
            f"{row.attribute!r}."
        )
    model: Any = row.model
    return record_table_of(model.Meta.transaction_table)._replace(connection=row.connection)


def owner_of_changes(name: str) -> str | None:
    """Return the id of the transaction whose row of changes has that name; None for any other row."""
    owner, _, index = name.partition("!")
    return owner if "#" not in owner and _INDEX.fullmatch(index) else None


def check_row_of_changes(transaction_id: str, name: str) -> None:
    """Raise a `LockingError` for a name that is no row of the transaction: it could be the record of another one."""
    if owner_of_changes(name) != transaction_id:
        raise LockingError(
            f"the transaction {transaction_id[:_SHOWN]!r} is said to keep its changes in the row {name[:_SHOWN]!r}, "
            f"which is no row of its own. That row was neither read nor deleted. Find out who has written this."
        )


def check_place(record_table: RecordTable, transaction_id: str, table: str) -> None:
    """Refuse a table of items that is named as one of another account or Region than the table of transactions.

    Raises:
        LockingError: it is.
    """
    place, declared = table.rpartition("/")[0], record_table.table.rpartition("/")[0]
    if place != declared:  # of an ARN all but the name; of a name nothing
        raise LockingError(
            f"the transaction {transaction_id!r} is said to have items in the table {table[:_SHOWN]!r}, which is named "
            f"as one of another account or Region than {record_table.table!r}. That table was not asked. Find out who "
            f"has written this."
        )
