"""All requests for a transaction's record and the rows beside it, and checks of what they say."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lease import IDLE_TTL_S
from pynamo_locking._core.row_keys import OwnKeys, shown_owner
from pynamo_locking._core.transactions import KEEP, RetentionTimes, TransactionRecord, TransactionStatus
from pynamo_locking._io import client, protocol, responses, runtime, stored_rows
from pynamo_locking._io.client import Refused, persistently
from pynamo_locking._io.model_doors import own_keys_of
from pynamo_locking._io.responses import foreign_row_error, of_transactions
from pynamo_locking._io.stored_rows import FORMAT, FORMAT_NAME, number
from pynamo_locking._pynamodb import connection_of, ttl_attribute_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

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

#: What of them is a number.
NUMBERS: Final = (BEAT, LEASE, UNTIL, ITEMS, ROWS)

_ALONE: Final = OwnKeys(ID)

#: What to do about a broken header.
_ADVICE: Final = (
    "Restore it, with the state that it had, or let TransactionTable.repair() or `pynamo-locking tx repair` make it "
    "sound."
)


@dataclass(frozen=True)
class RecordTable:
    connection: Connection
    table: str
    keep: RetentionTimes = KEEP
    keys: OwnKeys = _ALONE
    expires: str = EXPIRES

    @property
    def place(self) -> str:
        """The table, and the prefix of its rows if it has other items: what marks name."""
        return self.keys.place(self.table)

    def ends(self, keep_s: int) -> dict[str, Any]:
        """Return the stored time of expiry of a row that is kept for so long."""
        return number(runtime.current.time_ms() // 1000 + keep_s)

    def key(self, row_id: str) -> dict[str, Any]:
        if self.keys.is_shared and len(row_id.encode()) > self.keys.longest_name:
            raise ConfigurationError(
                f"a row of {self.place!r} has a name of at most {self.keys.longest_name} bytes, beside the prefix: "
                f"{row_id[:40]!r}... is longer."
            )
        return self.keys.of(row_id)

    def names(self) -> dict[str, Any]:
        """Return the names that the requests of `protocol` take from the table."""
        return {"#id": self.keys.hash_name, "#expires": self.expires}

    def asked(self, clause: Clause, **values: Any) -> dict[str, Any]:
        """Return the table and the expressions of a request."""
        given = {f":{name}": value for name, value in values.items()}
        return {"TableName": self.table, **protocol.alone(clause, self.names() | given)}

    def row(self, image: Image | None) -> Image | None:
        """Return the image of a row as in a table of its own; None if it is none of ours."""
        return None if image is None else self.keys.alone(image, ID, {self.expires: EXPIRES})


def record_table_of(table: Any) -> RecordTable:
    """Return where to send the requests of a `TransactionTable`."""
    connection, keep, ttl = connection_of(table), RetentionTimes.of(table.Meta), ttl_attribute_of(table).attr_name
    return RecordTable(connection.connection, connection.table_name, keep, own_keys_of(table), ttl)


def ask(header_table: RecordTable, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        return client.ask(header_table.connection, operation, kwargs)
    except Refused as refused:
        refuse_newer(header_table, refused.image)
        raise
    except responses.BOTOCORE_EXCEPTIONS as error:
        raise of_transactions(header_table.table, header_table.key(""), error) from error


def begin(header_table: RecordTable, header: TransactionRecord) -> None:
    """Create a pending header. It must be acknowledged before any mark names it, or the mark would seem an orphan."""
    put_once(header_table, begun(header_table, header), PRIORITY)


def begun(header_table: RecordTable, header: TransactionRecord) -> dict[str, Any]:
    """Return a pending header as it is stored."""
    return {
        **_told(header_table, header),
        **{name: number(getattr(header, name)) for name in NUMBERS},
        EARLY: {"BOOL": header.is_early},
    }


def _told(header_table: RecordTable, header: TransactionRecord) -> dict[str, Any]:
    return {
        **header_table.key(header.id),
        FORMAT_NAME: number(FORMAT),
        STATE: {"S": header.state.value},
        PRIORITY: {"S": header.priority},
        OWNER: {"S": header.owner},
    }


def record(header_table: RecordTable, header: TransactionRecord) -> dict[str, Any]:
    """Return the action that records a native transaction by a final header, and is refused by that of `give_up`."""
    item = {**_told(header_table, header), header_table.expires: _final_expiry(header_table)}
    return {"Put": {"Item": item, **header_table.asked(protocol.NEW_ROW)}}


def give_up(header_table: RecordTable, header: TransactionRecord) -> TransactionRecord:
    """Store an aborted header in the place of a record, unless that is stored; return what is stored then."""
    over = {BY: {"S": header.by}, CLEAN: {"BOOL": True}, header_table.expires: _final_expiry(header_table)}
    item = {**_told(header_table, header), **over}
    return record_in(put_once(header_table, item, PRIORITY), header_table) or header


def put_once(header_table: RecordTable, item: Mapping[str, Any], known_by: str) -> Image | None:
    """Store a row whose name is never used twice; return the row that is already there, such as an earlier copy.

    Raises:
        ConfigurationError: that row lacks the attribute `known_by`, so another program has stored it.
    """
    kwargs = {"Item": item, **header_table.asked(protocol.NEW_ROW)}
    try:
        persistently(lambda: ask(header_table, "PutItem", kwargs))
    except Refused as refused:
        check_own(header_table, refused.image or {}, known_by)
        return header_table.row(refused.image)
    return None


def check_own(header_table: RecordTable, image: Mapping[str, Any], known_by: str) -> None:
    if known_by not in image:
        name = image.get(header_table.keys.hash_name, {}).get("S")
        raise foreign_row_error(
            f"nothing can be kept in the row {name!r}", header_table.table, f"no attribute {known_by!r}"
        )


def refuse_newer(header_table: RecordTable | None, image: Mapping[str, Any] | None) -> None:
    """Refuse the image of a row of a newer format (`UnknownFormat`)."""
    table, names = ("", {ID}) if header_table is None else (header_table.table, {ID, *header_table.key("")})
    key = {name: value for name, value in (image or {}).items() if name in names}
    what = f"the row {', '.join(value['S'] for value in key.values())!r} of {table!r}"
    stored_rows.refuse_newer(image, what, table=table, key=key)


def read(header_table: RecordTable, header_id: str) -> TransactionRecord | None:
    """Read a header, consistently. None if there is none (any more)."""
    return record_in(_image(header_table, header_id), header_table)


def record_in(image: Mapping[str, Any] | None, header_table: RecordTable | None = None) -> TransactionRecord | None:
    """Return the header in the image of a row of that table (see `HeaderTable.row`); None if there is none.

    Raises:
        UnknownFormat: a newer release has stored it.
        CorruptRow: its state is unknown, or a number is not whole. Other attributes of a wrong type count as missing.
    """
    refuse_newer(header_table, image)
    if image is None or (STATE not in image and PRIORITY not in image):
        return None
    name, table, key = image[ID]["S"], "", {ID: image[ID]}
    if header_table is not None:
        table, key = header_table.table, header_table.key(name)
    return stored_rows.read(
        _header, image, f"the row of the transaction {name!r}", table=table, key=key, advice=_ADVICE
    )


def whole(image: Mapping[str, Any], name: str) -> int:
    return int(image.get(name, {}).get("N", 0))


def _header(image: Mapping[str, Any]) -> TransactionRecord:
    def text(name: str) -> str:
        return str(image.get(name, {}).get("S", ""))

    return TransactionRecord(
        id=text(ID),
        state=TransactionStatus(text(STATE)),
        priority=text(PRIORITY),
        owner=shown_owner(text(OWNER)),
        by=text(BY),
        is_early=image.get(EARLY, {}).get("BOOL") is not False,  # a missing attribute leaves it open
        **{name: whole(image, name) for name in NUMBERS},
    )


def renew(header_table: RecordTable, header: TransactionRecord, beat: int) -> TransactionRecord:
    """Renew the lease of a pending transaction; return what is stored then.

    Beats only grow, so a late copy cannot take a newer renewal back. Nothing changes if the transaction is no longer
    pending, or has a newer beat.
    """
    until_ms = number(runtime.current.time_ms() + header.lease_ms)
    return _change(
        header_table, header.id, protocol.RENEW_RECORD, TransactionStatus.PENDING, beat=number(beat), until_ms=until_ms
    )


def abort(header_table: RecordTable, header_id: str, by: str, *, beat: int | None = None) -> TransactionRecord:
    """Abort a pending transaction; return what is stored then, which may be that it is committed.

    Nothing changes if there is a newer beat than `beat`; None ignores the beat.
    """
    clause = protocol.ABORT if beat is None else protocol.ABORT + protocol.NOT_RENEWED
    # Its marks are not dropped yet, so it stays as long as the rows that help to find them.
    ends, state = header_table.ends(header_table.keep.keep_rows_s), {"S": TransactionStatus.ABORTED.value}
    values: dict[str, Any] = {"state": state, "by": {"S": by}, "expires": ends, "seen": number(beat or 0)}
    return _change(header_table, header_id, clause, TransactionStatus.PENDING, **values)


def finish(header_table: RecordTable, header_id: str) -> TransactionRecord:
    """Note that nothing is left to do; only when every marked item is known to be finished."""
    values = {"state": {"S": TransactionStatus.FINISHED.value}, "expires": _final_expiry(header_table)}
    return _change(
        header_table, header_id, protocol.DECIDE + protocol.SET_RECORD_EXPIRY, TransactionStatus.COMMITTED, **values
    )


def clean(header_table: RecordTable, header_id: str, *, is_certain: bool) -> TransactionRecord:
    """Note that no mark of an aborted transaction is left, so that no sweep looks for one.

    `is_certain` if all requests for marks were answered, which only their sender knows. Otherwise a mark may still
    arrive, and nothing changes until a day after the abort.
    """
    clause = protocol.CLEAN if is_certain else protocol.CLEAN + protocol.ROW_EXPIRED
    a_day_ago = header_table.ends(header_table.keep.keep_rows_s - IDLE_TTL_S)
    values: dict[str, Any] = {"clean": {"BOOL": True}, "expires": _final_expiry(header_table), "old": a_day_ago}
    return _change(header_table, header_id, clause, TransactionStatus.ABORTED, **values)


def decision(header_table: RecordTable, header_id: str, to: TransactionStatus) -> dict[str, Any]:
    """Return the action of the native transaction that decides."""
    clause = protocol.DECIDE + protocol.SET_RECORD_EXPIRY if to.is_final else protocol.DECIDE
    values = {"state": {"S": to.value}, "expires": _final_expiry(header_table)}
    return {"Update": _update(header_table, header_id, clause, TransactionStatus.PENDING, **values)}


def still_pending(header_table: RecordTable, header_id: str) -> dict[str, Any]:
    """Return the action of a native transaction that changes nothing, and is refused after the decision.

    It is an update, since a ConditionCheck needs a permission that no other request for headers needs.
    """
    # R8: a placeholder is created only in one transaction with this.
    pending = {"S": TransactionStatus.PENDING.value}
    return {"Update": _update(header_table, header_id, protocol.DECIDE, TransactionStatus.PENDING, state=pending)}


def _final_expiry(header_table: RecordTable) -> dict[str, Any]:
    # R10: longer than any request can still be on its way.
    return header_table.ends(header_table.keep.keep_finished_s)


def _update(
    header_table: RecordTable, header_id: str, clause: Clause, from_: TransactionStatus, **values: Any
) -> dict[str, Any]:
    asked = header_table.asked(clause, **values, **{"from": {"S": from_.value}})
    return {"Key": header_table.key(header_id), **asked}


def _change(
    header_table: RecordTable, header_id: str, clause: Clause, from_: TransactionStatus, **values: Any
) -> TransactionRecord:
    kwargs = _update(header_table, header_id, clause, from_, **values) | {"ReturnValues": "ALL_NEW"}
    try:
        image = persistently(lambda: ask(header_table, "UpdateItem", kwargs)).get("Attributes")
    except Refused as refused:
        image = refused.image
    # A missing header counts as aborted: see `fate`.
    return record_in(header_table.row(image), header_table) or TransactionRecord(
        header_id, TransactionStatus.ABORTED, by="expired"
    )


# Rows beside a header: where the marks are, what did not fit into them, the idempotency key
def put_row(header_table: RecordTable, row_id: str, content: Mapping[str, Any], *, expires: bool) -> None:
    """Store a row beside the header; `expires` if it only helps to find the marks."""
    item = row_beside(header_table, row_id, content)
    if expires:
        item[header_table.expires] = header_table.ends(header_table.keep.keep_rows_s)
    put_once(header_table, item, CONTENT)


def row_beside(header_table: RecordTable, row_id: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row beside the header as it is stored."""
    return {**header_table.key(row_id), FORMAT_NAME: number(FORMAT), CONTENT: {"M": dict(content)}}


def once(header_table: RecordTable, row_id: str, header_id: str) -> dict[str, Any]:
    """Return the action of a transaction that stores its key: refused while the key is known, or after `abandon`."""
    content, ends = {"id": {"S": header_id}}, header_table.ends(header_table.keep.keep_keys_s)
    item = {**row_beside(header_table, row_id, content), header_table.expires: ends}
    asked = header_table.asked(protocol.CLAIM_KEY, now=header_table.ends(0), me={"S": header_id})
    return {"Put": {"Item": item, **asked}}


def abandon(header_table: RecordTable, row_id: str, header_ids: Sequence[str]) -> str | None:
    """Note in the row of a key that transactions were given up, unless one has stored the key: return its id.

    The row names all of them: a later transaction with the key passes, and none of these, however late.
    """
    now, ends = header_table.ends(0), header_table.ends(header_table.keep.keep_keys_s)
    asked = header_table.asked(protocol.ABANDON_KEY, me={"SS": list(header_ids)}, now=now, ends=ends)
    kwargs = {"Key": header_table.key(row_id), **asked}
    try:
        persistently(lambda: ask(header_table, "UpdateItem", kwargs))
    except Refused as refused:
        return _holder(header_table, header_table.row(refused.image))
    return None


def get_row(header_table: RecordTable, row_id: str, parse: Callable[[Mapping[str, Any]], _T]) -> _T | None:
    """Return what was stored beside a header.

    Raises:
        CorruptRow: `parse` cannot read it.
    """
    image = image_of(header_table, row_id)
    return None if image is None else read_row(header_table, image, parse)


def image_of(header_table: RecordTable, row_id: str) -> dict[str, Any] | None:
    """Return a row as it is stored."""
    return persistently(lambda: _image(header_table, row_id))


def read_row(header_table: RecordTable, image: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], _T]) -> _T:
    """As `get_row`, of an image of the row."""
    return _read(header_table, image[ID]["S"], lambda row: parse(row[CONTENT]["M"]), image)


def _image(header_table: RecordTable, row_id: str) -> dict[str, Any] | None:
    kwargs = {"TableName": header_table.table, "Key": header_table.key(row_id), "ConsistentRead": True}
    return header_table.row(ask(header_table, "GetItem", kwargs).get("Item"))


def _read(
    header_table: RecordTable, row_id: str, parse: Callable[[Mapping[str, Any]], _T], image: Mapping[str, Any]
) -> _T:
    what, advice = f"the row {row_id!r} of {header_table.table!r}", "Restore it, or find out who has written it."
    return stored_rows.read(parse, image, what, table=header_table.table, key=header_table.key(row_id), advice=advice)


def key_holder(header_table: RecordTable, row_id: str) -> str | None:
    """Return the id of the transaction that stored a key, unless it has expired: DynamoDB may remove it days later.

    Raises:
        ConfigurationError: another program has stored an item of that name.
        CorruptRow: the row cannot be read.
    """
    return _holder(header_table, image_of(header_table, row_id))


def _holder(header_table: RecordTable, image: Mapping[str, Any] | None) -> str | None:
    refuse_newer(header_table, image)
    if image is None or (ABANDONED in image and CONTENT not in image):
        return None
    check_own(header_table, image, CONTENT)

    def parse(row: Mapping[str, Any]) -> tuple[int, str]:
        return int(row[EXPIRES]["N"]), str(row[CONTENT]["M"]["id"]["S"])

    ends_s, header_id = _read(header_table, image[ID]["S"], parse, image)
    return None if ends_s <= runtime.current.time_ms() // 1000 else header_id


def replace_row(
    header_table: RecordTable, old: Mapping[str, Any], changes: Mapping[str, Any], seen: Iterable[str]
) -> None:
    """Change attributes of a row, if the attributes `seen` are as in the image `old`.

    Raises:
        Refused: they are not, or this is a second copy.
    """
    seen, changes = {*seen, FORMAT_NAME}, {**changes, FORMAT_NAME: number(FORMAT)}
    stored = {EXPIRES: header_table.expires, ID: header_table.keys.hash_name}
    clause = protocol.change_row(tuple(sorted(seen & old.keys())), tuple(sorted(seen - old.keys())), tuple(changes))
    given = {f"#{name}": stored.get(name, name) for name in {*seen, *changes}}
    given |= {f":{name}": value for name, value in changes.items()}
    given |= {f":old_{name}": old[name] for name in seen if name in old}
    kwargs = {"TableName": header_table.table, "Key": header_table.key(old[ID]["S"]), **protocol.alone(clause, given)}
    persistently(lambda: ask(header_table, "UpdateItem", kwargs))


def delete_row(header_table: RecordTable, row_id: str) -> None:
    """Remove a row beside a header once the transaction does not need it."""
    kwargs = {"Key": header_table.key(row_id), **header_table.asked(protocol.DELETE_ROW)}
    with contextlib.suppress(Refused):  # it is gone, or was never ours
        persistently(lambda: ask(header_table, "DeleteItem", kwargs))


# Checks of what stored rows say before it is followed: other programs can write rows as well.


#: Of a row of changes, behind the id of its transaction; see `row_of_changes`.
_INDEX: Final = re.compile("[0-9]{5,9}")

#: So much of a stored name is shown in an error.
_SHOWN: Final = 255


def declared_record_table(row: LockRow, mark: WriteIntent) -> RecordTable:
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
    return replace(record_table_of(model.Meta.transaction_table), connection=row.connection)


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


def check_place(header_table: RecordTable, header_id: str, table: str) -> None:
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
