"""The check of a lock that a writer does not hold, and that it must not write into: of a range, or of a table.

A write of a model with ``Meta.enforce`` is a native transaction with this check. DynamoDB evaluates it with the write:
no entry is in the queue, or none has come since an image in which no entry was in the way. Entries leave and never
grow, so those that are left are not in the way either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.queue import FREE, dead_among
from pynamo_locking._io import retries, runtime
from pynamo_locking._locks import guards
from pynamo_locking._locks.evictions import evict_dead
from pynamo_locking._writes.refusals import busy_with_locks, locked_by

if TYPE_CHECKING:
    from pynamodb.exceptions import PynamoDBException

    from pynamo_locking._core.claims import Bound
    from pynamo_locking._core.lease import LockSettings
    from pynamo_locking._core.queue import LockState, QueueEntry
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image

#: How often a write looks at a queue that changes before each attempt.
_MOST_LOOKS: Final = 8


class Barrier:
    """The check that the lock in another row keeps no writer from some items.

    Args:
        row: the row of the lock.
        position: the range key of the written item; None if every entry of the lock is in the way.
        settings: say when a lease is over.
    """

    def __init__(self, row: LockRow, position: Bound | None, settings: LockSettings) -> None:
        self.row = row
        self._settings = settings
        self._positions = {position}
        self._seen = FREE
        self._looks = 0
        self.request: dict[str, Any] = {"ConditionCheck": {}}
        self._ask()

    def join(self, other: Barrier) -> None:
        """Check the positions of another barrier in the same row as well."""
        self._positions |= other._positions

    def see(self, image: Image | None, kind: type[PynamoDBException], cause: Exception) -> None:
        """Look at the queue that has refused a write, so that the write may be sent again.

        Dead entries that are in the way, by their stored end of lease, are evicted.

        Raises:
            ItemLocked: an entry is in the way; also a `kind`.
            TransactionConflict: other parties enter the queue all the time; also a `kind`.
        """
        self._looks += 1
        state = self._without_dead(self.row.state(image))
        found = self._in_the_way(state)
        if found:
            advice = "Lock the range yourself (locked_range()), or try again when it is free."
            raise locked_by(self.row, found[0], kind, advice, cause) from cause
        if self._looks > _MOST_LOOKS:
            raise busy_with_locks(self.row, kind, cause) from cause
        self._seen = state
        self._ask()

    def _ask(self) -> None:
        names: dict[str, str] = {}
        values: dict[str, Any] = {}
        condition = guards.not_entered_since(self.row, self._seen).serialize(names, values)
        self.request["ConditionCheck"] = {
            "TableName": self.row.table,
            "Key": self.row.key,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {placeholder: name for name, placeholder in names.items()},
            "ExpressionAttributeValues": values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _in_the_way(self, state: LockState) -> list[QueueEntry]:
        return [
            entry
            for entry in state.entries
            if any(position is None or entry.claim.contains(position) for position in self._positions)
        ]

    def _without_dead(self, state: LockState) -> LockState:
        """Evict the entries in the way if all of them are dead, and return the queue as it is then."""
        found, settings = self._in_the_way(state), self._settings
        now_ms = runtime.current.time_ms()
        dead = dead_among(found, {}, 0.0, now_ms, settings.max_clock_skew, settings.max_lease)
        if not dead or len(dead) < len(found):
            return state
        try:
            image = evict_dead(self.row, dead, state)
        except retries.Unavailable:
            return state
        return state if image is None else self.row.state(image)
