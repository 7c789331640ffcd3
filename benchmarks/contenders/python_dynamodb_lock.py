"""python-dynamodb-lock 0.9.1 from the package index, used as it is.

Requests of a cycle that nobody disturbs (read in its source, python_dynamodb_lock.py): GetItem (consistent), PutItem
on condition that there is no row; the counter's GetItem and PutItem; DeleteItem on condition that the record version
number is one's own. A waiter sleeps 5 s between two looks, each one GetItem; if a row keeps its version for a lease of
30 s, PutItem on condition of that version. One thread renews every 5 s.

Chosen by arguments: the table's name, a wait of a day (35 s unless set), a boto3 resource with a large pool. Released
in ``finally`` and not by its ``with`` statement, which swallows every exception. Its table helper asks for a
provisioned table of 5 units; that is used, since the engines do not throttle. Its ``close`` sleeps out the current
period of its threads, up to 5 s; a thread waits for that, so that the run need not.
"""

from __future__ import annotations

import importlib.metadata
import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

import boto3
import botocore.config
from typing_extensions import override

from benchmarks.contenders.counters import CREDENTIALS, POOL, REGION, PlainCounter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.contenders.base import Place

_VERSION: Final = "0.9.1"
_WAIT: Final = timedelta(days=1)
#: Of a lease, as in its defaults: heartbeat 5 s, safe period 20 s, lease 30 s.
_BEAT_OF_LEASE: Final = 1 / 6
_SAFE_OF_LEASE: Final = 2 / 3


class PythonDynamoDBLock(PlainCounter):
    """The package."""

    name: ClassVar[str] = "python-dynamodb-lock 0.9.1"
    has_lock: ClassVar[bool] = True
    poll_s: ClassVar[float | None] = 5.0

    @classmethod
    @override
    def unavailable(cls) -> str:
        try:
            installed = importlib.metadata.version("python-dynamodb-lock")
        except importlib.metadata.PackageNotFoundError:
            return "python-dynamodb-lock is not installed (pip install --group bench)"
        return "" if installed == _VERSION else f"python-dynamodb-lock is {installed}, not {_VERSION}"

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)
        from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient  # noqa: PLC0415 - may be missing

        self._client_class: Any = DynamoDBLockClient
        resource: Any = boto3.resource
        self._table = f"{place.prefix}DynamoDBLockTable"
        config = botocore.config.Config(max_pool_connections=POOL)
        self._resource = resource("dynamodb", region_name=REGION, endpoint_url=place.host, config=config, **CREDENTIALS)
        parts = {"lease_duration": 1, "safe_period": _SAFE_OF_LEASE, "heartbeat_period": _BEAT_OF_LEASE}
        asked = {name: timedelta(seconds=part * lease_s) for name, part in parts.items()} if lease_s else {}
        self._locks = self._client_class(self._resource, table_name=self._table, **asked)
        self._retry_period = None if poll_s is None else timedelta(seconds=poll_s)

    @override
    def create(self, keys: Sequence[str]) -> None:
        super().create(keys)
        self._client_class.create_dynamodb_table(self._resource.meta.client, table_name=self._table)

    @override
    @contextmanager
    def hold(self, key: str) -> Iterator[Any]:
        lock = self._locks.acquire_lock(key, retry_period=self._retry_period, retry_timeout=_WAIT)
        try:
            yield lock
        finally:
            lock.release()

    @override
    def close(self) -> None:
        threading.Thread(target=self._locks.close, daemon=True).start()
        self._resource.meta.client.close()
        super().close()
