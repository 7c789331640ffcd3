"""The ticket scheme of the first seed, done literally.

Source: seed 000 (Formidable, "Distributed Locking in DynamoDB", 30 June 2020), its code and its text. It is **not
safe**: between number and row a process is invisible (docs/explanation/alternatives.md).

1. Take a number: UpdateItem of one counter for all locks (``ticket-master``, ``current``), on condition that it
   exists. If refused: PutItem with 1, on condition that it does not exist. If refused: the UpdateItem again.
2. Enter: PutItem (name of the lock, ``locked-for-some-reason/`` and the number with 38 digits) with ``createdAt`` and
   ``expiresAt``, 60 s from now on the own wall clock, on condition that it does not exist.
3. Look: Query, consistent, ascending, ``Limit`` 100, by name and prefix. The first row that has not expired decides:
   if it is the own one, go on; if not, sleep 0.5 s ("perhaps 500 milliseconds") and look again. Who goes on deletes
   the expired rows it has seen, as the comment in the source does.
4. Renew: from step 2 on, every 30 s, UpdateItem of ``expiresAt`` on condition that the row exists.
5. Leave: DeleteItem, unconditional.

Deviations: waits without end, where the seed says that 60 s are usual. One thread renews all rows of a process, where
the seed has a timer for each. No second page of expired rows.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final

from typing_extensions import override

from benchmarks.contenders.base import Beats
from benchmarks.contenders.counters import PlainCounter, create_table, low_level_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.contenders.base import Place

_LEASE_S: Final = 60.0
_MASTER: Final = {"pk": {"S": "ticket-master"}, "sk": {"S": "current"}}
_NAMESPACE: Final = "locked-for-some-reason/"


class TicketScheme(PlainCounter):
    """Take a number, enter a row, wait until it is the first."""

    name: ClassVar[str] = "ticket scheme (2020)"
    has_lock: ClassVar[bool] = True
    is_safe: ClassVar[bool] = False
    poll_s: ClassVar[float | None] = 0.5

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)
        self._table = f"{place.prefix}ticket-queue"
        self._client = low_level_client(place)
        self._lease_s = self.lease or _LEASE_S
        self._own: set[tuple[str, str]] = set()
        self._beats = Beats(self._lease_s / 2, lambda: list(self._own.copy()), self._renew)

    @override
    def create(self, keys: Sequence[str]) -> None:
        super().create(keys)
        create_table(self._client, self._table, "pk", "sk")

    @override
    def close(self) -> None:
        self._beats.close()
        self._client.close()
        super().close()

    @override
    @contextmanager
    def hold(self, key: str) -> Iterator[str]:
        row = self.enter(key, self.take_number())
        self._own.add((key, row))
        try:
            while not self._is_first(key, row):
                time.sleep(self.poll)
            yield row
        finally:
            self._own.discard((key, row))
            self._delete(key, row)

    def take_number(self) -> int:
        """Return a number that nobody else has: step 1."""
        refused = self._client.exceptions.ConditionalCheckFailedException
        try:
            return self._count_up()
        except refused:
            pass
        item = {**_MASTER, "ticketNumber": {"N": "1"}}
        try:
            self._client.put_item(TableName=self._table, Item=item, ConditionExpression="attribute_not_exists(pk)")
        except refused:
            return self._count_up()
        return 1

    def _count_up(self) -> int:
        answer = self._client.update_item(
            TableName=self._table,
            Key=_MASTER,
            ConditionExpression="attribute_exists(pk)",
            UpdateExpression="SET ticketNumber = ticketNumber + :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
            ReturnValues="UPDATED_NEW",
        )
        return int(answer["Attributes"]["ticketNumber"]["N"])

    def enter(self, key: str, number: int) -> str:
        """Write the row and return its sort key: step 2."""
        row = f"{_NAMESPACE}{number:038}"
        now = time.time()
        self._client.put_item(
            TableName=self._table,
            Item={
                "pk": {"S": key},
                "sk": {"S": row},
                "createdAt": {"N": str(now)},
                "expiresAt": {"N": str(now + self._lease_s)},
            },
            ConditionExpression="attribute_not_exists(pk)",
        )
        return row

    def _is_first(self, key: str, row: str) -> bool:
        """Look: step 3."""
        expired: list[str] = []
        now = time.time()
        page = self._client.query(
            TableName=self._table,
            ConsistentRead=True,
            KeyConditionExpression="pk = :pk AND begins_with(sk, :sk)",
            ExpressionAttributeValues={":pk": {"S": key}, ":sk": {"S": _NAMESPACE}},
            Limit=100,
            ScanIndexForward=True,
        )
        for entry in page["Items"]:
            if entry["sk"]["S"] == row:
                for each in expired:
                    self._delete(key, each)
                return True
            if float(entry["expiresAt"]["N"]) >= now:
                return False
            expired.append(entry["sk"]["S"])
        return False

    def _renew(self, which: tuple[str, str]) -> None:
        key, row = which
        self._client.update_item(
            TableName=self._table,
            Key={"pk": {"S": key}, "sk": {"S": row}},
            ConditionExpression="attribute_exists(pk)",
            UpdateExpression="SET expiresAt = :expiresAt",
            ExpressionAttributeValues={":expiresAt": {"N": str(time.time() + self._lease_s)}},
        )

    def _delete(self, key: str, row: str) -> None:
        self._client.delete_item(TableName=self._table, Key={"pk": {"S": key}, "sk": {"S": row}})
