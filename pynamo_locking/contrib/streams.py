"""Finds writers who go around this package, in the records of DynamoDB Streams.

A record tells what an item was and what it is. An `Auditor` knows what a write of this package can do to a version, a
write id, a lock, an intent and the record of a transaction, and tells of each record that shows something else. It
needs streams with both images, ``NEW_AND_OLD_IMAGES``. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking import TransactionTable
from pynamo_locking._facade import (
    audited,
    inspection,
    invariants,
    keys,
    lock_record,
    logger,
    own_keys_of,
    recovery,
    transaction_record,
)
from pynamo_locking.contrib.messages import partial_batch
from pynamo_locking.exceptions import LockingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model

    from pynamo_locking._facade import Audited, Breach, LockState, WriteIntent


__all__ = ["Auditor", "Finding", "lambda_handler"]


#: A record of a stream, as a Lambda function or `boto3` gets it; an image of an item in it.
Record = Mapping[str, Any]
Image = dict[str, Any]

#: The attribute of a lock row in which people read when the lease ends; it changes with the lock.
_ATTRIBUTES_OF_LOCK_ROWS: Final = frozenset({lock_record.LEASE_ENDS})

#: So many seconds a clock may be ahead of the time that DynamoDB gives to a record.
_SKEW_S: Final = 60

#: Who removes what has expired, as a record says it.
_TTL: Final = "dynamodb.amazonaws.com"


@dataclass(frozen=True)
class Finding:
    """A change in a stream record that no write of this package makes.

    Attributes:
        table: the name of the table.
        key: the key of the item, by stored names, as text.
        kind: a stable word, see "find writers who go around".
        text: a sentence for people.
        before: what was stored, as far as it matters.
        after: what is stored since.
        sequence: the sequence number of the record in its stream.
        event: the id of the record.
    """

    table: str
    key: Mapping[str, str]
    kind: str
    text: str
    before: str
    after: str
    sequence: str
    event: str

    def __str__(self) -> str:
        """Return a line for a log."""
        key = ", ".join(f"{name}={value}" for name, value in self.key.items())
        was = f" (before: {self.before}; after: {self.after})" if self.before or self.after else ""
        return f"{self.table}({key}): {self.kind}: {self.text}{was}"


class Auditor:
    """Tells which records of a stream were not written by this package.

    For example, over the records of a Lambda event::

        auditor = Auditor([Account, Booking])
        for finding in auditor.audit(event["Records"]):
            print(finding)

    Thread-safe; it keeps nothing between two records.

    Args:
        models: whose items are checked. The tables that their ``Meta`` names, of locks and transactions, are known
            with them. Records of other tables are left out.
        reads_records: whether to read the record of a transaction whose intent was removed while the item stayed as it
            was. That is right for an aborted transaction only. Without it such a removal is not judged.

    Raises:
        ConfigurationError: a model does not say which table it is about.

    Cost: none; with `reads_records` one consistent read, and those that `TransactionTable` needs to show the record,
    for each such intent.
    """

    def __init__(self, models: Iterable[type[Model]], *, reads_records: bool = False) -> None:
        self._reads_records = reads_records
        self._by_table: dict[str, list[Audited]] = {}
        for model in inspection.with_tables(models):
            known = audited(model)
            self._by_table.setdefault(_name_of(known.table), []).append(known)

    def audit(self, records: Iterable[Record], *, table: str | None = None) -> list[Finding]:
        """Return what was found, in the order of the records.

        A record that cannot be read is a finding of the kind ``"unreadable"``.

        Args:
            records: as in a Lambda event, or as boto3's ``get_records`` returns them.
            table: of records that do not name their stream, as those of ``get_records``.
        """
        return [finding for record in records for finding in self.audit_record(record, table=table)]

    def audit_record(self, record: Record, *, table: str | None = None) -> list[Finding]:
        """Return what was found in one record; see `audit`."""
        name = table or _table_of(record)
        try:
            change = _Change.of(record)
            breaches = list(dict.fromkeys(self._breaches(change, self._by_table.get(_name_of(name), []))))
            key = {part: keys.text_of(*value.values()) for part, value in change.key.items()}
        except Exception as error:  # noqa: BLE001 - whatever a record holds, the others are checked
            logger.warning("a record of the stream of %s cannot be read: %r", name, error)
            key, breaches = {}, [invariants.Breach("unreadable", f"the record cannot be read: {error!r}")]
        sequence, event = str(_part(record, "dynamodb").get("SequenceNumber", "")), str(record.get("eventID", ""))
        return [Finding(_name_of(name), key, *each, sequence, event) for each in breaches]

    def _breaches(self, change: _Change, models: list[Audited]) -> Iterator[Breach]:
        ours = [each for each in models if each.is_own and own_keys_of(each.model).name_in(change.key) is not None]
        locks = {each.lock for each in models if each.lock is not None}
        for known in ours or [each for each in models if not each.is_own]:
            if issubclass(known.model, TransactionTable):
                yield from _of_transactions(known, change)
            elif change.old is not None and change.new is not None:
                yield from self._of_item(known, _Item(change.old, change.new, known, locks, change.at_s))
            elif change.old is not None and not change.is_by_ttl:
                yield from _of_removal(lock_record.state_in(change.old, known.lock or ""))

    def _of_item(self, known: Audited, item: _Item) -> Iterator[Breach]:
        if item.begins_again:
            return
        if known.version is not None and not known.is_own:
            before, after = known.versions_in(item.old), known.versions_in(item.new)
            has_ids = known.write_id is not None
            yield from invariants.of_versions(before, after, has_ids=has_ids, is_changed=item.is_changed)
        if known.lock is None:
            return
        before_lock, after_lock = item.states()
        yield from invariants.of_lock(before_lock, after_lock)
        if before_lock.intent is not None:
            yield from self._of_intent(before_lock.intent, after_lock, item, known)
        elif item.is_changed and not known.is_own and invariants.is_written_past(before_lock, after_lock):
            yield invariants.Breach("lock_ignored", "values were written past the holder of the lock")

    def _of_intent(self, intent: WriteIntent, after: LockState, item: _Item, known: Audited) -> Iterator[Breach]:
        if after.intent is not None or after.unreadable:
            if item.is_changed and after.intent == intent:
                yield invariants.Breach("intent_ignored", f"values were written past the intent of {intent.id}")
        elif item.is_finished(intent):
            return
        elif item.is_changed:
            yield invariants.Breach(
                "intent_lost", f"the intent of {intent.id} was removed, and its values were not stored"
            )
        else:
            yield from self._of_drop(intent, known)

    def _of_drop(self, intent: WriteIntent, known: Audited) -> Iterator[Breach]:
        table = getattr(known.model.Meta, "transaction_table", None)
        if not self._reads_records or table is None:
            return
        try:
            record = recovery.shown(table, intent.id)
        except LockingError as error:
            logger.warning(
                "the record of %s cannot be read, so the removal of its intent is not judged: %s", intent.id, error
            )
            return
        if record is not None and record["state"] != "aborted":
            state = record["state"]
            yield invariants.Breach("intent_lost", f"the intent of {intent.id}, which is {state}, was removed")


def lambda_handler(
    auditor: Auditor, on_finding: Callable[[Finding], object] | None = None
) -> Callable[[Mapping[str, Any], object], dict[str, Any]]:
    """Return a Lambda handler for an event source mapping of a stream.

    For example::

        handler = lambda_handler(Auditor([Account]), on_finding=alarm)

    Each finding is logged as a warning and given to `on_finding`. A record that cannot be read does not stop the
    others. If `on_finding` raises an error, its record has failed, see `pynamo_locking.contrib.messages.partial_batch`.

    Args:
        auditor: what checks the records.
        on_finding: a plain function, called with each `Finding`.

    Returns:
        The handler. It returns ``{"batchItemFailures": [...]}``; an event without records raises `InvalidInput`.
    """

    def report(record: Record) -> None:
        for finding in auditor.audit_record(record):
            logger.warning("written by another program: %s", finding)
            if on_finding is not None:
                on_finding(finding)

    def handle(event: Mapping[str, Any], _context: object = None) -> dict[str, Any]:
        return partial_batch(event, report)

    return handle


@dataclass(frozen=True)
class _Change:
    """What a record says."""

    key: Image = field(default_factory=dict)
    old: Image | None = None
    new: Image | None = None
    at_s: float = 0.0
    is_by_ttl: bool = False

    @classmethod
    def of(cls, record: Record) -> _Change:
        told = record["dynamodb"]
        if told.get("StreamViewType", "NEW_AND_OLD_IMAGES") != "NEW_AND_OLD_IMAGES":
            raise ValueError(f"the stream has {told['StreamViewType']}, and NEW_AND_OLD_IMAGES is needed")
        at: Any = told.get("ApproximateCreationDateTime", 0)
        at_s = float(at.timestamp() if hasattr(at, "timestamp") else at)
        is_by_ttl = (record.get("userIdentity") or {}).get("principalId") == _TTL
        is_insert, is_removal = record["eventName"] == "INSERT", record["eventName"] == "REMOVE"
        old, new = None if is_insert else told["OldImage"], None if is_removal else told["NewImage"]
        return cls(told["Keys"], old, new, at_s, is_by_ttl)


@dataclass(frozen=True)
class _Item:
    """An item that still exists, before and after one write."""

    old: Image
    new: Image
    known: Audited
    locks: set[str]
    at_s: float

    @property
    def is_changed(self) -> bool:
        """Whether any value has changed, but for version, write id and lock."""
        return not _same(self._values(self.old), self._values(self.new))

    @property
    def begins_again(self) -> bool:
        """Whether the item had expired, so that a new one may have taken its place."""
        value = self.old.get(self.known.expires or "", {}).get("N")
        return self.known.expires is not None and value is not None and float(value) <= self.at_s + _SKEW_S

    def states(self) -> tuple[LockState, LockState]:
        name = self.known.lock or ""
        return lock_record.state_in(self.old, name), lock_record.state_in(self.new, name)

    def is_finished(self, intent: WriteIntent) -> bool:
        """Tell whether the item has become what an intent says, as far as the intent says it."""
        if intent.op == "keep":
            return True  # the decision itself writes it
        old, new = _without(self.old, self.locks), _without(self.new, self.locks)
        if intent.changes_row:
            return not _same(old, new)
        expected = {name: value for name, value in old.items() if name not in intent.remove} | dict(intent.set)
        return intent.op == "save" and _same(expected, new)

    def _values(self, image: Image) -> Image:
        known = self.known
        beside = {known.ttl, *_ATTRIBUTES_OF_LOCK_ROWS} if known.is_own else set[Any]()
        return _without(image, {*self.locks, known.version, known.write_id, *beside})


def _without(image: Image, names: set[Any]) -> Image:
    return {name: value for name, value in image.items() if name not in names}


def _of_removal(before: LockState) -> Iterator[Breach]:
    intent = before.intent
    if intent is not None and intent.op == "save" and not intent.is_placeholder:
        yield invariants.Breach("intent_lost", f"the item was deleted with the intent of {intent.id}")


def _of_transactions(known: Audited, change: _Change) -> Iterator[Breach]:
    table = transaction_record.record_table_of(known.model)
    old = None if change.old is None else table.row(change.old)
    before = transaction_record.record_in(old, table)
    if before is None or old is None:
        return
    after = None if change.new is None else transaction_record.record_in(table.row(change.new), table)
    if after is not None:
        yield from invariants.of_record(before.state, after.state, (before.heartbeats, after.heartbeats))
    elif change.new is not None:
        yield invariants.Breach("record_changed", "the record of a transaction was removed from its row")
    elif not change.is_by_ttl and not (before.state.is_final and transaction_record.EXPIRES in old):
        text = f"the record of a transaction that is {before.state.value} was deleted"
        yield invariants.Breach("record_lost", text)


def _same(one: Any, other: Any) -> bool:
    """Tell whether two stored values are equal; the members of sets come in any order."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return False
        return all(
            sorted(value) == sorted(other[name]) if name in {"SS", "NS", "BS"} else _same(value, other[name])
            for name, value in one.items()
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _table_of(record: Record) -> str:
    """Return the table whose stream a record is of: ``...:table/NAME/stream/...``."""
    return str(record.get("eventSourceARN", "")).partition(":table/")[2].partition("/stream/")[0]


def _name_of(table: str) -> str:
    """Return the name of a table that may be given as an ARN."""
    return table.rpartition("/")[2]


def _part(record: Record, name: str) -> Mapping[str, Any]:
    part = record.get(name)
    return part if isinstance(part, Mapping) else {}
