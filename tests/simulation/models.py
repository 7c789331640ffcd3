"""The models of the workloads. Each operation appends its number to the `log` of the items it writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pynamodb.attributes import ListAttribute, NumberAttribute, TTLAttribute, UnicodeAttribute
from pynamodb.attributes import VersionAttribute as StockVersionAttribute
from pynamodb.models import Model

from pynamo_locking import (
    ExpiringMixin,
    LockableModel,
    LockAttribute,
    LockSettings,
    NamedLock,
    TransactionTable,
    VersionAttribute,
    VersionedMixin,
)
from pynamo_locking.intervals import IntervalMixin
from pynamo_locking.recipes import IdempotencyTable
from pynamo_locking.unique import UniqueTable
from tests.support.models import meta

#: One look a lease, as a wait is a step of its own: polling is what makes the number of schedules explode.
SETTINGS: Final = LockSettings(
    wait=1000,
    lease=6,
    min_poll_interval=4,
    poll_interval=4,
    max_poll_interval=4,
    request_timeout=1,
    max_clock_skew=10,
    max_callers_per_entry=1,
)

#: Several looks between two renewals, so that those in an old image count.
OFTEN: Final = replace(SETTINGS, min_poll_interval=1.5, poll_interval=1.5, max_poll_interval=1.5)

#: Looks as often as the queue moves fast.
BY_PACE: Final = replace(SETTINGS, min_poll_interval=0.5, poll_interval=2)

#: Trusts no wall clock.
NO_HINTS: Final = replace(SETTINGS, max_clock_skew=None)


def share_entries(block: int) -> None:
    """Let so many callers of a process share an entry, with all of these settings."""
    for settings in (SETTINGS, OFTEN, BY_PACE, NO_HINTS):
        object.__setattr__(settings, "max_callers_per_entry", block)


_OPTIONS: Final = {
    "region": "simulation",
    "billing_mode": "PAY_PER_REQUEST",
    "read_timeout_seconds": 1,
    "connect_timeout_seconds": 1,
    "max_retry_attempts": 1,
    "lock_settings": SETTINGS,
}


def _meta(table_name: str, **options: Any) -> Any:
    return meta(table_name, **{**_OPTIONS, **options})


class _Logged(Model):
    """Shows the numbers of the operations that have written it."""

    key = UnicodeAttribute(hash_key=True)
    log: Any = ListAttribute(of=NumberAttribute, default=list)


class _Versioned(VersionedMixin, _Logged):
    version = VersionAttribute()


class Account(_Versioned, LockableModel):
    """The lock in the item, a version, and another table than that of `Document`."""

    Meta = _meta("account")
    lock = LockAttribute()


class Document(_Versioned, LockableModel):
    """The lock in the item, and a version."""

    Meta = _meta("document")
    lock = LockAttribute()


class Names(NamedLock):
    """Locks in rows of their own."""

    Meta = _meta("names")


class Device(_Versioned, LockableModel):
    """The lock in a row of another table, and a version."""

    Meta = _meta("device", lock_table=Names)


class Crate(_Versioned, LockableModel):
    """As `Device`, in another table."""

    Meta = _meta("crate", lock_table=Names)


class Slot(_Versioned, LockableModel):
    """Many items of one hash key, whose ranges are locked in one row of another table; a version."""

    Meta = _meta("slot", lock_table=Names)
    at: Any = NumberAttribute(range_key=True)


class Shelf(_Versioned, LockableModel):
    """The same, and every write meets the locks of ranges, also of a writer that locks nothing."""

    Meta = _meta("shelf", lock_table=Names, enforce_locks="ranges")
    at: Any = NumberAttribute(range_key=True)


class Note(_Versioned):
    """A version, no lock."""

    Meta = _meta("note")


class StockNote(_Logged):
    """The same items, as a process without this package sees them."""

    Meta = _meta("note")
    version = StockVersionAttribute()


class Vault(_Versioned, LockableModel):
    """The lock in the item, a version, and no trust in wall clocks."""

    Meta = _meta("vault", lock_settings=NO_HINTS)
    lock = LockAttribute()


class Session(ExpiringMixin, _Versioned):
    """A version, and a time of expiry."""

    Meta = _meta("session")
    expires = TTLAttribute(null=True)


class Voucher(ExpiringMixin, _Versioned, LockableModel):
    """The lock in the item, a version, and a time of expiry."""

    Meta = _meta("voucher")
    expires = TTLAttribute(null=True)
    lock = LockAttribute()


class Register(VersionedMixin, Model):
    """One value, overwritten by each write; a version."""

    Meta = _meta("register")

    key = UnicodeAttribute(hash_key=True)
    value: Any = NumberAttribute(default=0)
    version = VersionAttribute()


class LockedRegister(LockableModel):
    """One value, overwritten by each write; the lock in the item, and a version."""

    Meta = _meta("locked_register")

    key = UnicodeAttribute(hash_key=True)
    value: Any = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Purse(_Versioned):
    """Money, and a version."""

    Meta = _meta("purse")
    balance: Any = NumberAttribute(default=100)


class Headers(TransactionTable):
    """What transactions of many items keep beside them."""

    Meta = _meta("headers")


class Coin(_Versioned, LockableModel):
    """The lock in the item, a version, and a place among the items of long transactions."""

    Meta = _meta("coin", transaction_table=Headers)
    lock = LockAttribute()


class Called(IdempotencyTable):
    """Calls that may be made twice."""

    Meta = _meta("called")


class Card(_Versioned, LockableModel):
    """The lock in the item; while there is no item, that of its name in a row."""

    Meta = _meta("card", lock_table=Names, transaction_table=Headers)
    lock = LockAttribute()


class Booking(IntervalMixin, _Versioned):
    """Items of one hash key that must not overlap; no locks."""

    Meta = _meta("booking", lock_table=Names, interval=("begin", "end"))
    begin: Any = NumberAttribute(range_key=True)
    end: Any = NumberAttribute()


class Stay(IntervalMixin, _Versioned, LockableModel):
    """The same, and ranges of them can be locked."""

    Meta = _meta("stay", lock_table=Names, interval=("begin", "end"))
    begin: Any = NumberAttribute(range_key=True)
    end: Any = NumberAttribute()


class Tariff(IntervalMixin, _Versioned):
    """Items of one hash key that must not overlap, and may have no end; no locks."""

    Meta = _meta("tariff", lock_table=Names, interval=("begin", "end"))
    begin: Any = NumberAttribute(range_key=True)
    end: Any = NumberAttribute(null=True)


class Seat(_Versioned):
    """Items that are counted by queries, which are guarded against those that appear; at most so many of each kind."""

    Meta = _meta("seat", transaction_table=Headers, guard_queries=True)
    at: Any = NumberAttribute(range_key=True)
    kind: Any = UnicodeAttribute()


class Uniques(UniqueTable):
    """The rows of unique values."""

    Meta = _meta("uniques", transaction_table=Headers)


class Person(_Versioned):
    """A unique value; a version, no lock."""

    Meta = _meta("person", unique=("email",), unique_table=Uniques)
    email: Any = UnicodeAttribute(null=True)


class Pass(ExpiringMixin, _Versioned):
    """The same, and a time of expiry."""

    Meta = _meta("pass", unique=("email",), unique_table=Uniques)
    email: Any = UnicodeAttribute(null=True)
    expires = TTLAttribute(null=True)


class Badge(_Versioned, LockableModel):
    """A unique value, the lock in the item, and a place among the items of long transactions."""

    Meta = _meta("badge", unique=("email",), unique_table=Uniques, transaction_table=Headers)
    email: Any = UnicodeAttribute(null=True)
    lock = LockAttribute()


ALL: Final = (
    Account,
    Document,
    Names,
    Device,
    Crate,
    Note,
    Vault,
    Session,
    Voucher,
    Register,
    LockedRegister,
    Purse,
    Headers,
    Coin,
    Card,
    Called,
    Slot,
    Shelf,
    Booking,
    Stay,
    Tariff,
    Seat,
    Uniques,
    Person,
    Pass,
    Badge,
)

#: Tables whose items have no lock.
WITHOUT_LOCK: Final = frozenset(
    model.Meta.table_name for model in (Note, Session, Register, Purse, Headers, Booking, Seat, Uniques, Person, Pass)
)

#: Saved without a look at the version, so that the lock alone protects them.
BY_LOCK_ALONE: Final = (Account, Crate, Vault, LockedRegister)

#: Tables whose items have their lock in a row of another table, one for each hash key.
LOCKED_ELSEWHERE: Final = frozenset(model.Meta.table_name for model in (Device, Crate, Slot, Shelf, Stay))


def has_lock(model: Any) -> bool:
    """Tell whether the items of a model have locks."""
    return model.Meta.table_name not in WITHOUT_LOCK
