"""The lease of the fourth seed: a row with the time at which the lock ends.

Source: seed 003 (a Japanese note on pessimistic locks with DynamoDB), its section "conclusion": what is done, and the
columns of the table.

1. Take: PutItem (name of the lock, host, time of the end, random revision number) on condition that there is no row.
   If refused: UpdateItem of all of it on condition that there is a row and its end is past, by one's own wall clock.
2. If that is refused as well, the lock is not available. The note ends here ("the process ends"). Here the caller
   sleeps and begins again at 1.
3. Renew at regular intervals: UpdateItem of end and revision on condition that the revision is known.
4. Release: DeleteItem.

Deviations: waiting (see 2). The note gives no durations and says "see the official one" for details, which is AWS's
lock client: so a lease is 20 s, renewed every 5 s, and a waiter looks every 1 s. The note does not say whether the
delete has a condition; here it names the revision, as the renewal does. Times are numbers, not text.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from benchmarks.contenders.counters import PlainCounter, create_table, low_level_client
from benchmarks.contenders.renewals import Renewals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.contenders.base import Place

_LEASE_S: Final = 20.0
#: Renewals in a lease.
_BEATS: Final = 4


class _Own:
    """A lock that this process has."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.revision = str(uuid.uuid4())
        self.mutex = threading.Lock()
        self.is_released = False


class SeedLease(PlainCounter):
    """Write a row, or take over one whose time is over."""

    name: ClassVar[str] = "lease by a clock"
    source: ClassVar[str] = "seed 003, a note on pessimistic locks, its conclusion (lines 8-39 of the stored text)"
    has_lock: ClassVar[bool] = True
    is_safe: ClassVar[bool] = True
    poll_s: ClassVar[float | None] = 1.0

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)
        self._table = f"{place.prefix}leases"
        self._client = low_level_client(place)
        self._refused = self._client.exceptions.ConditionalCheckFailedException
        self._lease_s = self.lease or _LEASE_S
        self._host = socket.gethostname()
        self._renewals: Renewals[_Own] = Renewals(self._lease_s / _BEATS, self._renew)

    @override
    def create(self, keys: Sequence[str]) -> None:
        super().create(keys)
        create_table(self._client, self._table, "name")

    @override
    def close(self) -> None:
        self._renewals.close()
        self._client.close()
        super().close()

    @override
    @contextmanager
    def hold(self, key: str) -> Iterator[str]:
        own = _Own(key)
        while not (self._put(own) or self._take_over(own)):
            time.sleep(self.poll)
        self._renewals.begin(own)
        try:
            yield own.revision
        finally:
            self._renewals.end(own)
            self._release(own)

    def _end(self) -> dict[str, str]:
        return {"N": str(time.time() + self._lease_s)}

    def _put(self, own: _Own) -> bool:
        item = {"name": {"S": own.key}, "host": {"S": self._host}, "ends": self._end(), "rvn": {"S": own.revision}}
        with suppress(self._refused):
            self._client.put_item(
                TableName=self._table,
                Item=item,
                ConditionExpression="attribute_not_exists(#name)",
                ExpressionAttributeNames={"#name": "name"},
            )
            return True
        return False

    def _take_over(self, own: _Own) -> bool:
        values = {":host": {"S": self._host}, ":now": {"N": str(time.time())}}
        with suppress(self._refused):
            self._update(own, "attribute_exists(#name) AND #ends < :now", ", #host = :host", values, own.revision)
            return True
        return False

    def _renew(self, own: _Own) -> None:
        with own.mutex:
            if own.is_released:
                return
            revision = str(uuid.uuid4())
            self._update(own, "attribute_exists(#name) AND #rvn = :old", "", {":old": {"S": own.revision}}, revision)
            own.revision = revision

    def _update(self, own: _Own, condition: str, also: str, values: dict[str, Any], revision: str) -> None:
        names = {"#name": "name", "#ends": "ends", "#rvn": "rvn", **({"#host": "host"} if also else {})}
        self._client.update_item(
            TableName=self._table,
            Key={"name": {"S": own.key}},
            ConditionExpression=condition,
            UpdateExpression=f"SET #ends = :ends, #rvn = :rvn{also}",
            ExpressionAttributeNames=names,
            ExpressionAttributeValues={":ends": self._end(), ":rvn": {"S": revision}, **values},
        )

    def _release(self, own: _Own) -> None:
        with own.mutex, suppress(self._refused):
            own.is_released = True
            self._client.delete_item(
                TableName=self._table,
                Key={"name": {"S": own.key}},
                ConditionExpression="#rvn = :rvn",
                ExpressionAttributeNames={"#rvn": "rvn"},
                ExpressionAttributeValues={":rvn": {"S": own.revision}},
            )
