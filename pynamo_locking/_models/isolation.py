"""The isolation levels of transactions, and their reads of committed items.

An item with the intent of a transaction is judged by the record of that transaction: if it is committed, the values of
the intent are applied and shown; if it is pending, the read waits, or shows the item's values; if it is aborted or
unknown, the intent is dropped. A record that is pending is believed only for an intent that was read before it, so the
records are forgotten before each later read. A snapshot ignores a pending intent only as R13 allows.

Queries read pages that grow, so a limit costs no read of a whole table. Rejected: a filter that leaves items with
intents out, and one read more for each of them, which misses rows that come meanwhile.
"""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from pynamodb.exceptions import GetError, TransactWriteError
from pynamodb.pagination import PageIterator, ResultIterator

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.transactions import IntentResolution, resolution_of_intent, shows_committed
from pynamo_locking._io import client, lock_record, responses
from pynamo_locking._io.batch_requests import get_batch
from pynamo_locking._io.model_doors import lock_attribute_of, lock_row_of_key
from pynamo_locking._io.stored_rows import Image
from pynamo_locking._io.write_intents import Resolver, conflicts
from pynamo_locking._items import versions
from pynamo_locking._items.keys import ItemKey
from pynamo_locking._pynamodb import connection_of, serialize_key
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._core.lock_queue import WriteIntent
    from pynamo_locking._core.transactions import TransactionRecord
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._models.attributes import PlacedMixin


# Pages of queries and scans that grow, so that what is read is bounded by what is returned.


_T = TypeVar("_T")

#: More rows than DynamoDB returns in one page, which has 1 MB.
_MOST_ROWS: Final = 1 << 20


class _Growing:
    """The pages of PynamoDB, one by one, of which each is at most twice as large as the one before."""

    def __init__(self, pages: PageIterator[Any]) -> None:
        self._pages = pages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pages, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        page = next(self._pages)
        if self._pages.page_size is not None:
            self._pages.page_size = min(2 * self._pages.page_size, _MOST_ROWS)
        return page


def growing(found: ResultIterator[_T]) -> ResultIterator[_T]:
    """Let the pages of a query grow. The size of the first page is that of its `page_size`."""
    found.page_iter = cast("PageIterator[Any]", _Growing(found.page_iter))
    return found


def stored_pages(
    model: type[PlacedMixin], hash_key: Any, *, grows: bool, rate_limit: float | None = None, **how: Any
) -> Iterator[list[Image]]:
    """Query the stored items of a hash key consistently, page by page, without the filters of models."""
    operation, serialized = connection_of(model).query, serialize_key(model, hash_key)[0]
    pages: PageIterator[Any] = PageIterator(operation, (serialized,), {"consistent_read": True, **how}, rate_limit)
    return (page["Items"] for page in (_Growing(pages) if grows else pages))


def stored_rows(model: type[PlacedMixin], at_most: int) -> list[Image]:
    """Scan the stored items of a table consistently; refuse more than so many, of which one more is read at most."""
    pages: PageIterator[Any] = PageIterator(
        connection_of(model).scan, (), {"consistent_read": True, "limit": at_most + 1}
    )
    rows = list[Image]()
    for page in pages:
        rows += page["Items"]
        pages.page_size = at_most + 1 - len(rows)
        if len(rows) > at_most:
            raise ConfigurationError(
                f"{model.Meta.table_name} has more than at_most={at_most} items, and a scan in a transaction relies on "
                f"each of them: query a hash key of it, or scan outside, and get() what matters."
            )
    return rows


# The isolation levels, and reads of items that transactions may be about to change.


class Level(NamedTuple):
    """What a transaction of an isolation level does.

    Attributes:
        waits: its reads wait for undecided transactions. Otherwise they show what was committed before those; if the
            level `checks_reads`, only where `validate` can do so too.
        checks_reads: the commit checks all that was read, not only what is written.
        may_write: it may write.
    """

    waits: bool
    checks_reads: bool
    may_write: bool


SERIALIZABLE: Final = Level(waits=True, checks_reads=True, may_write=True)
SNAPSHOT: Final = Level(waits=False, checks_reads=True, may_write=False)
READ_COMMITTED: Final = Level(waits=False, checks_reads=False, may_write=True)

#: By their names, which users write.
LEVELS: Final = {"serializable": SERIALIZABLE, "snapshot": SNAPSHOT, "read_committed": READ_COMMITTED}


def level_of(isolation: str, *, read_only: bool) -> Level:
    """Return the level of a transaction; refuse other names."""
    if isolation not in tuple(LEVELS):
        raise ConfigurationError(f"isolation must be one of {', '.join(LEVELS)}, not {isolation!r}.")
    level = LEVELS[isolation]
    if not read_only:
        return level
    return SNAPSHOT if level.checks_reads else level._replace(may_write=False)


class IsolatedReader:
    """Reads items consistently, as a `Level` says, for a transaction with that priority, if there is one.

    It waits until the deadline, by the monotonic clock; without one as long as a single write.
    """

    def __init__(self, level: Level, *, deadline: Deadline | None = None, priority: str | None = None) -> None:
        self._level = level
        self._deadline = deadline
        self._placeholders = 0
        self.priority = priority
        self.checks_reads: bool = level.checks_reads

    def read(self, model: type[PlacedMixin], key: Image) -> Image | None:
        """Return a stored item, None if there is none.

        Raises:
            TransactionConflict: a live transaction has an intent on it, and the time to wait is over.
            GetError: DynamoDB refused the request.
            LockingError: the item has an intent that cannot be resolved.
        """
        [image] = self.read_all(model, [key])
        return image

    def read_all(self, model: type[PlacedMixin], keys: Sequence[Image]) -> list[Image | None]:
        """Return the stored items of different keys, a hundred by each request; see `read`."""
        return [*self.committed(model, list(zip(keys, self.stored(model, keys), strict=True)))]

    def resolver(self) -> Resolver:
        return Resolver(deadline=self._deadline, priority=self.priority)

    def committed(
        self, model: type[PlacedMixin], found: Sequence[tuple[Image, Image | None]], resolver: Resolver | None = None
    ) -> Iterator[Image | None]:
        """Yield the items that one consistent read has found, given with their keys, without what is not committed.

        An intent is resolved when its item is wanted: if it is decided, together with those of its transaction behind
        it. Several reads of one operation share a resolver. See `read`.
        """
        seen = _Seen(model, found, self.resolver if resolver is None else lambda: resolver)
        for i in range(len(found)):
            yield self._committed(seen, i)

    def _committed(self, seen: _Seen, i: int) -> Image | None:
        while (found := seen.intent_at(i)) is not None:
            row, intent = found
            with conflicts(GetError):
                if not self._level.waits and self._is_in_the_future(seen.record(row, intent), intent):
                    return None if intent.is_placeholder else seen.images[i]
                self._resolve(seen, i, row, intent)
        return seen.images[i]

    def _resolve(self, seen: _Seen, first: int, row: LockRow, intent: WriteIntent) -> None:
        """Resolve an intent, with those of the same transaction behind it if it is decided; read their items again."""
        record = seen.record(row, intent)
        same = [first] if resolution_of_intent(record) is IntentResolution.WAIT else seen.of_the_same(first, intent)
        seen.resolver.act(record, [one for i in same if (one := seen.intent_at(i)) is not None])
        seen.replace(same, self._read_again(seen.model, [seen.keys[i] for i in same]))

    def _read_again(self, model: type[PlacedMixin], keys: Sequence[Image]) -> list[Image | None]:
        """Read items that a query has found; one by one where batches are refused, which a query does not need."""
        try:
            return self.stored(model, keys)
        except GetError:
            if len(keys) == 1:
                raise
            return [self.stored(model, [key])[0] for key in keys]

    def _is_in_the_future(self, record: TransactionRecord | None, intent: WriteIntent) -> bool:
        """Tell whether the intent belongs to an undecided transaction, which comes after everything read here."""
        if self._level.checks_reads:
            # Placeholders and their records must fit into the one read that checks them.
            self._placeholders += intent.is_placeholder
            if not shows_committed(record) or self._placeholders > dynamodb.MOST_ACTIONS // 2:
                return False
        return resolution_of_intent(record) is IntentResolution.WAIT

    def stored(self, model: type[PlacedMixin], keys: Sequence[Image]) -> list[Image | None]:
        """Read items as they are stored, a hundred by each request; see `committed`, and `read` for the errors."""
        connection = connection_of(model)
        table, ask = connection.table_name, connection.connection
        try:
            if len(keys) == 1:
                kwargs = {"TableName": table, "Key": keys[0], "ConsistentRead": True}
                return [client.dispatch(ask, "GetItem", kwargs).get("Item")]
            found: dict[ItemKey, Image] = {}
            for start in range(0, len(keys), dynamodb.MOST_KEYS):
                some = keys[start : start + dynamodb.MOST_KEYS]
                for image in get_batch(client.dispatch, ask, table, some, self._deadline):
                    found[ItemKey.of(table, {name: image[name] for name in keys[0]})] = image
        except responses.BOTOCORE_EXCEPTIONS as error:
            raise GetError(f"Error getting item: {error}", responses.readable(error)) from error
        return [found.get(ItemKey.of(table, key)) for key in keys]


class _Seen:
    """What one consistent read has found, and the records that were read since then for the intents in it.

    So a transaction that is pending by its record was pending when its intents were read.
    """

    def __init__(
        self, model: type[PlacedMixin], found: Sequence[tuple[Image, Image | None]], resolver: Callable[[], Resolver]
    ) -> None:
        self.model = model
        self.keys = [key for key, _ in found]
        self.images = [image for _, image in found]
        self._make_resolver = resolver
        self._records: dict[str, TransactionRecord | None] = {}

    @cached_property
    def resolver(self) -> Resolver:
        """Made when an intent is found."""
        return self._make_resolver()

    def intent_at(self, i: int) -> tuple[LockRow, WriteIntent] | None:
        """Return the row and the intent of an item, None if it has no intent; refuse a row of a newer format."""
        lock, image = lock_attribute_of(self.model), self.images[i]
        versions.refuse_newer(self.model, image)
        if lock is None or image is None:
            return None
        state = lock_record.state_in(image, lock.attr_name)
        if state.intent is None and not state.unreadable:
            return None
        row = lock_row_of_key(self.model, self.keys[i])
        intent = None if row is None else row.state(image).intent
        return None if row is None or intent is None else (row, intent)

    def record(self, row: LockRow, intent: WriteIntent) -> TransactionRecord | None:
        if intent.id not in self._records:
            self._records[intent.id] = self.resolver.record(row, intent)
        return self._records[intent.id]

    def of_the_same(self, first: int, intent: WriteIntent) -> list[int]:
        """Return which items have an intent of that transaction, from the first one on."""
        name = lock_attribute_of(self.model).attr_name
        intents = [lock_record.state_in(image, name).intent for image in self.images[first:]]
        return [
            first + i for i, each in enumerate(intents) if each and (each.table, each.id) == (intent.table, intent.id)
        ]

    def replace(self, some: Sequence[int], images: Sequence[Image | None]) -> None:
        """Take over what a later read has found; the records have to be later again."""
        for i, image in zip(some, images, strict=True):
            self.images[i] = image
        self._records.clear()


@contextlib.contextmanager
def for_commit() -> Iterator[None]:
    """Turn errors of reads before the first write of a commit into `TransactionConflict` or `TransactWriteError`."""
    try:
        yield
    except GetError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(error, TransactionConflict) or responses.is_transient(cause):
            raise also(TransactionConflict, TransactWriteError)(
                f"an item could not be read for the commit, and nothing was written: {error}. A retry is safe.",
                cause=cause,
            ) from error
        raise TransactWriteError(
            f"Failed to read an item for the commit: {cause}", responses.readable(cause)
        ) from error
