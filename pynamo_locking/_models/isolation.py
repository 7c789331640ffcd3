"""Reads of items that transactions may be about to change."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import GetError, TransactWriteError

from pynamo_locking._core import limits
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.transaction import Fate, fate, shows_committed
from pynamo_locking._io import answers, dispatch, header_requests, mark_requests, trust
from pynamo_locking._io.resolver import Resolver, conflicts
from pynamo_locking._io.retries import persistently
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._core.queue import Mark
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
        row, resolver = model._row_of_key(key), Resolver(deadline=self._deadline, priority=self.priority)
        while True:
            image = _get(model, key)
            mark = None if row is None else row.state(image).mark
            if row is None or mark is None or image is None:
                return image
            with conflicts(GetError):
                if self._level == "read_uncommitted":
                    return _intended(row, image, mark)
                if self._level != "serializable" and self._is_in_the_future(row, mark):
                    return None if mark.is_ghost else image
                resolver.resolve(row, mark)

    def committed(self, model: type[Any], key: Image, image: Image) -> Image | None:
        """Return the committed state of an item that a query has found."""
        row = model._row_of_key(key)
        return image if row is None or row.state(image).mark is None else self.read(model, key)

    def _is_in_the_future(self, row: LockRow, mark: Mark) -> bool:
        """Tell whether the mark belongs to an undecided transaction, which comes after everything read here."""
        header_table = trust.header_table_of(row, mark)
        header = persistently(lambda: header_requests.read(header_table, mark.id))
        if self._level == "snapshot":
            self._ghosts += mark.is_ghost  # placeholders and their headers must fit into the one read that checks them
            if not shows_committed(header) or self._ghosts > limits.MOST_ACTIONS // 2:
                return False
        return fate(header) is Fate.WAIT


def _intended(row: LockRow, image: Image, mark: Mark) -> Image | None:
    """Return the item as it will be if the transaction that has marked it is committed."""
    header_table = trust.header_table_of(row, mark)
    if mark.op == "delete":
        return None
    if mark.op == "keep":
        return None if mark.is_ghost else image
    mark = mark_requests.whole(header_table, mark) or mark
    return {name: value for name, value in image.items() if name not in mark.remove} | dict(mark.set)


def _get(model: type[PlacedMixin], key: Image) -> Image | None:
    connection = model._get_connection()
    kwargs: dict[str, Any] = {"TableName": connection.table_name, "Key": key, "ConsistentRead": True}
    try:
        image: Image | None = dispatch.dispatch(connection.connection, "GetItem", kwargs).get("Item")
    except answers.BOTOCORE_EXCEPTIONS as error:
        raise GetError(f"Error getting item: {error}", answers.readable(error)) from error
    return image


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
