"""Models with unique values."""

from __future__ import annotations

from typing import Any

from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import ExpiringMixin, LockableModel, TTLAttribute, VersionedMixin
from pynamo_locking.unique import UniqueTable
from tests.support.models import Locks, declare
from tests.support.transaction_models import Transactions

Uniques = declare("Uniques", UniqueTable, table_name="uniques", transaction_table=Transactions)


def with_email(model: str, /, *bases: type[Any], unique: tuple[Any, ...] = ("email",), **parts: Any) -> Any:
    """Return a model with a version, whose addresses are unique."""
    options = {"unique": unique, "unique_table": Uniques, "version": True, "hash_key": "id"}
    return declare(model, *bases, texts="email", age=NumberAttribute(null=True), **options, **parts)


#: A version, and nothing else.
User: Any = with_email(
    "User",
    VersionedMixin,
    unique=("email", ("tenant", "name")),
    tenant=UnicodeAttribute(null=True),
    name=UnicodeAttribute(null=True),
)
#: Its lock is in the item, so that it can be marked.
Member: Any = with_email("Member", LockableModel, transaction_table=Transactions, lock=True)
#: Its lock is in another row, and it has no attribute for it.
Guest: Any = with_email("Guest", LockableModel, lock_table=Locks)
#: It expires.
Session: Any = with_email("Session", ExpiringMixin, VersionedMixin, expires=TTLAttribute(null=True))


EVERY: tuple[Any, ...] = (User, Member, Guest, Session)


def rows() -> dict[str, str]:
    """The rows of unique values that have not expired: the last part of each name, and the key of its holder."""
    found = Uniques.scan(consistent_read=True)
    return {row.name.rpartition("/")[2]: row.holder["key"]["M"]["id"]["S"] for row in found}
