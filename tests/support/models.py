"""Models that the tests share. `engine.bind` gives each a table of its own for one test."""

from __future__ import annotations

from dataclasses import replace

from pynamodb.attributes import NumberAttribute, UnicodeAttribute, VersionAttribute

from pynamo_locking import LockableModel, LockAttribute, LockSettings, NamedLock

#: Quick looks, and a lease that the tests can outlive on a clock of their own.
QUICK = LockSettings(poll=0.01, poll_max=0.05, request_timeout=1.0)
#: The same with an entry for each caller, so that a thread stands for another process.
APART = replace(QUICK, block=1)


class Account(LockableModel):
    """The lock in the item, no version."""

    class Meta:
        table_name = "accounts"
        lock_settings = QUICK

    account_id = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    note = UnicodeAttribute(null=True)
    lock = LockAttribute()


class Document(LockableModel):
    """The lock in the item, with a version, a range key and renamed attributes."""

    class Meta:
        table_name = "documents"
        lock_settings = QUICK

    folder = UnicodeAttribute(hash_key=True, attr_name="pk")
    number = NumberAttribute(range_key=True, attr_name="sk")
    body = UnicodeAttribute(null=True, attr_name="b")
    version = VersionAttribute(attr_name="v")
    mutex = LockAttribute(attr_name="lck")


class Locks(NamedLock):
    """Locks without items."""

    class Meta:
        table_name = "locks"
        lock_settings = QUICK


class Device(LockableModel):
    """The lock in a row of its own, a version."""

    class Meta:
        table_name = "devices"
        lock_table = Locks
        lock_settings = QUICK

    device_id = UnicodeAttribute(hash_key=True)
    state = UnicodeAttribute(null=True)
    total = NumberAttribute(default=0)
    version = VersionAttribute()
