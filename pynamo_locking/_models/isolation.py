"""Reads of items that transactions may be about to change."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import GetError, TransactWriteError

from pynamo_locking._core import limits
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.transaction import Fate, fate, shows_committed
from pynamo_locking._io import answers, dispatch, lock_document, mark_requests, trust
from pynamo_locking._io.resolver import Resolver, conflicts
from pynamo_locking._io.transactional_reads import get_batch
from pynamo_locking._items import versions
from pynamo_locking._items.keys import ItemKey
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._core.queue import Mark
    from pynamo_locking._core.transaction import Header
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image
    from pynamo_locking._models.placement import PlacedMixin

#: Wait for undecided transactions; wait only where `validate` would; show committed values; show intended values.
LEVELS: Final = ("serializable", "snapshot", "read_committed", "read_uncommitted")


class Reader:
    """Reads items consistently.

    Args:
        level: one of `LEVELS`.
        deadline: when to stop waiting, by the monotonic clock; None to wait as long as a single write.
        priority: of the reading transaction, if any.
    """

    def __init__(self, level: str, *, deadline: Deadline | None = None, priority: str | None = None) -> None:
        if level not in LEVELS:
            raise ConfigurationError(f"isolation must be one of {', '.join(LEVELS)}, not {level!r}.")
        self._level = level
        self._deadline = deadline
        self._ghosts = 0
        self.priority = priority

    def read(self, model: type[PlacedMixin], key: Image) -> Image | None:
        """Return a stored item, None if there is none.

        Raises:
            TransactionConflict: a live transaction has marked it, and the time to wait is over.
            GetError: DynamoDB refused the request.
            LockingError: the item has a mark that cannot be resolved.
        """
        [image] = self.read_all(model, [key])
        return image

    def read_all(self, model: type[PlacedMixin], keys: Sequence[Image]) -> list[Image | None]:
        """Return the stored items of different keys, a hundred by each request; see `read`."""
        return [*self.committed(model, list(zip(keys, self._stored(model, keys), strict=True)), self.resolver())]

    def resolver(self) -> Resolver:
        """Return what resolves the marks that one operation meets."""
        return Resolver(deadline=self._deadline, priority=self.priority)

    def committed(
        self, model: type[Any], found: Sequence[tuple[Image, Image | None]], resolver: Resolver
    ) -> Iterator[Image | None]:
        """Yield the items that one consistent read has found, given with their keys, without what is not committed.

        A mark is resolved when its item is wanted: if it is decided, together with those of its transaction behind it.
        See `read`.
        """
        seen = _Seen(model, found, resolver)
        for i in range(len(found)):
            with conflicts(GetError):
                while (shown := self._shown(seen, i)) is None:
                    self._resolve(seen, i)
            yield shown[0]

    def _shown(self, seen: _Seen, i: int) -> tuple[Image | None] | None:
        """Return the item, alone in a tuple; None if its mark has to be resolved before."""
        image, marked = seen.images[i], seen.marked(i)
        versions.refuse_newer(seen.model, image)
        if image is None or marked is None:
            return (image,)
        row, mark = marked
        if self._level == "read_uncommitted":
            return (_intended(row, image, mark),)
        if self._level != "serializable" and self._is_in_the_future(seen.header(row, mark), mark):
            return (None if mark.is_ghost else image,)
        return None

    def _resolve(self, seen: _Seen, first: int) -> None:
        """Resolve a mark, with those of the same transaction behind it if it is decided; read their items again."""
        marked = seen.marked(first)
        assert marked is not None  # noqa: S101 - it is in the way
        header = seen.header(*marked)
        same = [first] if fate(header) is Fate.WAIT else seen.of_the_same(first, marked[1])
        seen.resolver.act(header, [one for i in same if (one := seen.marked(i)) is not None])
        seen.replace(same, self._read_again(seen.model, [seen.keys[i] for i in same]))

    def _read_again(self, model: type[PlacedMixin], keys: Sequence[Image]) -> list[Image | None]:
        """Read items that a query has found; one by one where batches are refused, which a query does not need."""
        try:
            return self._stored(model, keys)
        except GetError:
            if len(keys) == 1:
                raise
            return [self._stored(model, [key])[0] for key in keys]

    def _is_in_the_future(self, header: Header | None, mark: Mark) -> bool:
        """Tell whether the mark belongs to an undecided transaction, which comes after everything read here."""
        if self._level == "snapshot":
            self._ghosts += mark.is_ghost  # placeholders and their headers must fit into the one read that checks them
            if not shows_committed(header) or self._ghosts > limits.MOST_ACTIONS // 2:
                return False
        return fate(header) is Fate.WAIT

    def _stored(self, model: type[PlacedMixin], keys: Sequence[Image]) -> list[Image | None]:
        connection = model._get_connection()
        table, ask = connection.table_name, connection.connection
        try:
            if len(keys) == 1:
                kwargs = {"TableName": table, "Key": keys[0], "ConsistentRead": True}
                return [dispatch.dispatch(ask, "GetItem", kwargs).get("Item")]
            found: dict[ItemKey, Image] = {}
            for start in range(0, len(keys), limits.MOST_KEYS):
                some = keys[start : start + limits.MOST_KEYS]
                for image in get_batch(dispatch.dispatch, ask, table, some, self._deadline):
                    found[ItemKey.of(table, {name: image[name] for name in keys[0]})] = image
        except answers.BOTOCORE_EXCEPTIONS as error:
            raise GetError(f"Error getting item: {error}", answers.readable(error)) from error
        return [found.get(ItemKey.of(table, key)) for key in keys]


class _Seen:
    """What one consistent read has found, and the headers that were read since then for the marks in it.

    So a transaction that is pending by its header was pending when its marks were read.
    """

    def __init__(self, model: type[Any], found: Sequence[tuple[Image, Image | None]], resolver: Resolver) -> None:
        self.model = model
        self.keys = [key for key, _ in found]
        self.images = [image for _, image in found]
        self.resolver = resolver
        self._headers: dict[str, Header | None] = {}

    def marked(self, i: int) -> tuple[LockRow, Mark] | None:
        """Return the row and the mark of an item, None if it has no mark."""
        row = self.model._row_of_key(self.keys[i])
        if row is None:
            return None
        mark = row.state(self.images[i]).mark
        return None if mark is None else (row, mark)

    def header(self, row: LockRow, mark: Mark) -> Header | None:
        if mark.id not in self._headers:
            self._headers[mark.id] = self.resolver.header(row, mark)
        return self._headers[mark.id]

    def of_the_same(self, first: int, mark: Mark) -> list[int]:
        """Return which items have a mark of that transaction, from the first one on."""
        name = self.model._lock_attribute().attr_name
        marks = [lock_document.state_in(image, name).mark for image in self.images[first:]]
        return [first + i for i, each in enumerate(marks) if each and (each.table, each.id) == (mark.table, mark.id)]

    def replace(self, some: Sequence[int], images: Sequence[Image | None]) -> None:
        """Take over what a later read has found; the headers have to be later again."""
        for i, image in zip(some, images, strict=True):
            self.images[i] = image
        self._headers.clear()


def _intended(row: LockRow, image: Image, mark: Mark) -> Image | None:
    """Return the item as it will be if the transaction that has marked it is committed."""
    header_table = trust.header_table_of(row, mark)
    if mark.op == "delete":
        return None
    if mark.op == "keep":
        return None if mark.is_ghost else image
    mark = mark_requests.whole(header_table, mark) or mark
    return {name: value for name, value in image.items() if name not in mark.remove} | dict(mark.set)


@contextlib.contextmanager
def for_commit() -> Iterator[None]:
    """Turn errors of reads before the first write of a commit into `TransactionConflict` or `TransactWriteError`."""
    try:
        yield
    except GetError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(error, TransactionConflict) or answers.is_transient(cause):
            raise also(TransactionConflict, TransactWriteError)(
                f"an item could not be read for the commit, and nothing was written: {error}. A retry is safe.",
                cause=cause,
            ) from error
        raise TransactWriteError("Failed to read an item for the commit", answers.readable(cause)) from error
