"""This package, as its README shows it, with its default settings and waits without end.

Requests of a cycle that nobody disturbs: docs/reference/costs.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.models import Model
from typing_extensions import override

from benchmarks.contenders.counters import CounterFields, ModelCounter, PlainCounter, connected, meta
from pynamo_locking import (
    LockableModel,
    LockAttribute,
    LockSettings,
    NamedLock,
    VersionAttribute,
    VersionedMixin,
    transactional,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from benchmarks.contenders.base import Contender, Place
    from pynamo_locking.transactions import Transaction

#: `modify` gives up after ten attempts unless told otherwise; no contender here gives up.
_ATTEMPTS = 1_000_000
_POLL_S = LockSettings().poll_interval


def _settings(contender: Contender) -> LockSettings:
    """Return the defaults, but for what was asked for, and for what has to change with it."""
    usual = LockSettings()
    lease = contender.lease or usual.lease
    return LockSettings(
        wait=math.inf,
        lease=lease,
        poll_interval=contender.poll,
        max_poll_interval=max(contender.poll, usual.max_poll_interval),
        request_timeout=min(usual.request_timeout, lease / 6),  # the shortest lease that is allowed
    )


class LockedInItem(ModelCounter):
    """The lock is in the counter; the save inside names it."""

    name: ClassVar[str] = "locked() in the item"
    has_lock: ClassVar[bool] = True
    poll_s: ClassVar[float | None] = _POLL_S

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)

        class Counter(CounterFields, LockableModel):
            Meta: Any = meta(place, "counters", lock_settings=self.settings())
            version = VersionAttribute()
            lock = LockAttribute()

        self.counters = connected(Counter)

    def settings(self) -> LockSettings:
        """Return those of the lock."""
        return _settings(self)

    @override
    def add(self, key: str) -> None:
        with self.counters.locked(key) as lock:
            counter = lock.item
            counter.total += 1
            counter.save()

    @override
    def hold(self, key: str) -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] = self.counters.locked(key)
        return lock


class LockedWithoutWakeUps(LockedInItem):
    """As between two machines: the waiter only polls."""

    name: ClassVar[str] = "locked() in the item, no wake-ups"

    @override
    def settings(self) -> LockSettings:
        return replace(super().settings(), local_wakeups=False)


class Edit(LockedInItem):
    """One request locks and reads, one saves and unlocks."""

    name: ClassVar[str] = "edit()"
    has_lock: ClassVar[bool] = False  # the same one as that of `locked()`

    @override
    def add(self, key: str) -> None:
        with self.counters.edit(key) as counter:
            counter.total += 1


def _lock_table(place: Place, settings: LockSettings) -> Any:
    class Locks(NamedLock):
        Meta: Any = meta(place, "locks", lock_settings=settings)

    return connected(Locks)


class LockedInRow(LockedInItem):
    """The lock is in a row of its own; the save inside is a transaction that checks it."""

    name: ClassVar[str] = "locked() in a row"

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)
        settings = _settings(self)
        self._locks = _lock_table(place, settings)

        class Counter(CounterFields, LockableModel):
            Meta: Any = meta(place, "counters", lock_table=self._locks, lock_settings=settings)
            version = VersionAttribute()

        self.counters = connected(Counter)

    @override
    def create(self, keys: Sequence[str]) -> None:
        super().create(keys)
        self._locks.create_table()


class Named(PlainCounter):
    """A lock on a name, around a plain counter: what the lock clients of others do."""

    name: ClassVar[str] = "NamedLock"
    has_lock: ClassVar[bool] = True
    poll_s: ClassVar[float | None] = _POLL_S

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)
        self._locks = _lock_table(place, _settings(self))

    @override
    def create(self, keys: Sequence[str]) -> None:
        super().create(keys)
        self._locks.create_table()

    @override
    def hold(self, key: str) -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] = self._locks.locked(key)
        return lock


class Modify(ModelCounter):
    """Versions: read, change, save; again if somebody else was faster."""

    name: ClassVar[str] = "modify()"

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)

        class Counter(CounterFields, VersionedMixin, Model):
            Meta: Any = meta(place, "counters")
            version = VersionAttribute()

        self.counters = connected(Counter)

    @override
    def add(self, key: str) -> None:
        self.counters.modify(key, _one_more, attempts=_ATTEMPTS)


class Combine(Modify):
    """Transactions, and the callers of a process share a write."""

    name: ClassVar[str] = "transactional(combine=True)"

    @override
    def add(self, key: str) -> None:
        @transactional(combine=True, attempts=_ATTEMPTS)
        def run(tx: Transaction) -> None:
            counter = tx.get(self.counters, key)
            _one_more(counter)
            tx.save(counter)

        run()


def _one_more(counter: Any) -> None:
    counter.total += 1
