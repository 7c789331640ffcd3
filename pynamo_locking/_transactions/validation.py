"""Validation: the items that a transaction has read are unchanged when it commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.transactions import chunks, shows_committed
from pynamo_locking._core.values import item_size
from pynamo_locking._io import transaction_record
from pynamo_locking._io.batch_requests import TooLarge, transact_get
from pynamo_locking._pynamodb import connection_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamo_locking._core.lock_queue import WriteIntent
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._io.transaction_record import RecordTable
    from pynamo_locking._io.write_intents import Resolver
    from pynamo_locking._transactions.item import TransactionItem


def validate(
    items: Sequence[TransactionItem],
    resolver: Resolver,
    pulse: Callable[[], None] = lambda: None,
    *,
    is_snapshot: bool = False,
) -> None:
    """Check that all items are what they were when they were read.

    The absent items are checked together, in the first read: an item may come and go, but a write id never comes again.
    So an item that was read before the first read, and is unchanged after it, was also unchanged at that moment.

    The check waits for an undecided transaction that has an intent on an item. A snapshot does not wait if the read
    that shows the intent also shows that its record is pending: a later decision changes nothing at the moment of the
    snapshot, which is the first read. An intent in a later read is pending then, so it was not committed at that moment
    either. No other committed intent can have been there: finishing it would have changed the item since. A placeholder
    counts as absent, and is in the first read, with its record.

    Only a transaction that writes nothing may ignore pending intents: two writers that ignored each other's intents
    would each be consistent with the past, and together produce write skew. `shows_committed` names intents not to
    ignore.

    `pulse` is called before each read, and may raise. A snapshot writes nothing.

    Raises:
        StaleVersion, Conflict: an item has changed.
        TransactionConflict: other transactions kept the items busy.
        ConfigurationError: more than a hundred items were absent.
        StillPending: a live transaction has an intent on one of them.
    """
    absent = [item for item in items if item.is_absent]
    if len(absent) > dynamodb.MOST_ACTIONS:
        raise ConfigurationError(
            f"the transaction relies on {len(absent)} items that do not exist, and DynamoDB can check "
            f"{dynamodb.MOST_ACTIONS} at once: read fewer of them, or use isolation='read_committed'."
        )
    ordered = in_order(items)
    parts = [[ordered[i] for i in chunk] for chunk in chunks([size_of_item(item) for item in ordered])]
    while parts:
        pulse()
        left = _Part(parts.pop(0), resolver, is_snapshot=is_snapshot).validate()
        if left:
            parts.insert(0, left)


def in_order(items: Sequence[TransactionItem]) -> list[TransactionItem]:
    """Return the items in the order in which they are checked: the absent ones first."""
    # R7: an absent item leaves no trace when it comes and goes between two reads.
    return sorted(items, key=lambda item: not item.is_absent)


class _Part:
    """Items that one read checks: first the absent ones. A snapshot ignores intents whose records are pending."""

    def __init__(self, items: list[TransactionItem], resolver: Resolver, *, is_snapshot: bool) -> None:
        self._items = items
        self._resolver = resolver
        self._is_snapshot = is_snapshot
        self._absent = sum(item.is_absent for item in items)
        self._left: list[TransactionItem] = []
        self._intents = [_intent_in(item, item.stored) for item in items]

    def validate(self) -> list[TransactionItem]:
        """Check the items; return those that were left out to make room for records."""
        while not self._is_valid():
            pass
        return self._left

    def _is_valid(self) -> bool:
        """Read and check the items; return False if the read must be repeated, since intents were in the way."""
        intents = self._intents_to_ignore()
        try:
            found = read_together(self._items, intents)
        except TooLarge as error:
            self._halve(error)
            return False
        count, in_the_way = len(self._items), []
        tables = [_record_table(self._items, intent) for intent in intents]
        of_intents = zip(intents, tables, found[count:], strict=True)
        records = {
            intent.id: transaction_record.record_in(table.row(image), table) for intent, table, image in of_intents
        }
        for i, (item, image) in enumerate(zip(self._items, found[:count], strict=True)):
            intent = self._intents[i] = _intent_in(item, image)
            is_shown = intent is None or (intent.id in records and shows_committed(records[intent.id]))
            if not is_shown and item.row is not None and intent is not None:
                in_the_way.append((item.row, intent))
                continue
            seen = None if intent is not None and intent.is_placeholder else image
            if not item.holds(seen):
                raise item.refused(seen)
        self._resolver.resolve(*(one for one in in_the_way if one[1].id in records or not self._is_snapshot))
        return not in_the_way

    def _intents_to_ignore(self) -> list[WriteIntent]:
        """Return the intents whose records the read includes; leave out items that do not fit then."""
        if not self._is_snapshot:
            return []
        intents: dict[str, WriteIntent] = {}
        for i, intent in enumerate(self._intents):
            more = intents if intent is None else intents | {intent.id: intent}
            if i + 1 + len(more) <= dynamodb.MOST_ACTIONS:
                intents = more
            elif i >= self._absent:
                self._leave_from(i)
                break
            else:  # the absent items must stay in one read, so it waits for their intents
                self._is_snapshot = False
                self._leave_from(self._absent)
                return []
        return list(intents.values())

    def _halve(self, error: TooLarge) -> None:
        """Leave out half of the items, since intents have made them too large for one read."""
        half = max(self._absent, len(self._items) // 2)
        if not 0 < half < len(self._items):
            raise error.error from error
        self._leave_from(half)

    def _leave_from(self, i: int) -> None:
        self._left = self._items[i:] + self._left
        del self._items[i:], self._intents[i:]


def _intent_in(item: TransactionItem, image: Image | None) -> WriteIntent | None:
    row = item.row
    intent = None if row is None else row.state(image).intent
    if row is not None and intent is not None:
        # It refuses an intent that names another table, before the table is read.
        transaction_record.declared_record_table(row, intent)
    return intent


def size_of_item(item: TransactionItem) -> int:
    """Return the approximate size of an item in bytes."""
    if item.is_absent:
        return 0
    stored = item.base if isinstance(item.base, dict) else item.instance.serialize(null_check=False)
    return item_size(stored)


def _record_table(items: Sequence[TransactionItem], intent: WriteIntent) -> RecordTable:
    """Return the table of the record of an intent, which one of the items carries."""
    rows = (item.row for item in items)
    return transaction_record.declared_record_table(
        next(row for row in rows if row is not None and row.transactions == intent.table), intent
    )


def read_together(items: Sequence[TransactionItem], intents: Sequence[WriteIntent] = ()) -> list[Image | None]:
    """Return stored items and, behind them, the records of intents, at most a hundred, as they were at one moment."""
    gets = [{"Get": {"TableName": item.table, "Key": item.key}} for item in items]
    connection = connection_of(items[0].model).connection
    records = [(_record_table(items, intent), intent.id) for intent in intents]
    gets += [{"Get": {"TableName": table.table, "Key": table.key(id_)}} for table, id_ in records]
    # R5: a plain read may show an item as it was before a decided transaction.
    return transact_get(connection, gets)
