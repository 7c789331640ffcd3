"""Reads of items that transactions may be about to change."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import GetError, TransactWriteError

from pynamo_locking._core import limits
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.transaction import Fate, fate, shows_committed
from pynamo_locking._io import answers, dispatch, header_requests, mark_requests, trust
from pynamo_locking._io.resolver import Resolver, StillPending
from pynamo_locking._io.retries import Unavailable, persistently
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking._core.queue import Mark
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image
    from pynamo_locking._models.placement import PlacedMixin

#: Waits for what is undecided; waits only where a validation of reads alone would; shows what is committed; shows
#: what is intended.
LEVELS: Final = ("serializable", "snapshot", "read_committed", "read_uncommitted")


class Reader:
    """Reads items consistently.

    Args:
        level: one of `LEVELS`.
        deadline: until when to wait, by the monotonic clock; None for as long as a single write waits.
        priority: of the transaction that reads; None for what is none.

    Attributes:
        priority: the same.
    """

    def __init__(self, level: str, *, deadline: float | None = None, priority: str | None = None) -> None:
        if level not in LEVELS:
            raise ConfigurationError(f"isolation must be one of {', '.join(LEVELS)}, not {level!r}.")
        self._level = level
        self._deadline = deadline
        self._ghosts = 0
        self.priority = priority

    def read(self, model: type[PlacedMixin], key: Image) -> Image | None:
        """Return a stored item, None if there is none.

        Raises:
            TransactionConflict: a transaction that is alive has it, and there is no time left to wait.
            GetError: DynamoDB refused the request.
            LockingError: the item has a mark that cannot be resolved.
        """
        row, resolver = model._row_of_key(key), Resolver(deadline=self._deadline, priority=self.priority)
        while True:
            image = _get(model, key)
            mark = None if row is None else row.state(image).mark
            if row is None or mark is None or image is None:
                return image
            try:
                if self._level == "read_uncommitted":
                    return _intended(row, image, mark)
                if self._level != "serializable" and self._is_in_the_future(row, mark):
                    return None if mark.is_ghost else image
                resolver.resolve(row, mark)
            except (StillPending, Unavailable) as reason:
                raise also(TransactionConflict, GetError)(f"{reason}. Trying again is safe.") from reason

    def committed(self, model: type[Any], key: Image, image: Image) -> Image | None:
        """Return an item that a query has found, without what a transaction may be about to do to it."""
        row = model._row_of_key(key)
        return image if row is None or row.state(image).mark is None else self.read(model, key)

    def _is_in_the_future(self, row: LockRow, mark: Mark) -> bool:
        """Tell whether the mark is of an undecided transaction that comes after whatever this one reads."""
        header_table = trust.header_table_of(row, mark)
        header = persistently(lambda: header_requests.read(header_table, mark.id))
        if self._level == "snapshot":
            self._ghosts += mark.is_ghost  # they and their headers have to fit into the one read that checks them
            if not shows_committed(header) or self._ghosts > limits.MOST_ACTIONS // 2:
                return False
        return fate(header) is Fate.WAIT


def _intended(row: LockRow, image: Image, mark: Mark) -> Image | None:
    """Return what an item will be if the transaction is committed that has it."""
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
    """Turn the errors of reads that are made before anything of a commit is written into those of the commit.

    Raises:
        TransactionConflict: the read may succeed later.
        TransactWriteError: DynamoDB refused it.
    """
    try:
        yield
    except GetError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(error, TransactionConflict) or answers.is_transient(cause):
            raise also(TransactionConflict, TransactWriteError)(
                f"an item could not be read for the commit, and nothing was written: {error}. Trying again is safe.",
                cause=cause,
            ) from error
        raise TransactWriteError("Failed to read an item for the commit", answers.readable(cause)) from error
