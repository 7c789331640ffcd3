"""Reads of items that transactions may be about to change."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import GetError, TransactWriteError

from pynamo_locking._core import limits
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import Deadline, backoff
from pynamo_locking._core.transaction import Fate, fate, shows_committed
from pynamo_locking._io import answers, dispatch, header_requests, mark_requests, runtime, trust
from pynamo_locking._io.resolver import PATIENCE_S, Resolver, conflicts
from pynamo_locking._io.retries import persistently
from pynamo_locking._items.keys import ItemKey
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        return self.committed(model, key, _get(model, key))

    def read_all(self, model: type[PlacedMixin], keys: Sequence[Image]) -> list[Image | None]:
        """Return the stored items of different keys, a hundred by each request; see `read`."""
        if len(keys) == 1:
            return [self.read(model, keys[0])]
        table = model._get_connection().table_name
        found: dict[ItemKey, Image] = {}
        for start in range(0, len(keys), limits.MOST_KEYS):
            for image in _get_together(model, keys[start : start + limits.MOST_KEYS], self._deadline):
                found[ItemKey.of(table, {name: image[name] for name in keys[0]})] = image
        return [self.committed(model, key, found.get(ItemKey.of(table, key))) for key in keys]

    def committed(self, model: type[Any], key: Image, image: Image | None) -> Image | None:
        """Return the item that a consistent read has found, without what is not committed. See `read`."""
        row, resolver = model._row_of_key(key), Resolver(deadline=self._deadline, priority=self.priority)
        while True:
            mark = None if row is None else row.state(image).mark
            if row is None or mark is None or image is None:
                return image
            with conflicts(GetError):
                if self._level == "read_uncommitted":
                    return _intended(row, image, mark)
                if self._level != "serializable" and self._is_in_the_future(row, mark):
                    return None if mark.is_ghost else image
                resolver.resolve(row, mark)
            image = _get(model, key)

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
    table = model._get_connection().table_name
    image: Image | None = _answer(model, "GetItem", TableName=table, Key=key, ConsistentRead=True).get("Item")
    return image


def _get_together(model: type[PlacedMixin], keys: Sequence[Image], deadline: Deadline | None) -> Iterator[Image]:
    """Yield the stored items of up to a hundred keys.

    Keys that DynamoDB has left out, since it was busy or the answer had 16 MB, are asked for again: until the deadline
    if an answer brings nothing, and always if it brings some.
    """
    table, repeats = model._get_connection().table_name, 0
    end = deadline or Deadline(runtime.current.monotonic() + PATIENCE_S)
    while keys:
        answer = _answer(model, "BatchGetItem", RequestItems={table: {"Keys": keys, "ConsistentRead": True}})
        for found in answer["Responses"].values():
            yield from found
        asked, keys = len(keys), [key for left in answer.get("UnprocessedKeys", {}).values() for key in left["Keys"]]
        if len(keys) == asked and runtime.current.monotonic() >= end.at:
            why = f"DynamoDB had no time for {asked} items of {table} until the wait was over; a retry is safe"
            raise GetError(f"Error getting items: {why}", answers.throttled(why, table))
        if keys and repeats:
            runtime.current.sleep(backoff(repeats, runtime.current.jitter()))
        repeats += 1


def _answer(model: type[PlacedMixin], operation: str, **kwargs: Any) -> dict[str, Any]:
    try:
        return dispatch.dispatch(model._get_connection().connection, operation, kwargs)
    except answers.BOTOCORE_EXCEPTIONS as error:
        raise GetError(f"Error getting item: {error}", answers.readable(error)) from error


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
