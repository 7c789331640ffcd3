"""This package, as its README shows it, with its default settings and waits without end.

Requests of a cycle that nobody disturbs: docs/reference/costs.md.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.models import Model
from typing_extensions import override

from benchmarks.contenders.base import Contender, Place, Turn
from benchmarks.contenders.counters import CounterFields, PlainCounter, connected, create_counters, meta
from pynamo_locking import (
    LockableModel,
    LockAttribute,
    LockSettings,
    NamedLock,
    VersionAttribute,
    VersionedMixin,
    events,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

#: `modify` gives up after ten attempts unless told otherwise; no contender here gives up.
_ATTEMPTS = 1_000_000


def _settings(poll_s: float | None, lease_s: float | None) -> LockSettings:
    """Return the defaults, but for what was asked for, and for what has to change with it."""
    usual = LockSettings()
    poll, lease = poll_s or usual.poll_interval, lease_s or usual.lease
    return LockSettings(
        wait=math.inf,
        lease=lease,
        poll_interval=poll,
        max_poll_interval=max(poll, usual.max_poll_interval),
        request_timeout=min(usual.request_timeout, lease / 6),  # the shortest lease that is allowed
    )


class _Ours(Contender):
    """Counters that are kept in a model of this package."""

    is_safe: ClassVar[bool] = True
    is_ours: ClassVar[bool] = True
    counters: Any

    @override
    def create(self, keys: Sequence[str]) -> None:
        create_counters(self.counters, keys)

    @override
    def total(self, key: str) -> int:
        return int(self.counters.get(key, consistent_read=True).total)

    @override
    def close(self) -> None:
        self.counters._get_connection().connection.client.close()


class _InItem(_Ours):
    """Locks in the counters."""

    poll_s: ClassVar[float | None] = LockSettings().poll_interval

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        class Counter(CounterFields, LockableModel):
            Meta: Any = meta(place, "counters", lock_settings=_settings(poll_s, lease_s))
            version = VersionAttribute()
            lock = LockAttribute()

        self.counters = connected(Counter)


class Edit(_InItem):
    """One request locks and reads, one saves and unlocks."""

    name: ClassVar[str] = "edit()"
    source: ClassVar[str] = "pynamo_locking, LockableModel.edit"
    has_lock: ClassVar[bool] = False

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)
        self._mine: Any = threading.local()
        self._subscription = events.subscribe(self._note, of=events.Acquired)

    def _note(self, acquired: events.Acquired) -> None:
        self._mine.ticket = acquired.ticket

    @override
    def close(self) -> None:
        self._subscription.cancel()
        super().close()

    @override
    def add(self, key: str) -> Turn | None:
        with self.counters.edit(key) as counter:
            counter.total += 1
        return Turn(int(counter.total), self._mine.ticket)


class LockedInItem(_InItem):
    """The lock is in the counter; the save inside names it."""

    name: ClassVar[str] = "locked() in the item"
    source: ClassVar[str] = "pynamo_locking, LockableModel.locked with a LockAttribute"
    has_lock: ClassVar[bool] = True

    @override
    def add(self, key: str) -> Turn | None:
        with self.counters.locked(key) as lock:
            counter = lock.item
            counter.total += 1
            counter.save()
            return Turn(int(counter.total), lock.ticket)

    @override
    def hold(self, key: str) -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] = self.counters.locked(key)
        return lock


def _lock_table(place: Place, settings: LockSettings) -> Any:
    class Locks(NamedLock):
        Meta: Any = meta(place, "locks", lock_settings=settings)

    return connected(Locks)


class LockedInRow(_Ours):
    """The lock is in a row of its own; the save inside is a transaction that checks it."""

    name: ClassVar[str] = "locked() in a row"
    source: ClassVar[str] = "pynamo_locking, LockableModel.locked with Meta.lock_table"
    has_lock: ClassVar[bool] = True
    poll_s: ClassVar[float | None] = LockSettings().poll_interval

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        settings = _settings(poll_s, lease_s)
        self._locks = _lock_table(place, settings)
        locks = self._locks

        class Counter(CounterFields, LockableModel):
            Meta: Any = meta(place, "counters", lock_table=locks, lock_settings=settings)
            version = VersionAttribute()

        self.counters = connected(Counter)

    @override
    def create(self, keys: Sequence[str]) -> None:
        super().create(keys)
        self._locks.create_table()

    @override
    def add(self, key: str) -> Turn | None:
        with self.counters.locked(key) as lock:
            counter = lock.item
            counter.total += 1
            counter.save()
            return Turn(int(counter.total), lock.ticket)

    @override
    def hold(self, key: str) -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] = self.counters.locked(key)
        return lock


class Named(PlainCounter):
    """A lock on a name, around a plain counter: what the lock clients of others do."""

    name: ClassVar[str] = "NamedLock"
    source: ClassVar[str] = "pynamo_locking, NamedLock.locked around PynamoDB's get and save"
    has_lock: ClassVar[bool] = True
    is_safe: ClassVar[bool] = True
    is_ours: ClassVar[bool] = True
    poll_s: ClassVar[float | None] = LockSettings().poll_interval

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)
        self._locks = _lock_table(place, _settings(poll_s, lease_s))

    @override
    def create(self, keys: Sequence[str]) -> None:
        super().create(keys)
        self._locks.create_table()

    @override
    def add(self, key: str) -> Turn | None:
        with self._locks.locked(key) as lock:
            return Turn(self.raise_total(key), lock.ticket)

    @override
    def hold(self, key: str) -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] = self._locks.locked(key)
        return lock


class Modify(_Ours):
    """Versions: read, change, save; again if somebody else was faster."""

    name: ClassVar[str] = "modify()"
    source: ClassVar[str] = "pynamo_locking, VersionedMixin.modify"
    has_lock: ClassVar[bool] = False

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        del poll_s, lease_s  # it has neither

        class Counter(CounterFields, VersionedMixin, Model):
            Meta: Any = meta(place, "counters")
            version = VersionAttribute()

        self.counters = connected(Counter)

    @override
    def add(self, key: str) -> None:
        self.counters.modify(key, _one_more, attempts=_ATTEMPTS)


class Combine(Modify):
    """The same, and the callers of a process share a write."""

    name: ClassVar[str] = "modify(combine=True)"

    @override
    def add(self, key: str) -> None:
        self.counters.modify(key, _one_more, attempts=_ATTEMPTS, combine=True)


def _one_more(counter: Any) -> None:
    counter.total += 1
