"""Models with unique values."""

from __future__ import annotations

from typing import Any

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import ExpiringMixin, LockableModel, LockAttribute, TTLAttribute, VersionAttribute, VersionedMixin
from pynamo_locking.unique import UniqueTable
from tests.support.models import Locks, declare, meta
from tests.support.transaction_models import Transactions

Uniques = declare("Uniques", UniqueTable, table_name="uniques", transaction_table=Transactions)


class User(VersionedMixin, Model):
    """A version, and nothing else."""

    Meta = meta("users", unique=("email", ("tenant", "name")), unique_table=Uniques)

    id = UnicodeAttribute(hash_key=True)
    email = UnicodeAttribute(null=True)
    tenant = UnicodeAttribute(null=True)
    name = UnicodeAttribute(null=True)
    age = NumberAttribute(null=True)
    version = VersionAttribute()


class Member(LockableModel):
    """Its lock is in the item, so that it can be marked."""

    Meta = meta("members", unique=("email",), unique_table=Uniques, transaction_table=Transactions)

    id = UnicodeAttribute(hash_key=True)
    email = UnicodeAttribute(null=True)
    age = NumberAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Guest(LockableModel):
    """Its lock is in another row, and it has no attribute for it."""

    Meta = meta("guests", unique=("email",), unique_table=Uniques, lock_table=Locks)

    id = UnicodeAttribute(hash_key=True)
    email = UnicodeAttribute(null=True)
    age = NumberAttribute(null=True)
    version = VersionAttribute()


class Session(ExpiringMixin, VersionedMixin, Model):
    """It expires."""

    Meta = meta("sessions", unique=("email",), unique_table=Uniques)

    id = UnicodeAttribute(hash_key=True)
    email = UnicodeAttribute(null=True)
    age = NumberAttribute(null=True)
    version = VersionAttribute()
    expires = TTLAttribute(null=True)


EVERY: tuple[Any, ...] = (User, Member, Guest, Session)


def rows() -> dict[str, str]:
    """The rows of unique values: the last part of each name, and the key of its holder."""
    found = Uniques.scan(consistent_read=True, include_expired=True)
    return {row.name.rpartition("/")[2]: row.holder["key"]["M"]["id"]["S"] for row in found}
