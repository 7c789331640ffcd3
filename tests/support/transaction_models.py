"""Models for the tests of transactions, and tools to make long ones of few items and to stop them half-way.

`engine.bind` gives each model a table of its own for one test.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamodb.attributes import (
    BinaryAttribute,
    DiscriminatorAttribute,
    NumberAttribute,
    UnicodeAttribute,
    UnicodeSetAttribute,
)
from pynamodb.models import Model

from pynamo_locking import (
    ExpiringMixin,
    LockableModel,
    LockAttribute,
    NamedLock,
    TransactionTable,
    TTLAttribute,
    VersionAttribute,
    VersionedMixin,
)
from pynamo_locking._core import dynamodb
from tests.engines.one_table import alone
from tests.support.models import declare, meta
from tests.support.wire import Send, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

M = TypeVar("M", bound=Model)

#: What `make_long_from` lowers the number of actions of a native transaction to.
FEW: Final = 4

#: What it lowers the number of statements in a batch to. 1: none are sent, as where they are refused.
STATEMENTS: Final = int(os.environ.get("STATEMENTS", "3"))

Transactions = declare("Transactions", TransactionTable, table_name="transactions")


class Purse(LockableModel):
    """The lock in the item: can be marked."""

    Meta = meta("purses", transaction_table=Transactions)

    purse_id = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    note = UnicodeAttribute(null=True)
    tags = UnicodeSetAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Sheet(LockableModel):
    """A number as range key, and every attribute renamed."""

    Meta = meta("sheets", transaction_table=Transactions)

    folder = UnicodeAttribute(hash_key=True, attr_name="pk")
    number = NumberAttribute(range_key=True, attr_name="sk")
    body = UnicodeAttribute(null=True, attr_name="b")
    version = VersionAttribute(attr_name="v")
    mutex = LockAttribute(attr_name="lck")


class Blob(LockableModel):
    """A binary hash key."""

    Meta = meta("blobs", transaction_table=Transactions)

    digest = BinaryAttribute(hash_key=True, legacy_encoding=False)
    data = BinaryAttribute(null=True, legacy_encoding=False)
    version = VersionAttribute()
    lock = LockAttribute()


class Plain(VersionedMixin, Model):
    """A version and no place for a mark."""

    Meta = meta("plains", transaction_table=Transactions)

    plain_id = UnicodeAttribute(hash_key=True)
    value = NumberAttribute(default=0)
    version = VersionAttribute()


#: Locks in rows of their own.
RowLocks = declare("RowLocks", NamedLock, table_name="row-locks")


class Robot(LockableModel):
    """The lock in a row of its own."""

    Meta = meta("robots", lock_table=RowLocks, transaction_table=Transactions)

    robot_id = UnicodeAttribute(hash_key=True)
    total = NumberAttribute(default=0)
    version = VersionAttribute()


class Seat(LockableModel):
    """The lock in the item; while there is no item, that of its name in a row."""

    Meta = meta("seats", lock_table=RowLocks, transaction_table=Transactions)

    seat_id = UnicodeAttribute(hash_key=True)
    users = UnicodeAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Visit(ExpiringMixin, LockableModel):
    """May have expired, and is locked by its name then."""

    Meta = meta("visits", lock_table=RowLocks, transaction_table=Transactions)

    visit_id = UnicodeAttribute(hash_key=True)
    expires_at = TTLAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Animal(LockableModel):
    """A model with subclasses in the same table."""

    Meta = meta("animals", transaction_table=Transactions)

    name = UnicodeAttribute(hash_key=True)
    kind = DiscriminatorAttribute()
    version = VersionAttribute()
    lock = LockAttribute()


class Dog(Animal, discriminator="dog"):
    """One of them."""

    tricks = NumberAttribute(default=0)


class Session(ExpiringMixin, LockableModel):
    """Expires; what is expired counts as absent."""

    Meta = meta("sessions", transaction_table=Transactions)

    session_id = UnicodeAttribute(hash_key=True)
    user = UnicodeAttribute(null=True)
    note = UnicodeAttribute(null=True)
    expires_at = TTLAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Entry(LockableModel):
    """A transaction that creates or deletes one counts in a row for those who query."""

    Meta = meta("entries", transaction_table=Transactions, guard_queries=True)

    book = UnicodeAttribute(hash_key=True)
    number = NumberAttribute(range_key=True)
    amount = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Rate(LockableModel):
    """A transaction that creates or deletes one counts in a row for those who scan."""

    Meta = meta("rates", transaction_table=Transactions, guard_queries="table")

    zone = UnicodeAttribute(hash_key=True)
    since = NumberAttribute(range_key=True)
    price = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


# Long transactions of few items


def make_long_from(monkeypatch: pytest.MonkeyPatch, actions: int = FEW, *, statements: int = STATEMENTS) -> None:
    """Make every transaction of more than so many actions a long one, with so many statements in a batch; 1: none."""
    monkeypatch.setattr(dynamodb, "MOST_ACTIONS", actions)
    monkeypatch.setattr(dynamodb, "MOST_STATEMENTS", statements)


def purses(count: int, prefix: str = "p", **values: Any) -> list[Purse]:
    """Store so many purses with a balance of 100."""
    made = [Purse(f"{prefix}{i}", **{"balance": 100, **values}) for i in range(count)]
    for purse in made:
        purse.save()
    return made


def stored(model: type[Model], hash_key: Any, range_key: Any = None) -> dict[str, Any] | None:
    """The item as DynamoDB has it, without any interpretation; None if there is none."""
    connection = model._get_connection()
    answer: dict[str, Any] = connection.connection.get_item(
        connection.table_name,
        *model._serialize_keys(hash_key, range_key),
        consistent_read=True,
    )
    return next(iter(alone(model, [answer["Item"]])), None) if "Item" in answer else None


def existing(model: type[Model], hash_key: Any, range_key: Any = None) -> dict[str, Any]:
    """The item as DynamoDB has it, which must be there."""
    image = stored(model, hash_key, range_key)
    assert image is not None, f"there is no {model.__name__} {hash_key!r}, which must be stored by now"
    return image


def ends_s(row: dict[str, Any]) -> int:
    """When DynamoDB's TTL may remove a row, which must have such a time."""
    assert "expires_s" in row, f"this row has no time of expiry, so it would stay for ever: {row}"
    return int(row["expires_s"]["N"])


def rows_of(model: type[Model]) -> list[dict[str, Any]]:
    """All rows of a table as DynamoDB has them."""
    connection = model._get_connection()
    kwargs: dict[str, Any] = {"TableName": connection.table_name, "ConsistentRead": True}
    items: list[dict[str, Any]] = []
    while True:
        answer = connection.connection.dispatch("Scan", kwargs)
        items += answer["Items"]
        if "LastEvaluatedKey" not in answer:
            return alone(model, items)
        kwargs["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def marked_rows(model: type[Model], lock: str = "lock") -> list[dict[str, Any]]:
    """Those that carry a mark of a transaction."""
    return [row for row in rows_of(model) if "tx" in row.get(lock, {}).get("M", {})]


def empty(*models: type[Model]) -> None:
    """Delete all rows, whatever they carry."""
    for model in models:
        table = model._get_connection()
        names = [each["AttributeName"] for each in model._get_schema()["key_schema"]]
        for row in rows_of(model):
            key = {name: row[name] for name in names}
            table.connection.dispatch("DeleteItem", {"TableName": table.table_name, "Key": key})


def locks_of_names() -> list[str]:
    """The names that have a holder or a waiter in `RowLocks`."""
    return [row["name"]["S"] for row in rows_of(RowLocks) if row["lock"]["M"].get("queue", {}).get("M")]


# A process that dies


class Dead(BaseException):
    """The process is dead: no handler catches this."""


class Process:
    """What is known of the process whose requests are watched."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.is_dead = False


@contextmanager
def dying_after(
    monkeypatch: pytest.MonkeyPatch, requests: int | None, *, is_answer_lost: bool = False
) -> Iterator[Process]:
    """Let so many requests through; at the next one the process dies, and sends nothing any more.

    Args:
        monkeypatch: pytest's.
        requests: how many get through; None for all.
        is_answer_lost: whether the request at which it dies still reaches DynamoDB.
    """
    with dying_where(monkeypatch, lambda sent, *_: sent == requests, is_answer_lost=is_answer_lost) as process:
        yield process


@contextmanager
def dying_where(
    _: object, is_last: Callable[[int, str, dict[str, Any]], bool], *, is_answer_lost: bool
) -> Iterator[Process]:
    """The same, where it dies at the first request of which that is true; it is told how many came before."""
    process, mutex = Process(), threading.Lock()

    def answer(send: Send, operation: str, kwargs: dict[str, Any]) -> Any:
        with mutex:  # a transaction may send several requests at the same time, by threads
            if process.is_dead:
                raise Dead
            dies = process.is_dead = is_last(len(process.sent), operation, kwargs)
            process.sent.append((operation, kwargs))
        if dies:
            if is_answer_lost:
                send()
            raise Dead
        return send()

    with intercepted(answer):
        yield process


def survive(call: Callable[[], Any]) -> bool:
    """Call; tell whether the process has survived it."""
    try:
        call()
    except Dead:
        return False
    return True
