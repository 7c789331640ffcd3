"""The algorithm of AWS's lock client for Java, written anew from reading its source.

Source: awslabs/amazon-dynamodb-lock-client, AmazonDynamoDBLockClient.java (commit 02ae4bd): ``acquireLock``,
``upsertAndMonitorNewLock``, ``upsertAndMonitorExpiredLock``, ``sendHeartbeat``, ``run``, ``releaseLock``. Defaults of
AmazonDynamoDBLockClientOptions (lease 20 s, heartbeat 5 s) and AcquireLockOptions (refresh period 1 s, the row is
deleted on release). See also ../shared/reference/locks.md, sections A1, B and C.

1. Look: GetItem, consistent. The time of the look is that after the answer.
2. No row: PutItem (owner, lease in ms, a new random record version number) on condition that there is no row.
3. A row: remember its version and when it was seen. If a later look sees the same version, and a whole lease has
   passed since it was first seen, PutItem on condition that the version is still that one.
4. Otherwise, and after a refused PutItem: sleep the refresh period, and look again.
5. Renew: one thread, every 5 s, one lock after the other: UpdateItem of lease and version on condition that owner and
   version are one's own. The own lease counts from before the request.
6. Release: DeleteItem on condition that owner and version are one's own.

Deviations: waits without end (in its documentation ``Long.MAX_VALUE / 2``). No session monitors, no data on the lock,
no reading of rows that are marked as released, since none are written with the defaults.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from benchmarks.contenders.base import Beats
from benchmarks.contenders.counters import PlainCounter, create_table, low_level_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.contenders.base import Place

_LEASE_S: Final = 20.0
#: Heartbeats in a lease.
_BEATS: Final = 4
_NEW: Final = "attribute_not_exists(#pk)"
_SAME_VERSION: Final = "attribute_exists(#pk) AND #rvn = :rvn"
_OWN: Final = "attribute_exists(#pk) AND #rvn = :rvn AND #on = :on"
_PK: Final = {"#pk": "key"}
_RVN: Final = {**_PK, "#rvn": "recordVersionNumber"}
_OWNER: Final = {**_RVN, "#on": "ownerName"}


@dataclass
class _Row:
    """A lock as one process knows it: its own, or one that it has seen."""

    key: str
    version: str
    seen_s: float
    lease_s: float
    mutex: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_expired(self) -> bool:
        return time.monotonic() - self.seen_s > self.lease_s


class AwsLockClient(PlainCounter):
    """Look, write if nobody has it, and look again later."""

    name: ClassVar[str] = "AWS lock client's algorithm"
    has_lock: ClassVar[bool] = True
    poll_s: ClassVar[float | None] = 1.0

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)
        self._table = f"{place.prefix}lockTable"
        self._client = low_level_client(place)
        self._refused = self._client.exceptions.ConditionalCheckFailedException
        self._lease_s = self.lease or _LEASE_S
        self._owner = socket.gethostname() + str(uuid.uuid4())
        self._own: dict[str, _Row] = {}
        self._beats = Beats(self._lease_s / _BEATS, lambda: list(self._own.copy().values()), self._beat)

    @override
    def create(self, keys: Sequence[str]) -> None:
        super().create(keys)
        create_table(self._client, self._table, "key")

    @override
    def close(self) -> None:
        self._beats.close()
        self._client.close()
        super().close()

    @override
    @contextmanager
    def hold(self, key: str) -> Iterator[str]:
        own = self._acquire(key)
        try:
            yield own.version
        finally:
            self._release(own)

    def _acquire(self, key: str) -> _Row:
        watched: _Row | None = None
        while True:
            with suppress(self._refused):
                stored = self._look(key)
                if stored is None:
                    return self._put(key, _NEW, _PK)
                if watched is None or watched.version != stored.version:
                    watched = stored
                elif watched.is_expired:
                    return self._put(key, _SAME_VERSION, _RVN, {":rvn": {"S": watched.version}})
            time.sleep(self.poll)

    def _look(self, key: str) -> _Row | None:
        answer = self._client.get_item(TableName=self._table, Key={"key": {"S": key}}, ConsistentRead=True)
        item = answer.get("Item")
        if not item:
            return None
        lease_s = int(item["leaseDuration"]["S"]) / 1000
        return _Row(key, item["recordVersionNumber"]["S"], time.monotonic(), lease_s)

    def _put(self, key: str, condition: str, names: dict[str, str], values: dict[str, Any] | None = None) -> _Row:
        version = str(uuid.uuid4())
        item = {
            "key": {"S": key},
            "ownerName": {"S": self._owner},
            "leaseDuration": {"S": str(round(self._lease_s * 1000))},
            "recordVersionNumber": {"S": version},
        }
        before = time.monotonic()
        self._client.put_item(
            TableName=self._table,
            Item=item,
            ConditionExpression=condition,
            ExpressionAttributeNames=names,
            **({"ExpressionAttributeValues": values} if values else {}),
        )
        own = _Row(key, version, before, self._lease_s)
        self._own[key] = own
        return own

    def _release(self, own: _Row) -> None:
        with own.mutex:
            self._own.pop(own.key, None)
            with suppress(self._refused):
                self._client.delete_item(
                    TableName=self._table,
                    Key={"key": {"S": own.key}},
                    ConditionExpression=_OWN,
                    ExpressionAttributeNames=_OWNER,
                    ExpressionAttributeValues={":rvn": {"S": own.version}, ":on": {"S": self._owner}},
                )

    def _beat(self, own: _Row) -> None:
        if own.is_expired:
            self._forget(own)
            return
        with own.mutex:
            version, before = str(uuid.uuid4()), time.monotonic()
            try:
                self._client.update_item(
                    TableName=self._table,
                    Key={"key": {"S": own.key}},
                    ConditionExpression=_OWN,
                    UpdateExpression="SET #ld = :ld, #rvn = :newRvn",
                    ExpressionAttributeNames={**_OWNER, "#ld": "leaseDuration"},
                    ExpressionAttributeValues={
                        ":rvn": {"S": own.version},
                        ":on": {"S": self._owner},
                        ":ld": {"S": str(round(self._lease_s * 1000))},
                        ":newRvn": {"S": version},
                    },
                )
            except self._refused:
                self._forget(own)
                return
            own.version, own.seen_s = version, before

    def _forget(self, own: _Row) -> None:
        if self._own.get(own.key) is own:  # another thread may have it by now
            self._own.pop(own.key, None)
