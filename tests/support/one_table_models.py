"""A company's one table: orders, robots, shifts and entries of a book, and the rows of the package beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import UnicodeAttribute

from pynamo_locking import LockableModel, NamedLock, TransactionTable, VersionAttribute, VersionedMixin
from pynamo_locking.intervals import IntervalMixin
from pynamo_locking.recipes import IdempotencyTable
from pynamo_locking.unique import UniqueTable
from tests.support.models import declare, meta

if TYPE_CHECKING:
    from tests.engines.engine import Engine

OTHERS: Final = 1000


#: What the package's rows have in common: the range key tells them apart.
OURS: Final = {"table_name": "app", "keys": ("pk", "sk"), "prefix": "acme#ours#", "ttl_attribute": "ttl"}

Locks = declare("Locks", NamedLock, **OURS)
Transactions = declare("Transactions", TransactionTable, **OURS)
Uniques = declare("Uniques", UniqueTable, **OURS, transaction_table=Transactions)
Calls = declare("Calls", IdempotencyTable, **OURS)


def item(name: str, base: type[Any], **parts: Any) -> Any:
    """Return a model of the table's own items, with a version."""
    options = {"table_name": "app", "transaction_table": Transactions, "hash_key": "pk", "version": True}
    return declare(name, base, sk=UnicodeAttribute(range_key=True), **options, **parts)


#: Has an address that no other user has.
User: Any = item("User", VersionedMixin, unique=("email",), unique_table=Uniques, texts="email")
#: The lock in the item.
Order: Any = item("Order", LockableModel, lock_table=Locks, numbers="total", lock=True)
#: The lock in a row of its own.
Robot: Any = item("Robot", LockableModel, lock_table=Locks, numbers="total")
#: A transaction that creates or deletes one counts in a row for those who query.
Entry: Any = item("Entry", LockableModel, guard_queries=True, numbers="amount", lock=True)


class Shift(IntervalMixin, LockableModel):
    """Must not overlap within a hash key."""

    Meta = meta("app", lock_table=Locks, transaction_table=Transactions, interval=("sk", "until"))

    pk = UnicodeAttribute(hash_key=True)
    sk = UnicodeAttribute(range_key=True)
    until = UnicodeAttribute()
    version = VersionAttribute()


MODELS: Final = (Locks, Transactions, Uniques, Calls, User, Order, Robot, Shift, Entry)


def other(i: int) -> dict[str, Any]:
    """An item of another program, with the attributes that rows of ours have as well."""
    return {
        "pk": {"S": f"acme#{('customer', 'our', 'lock')[i % 3]}#{i:04}"},
        "sk": {"S": ("lock#", "transaction#", "profile#")[i % 3] + f"{i:04}"},
        "name": {"S": f"n{i}"},
        "id": {"S": f"t{i}"},
        "state": {"S": ("pending", "committed", "aborted")[i % 3]},
        "priority": {"S": f"{i:019}-t{i}"},
        "content": {"M": {"items": {"L": []}}},
        "ttl": {"N": "4102444800"},
        "version": {"N": str(i)},
        "lock": {"M": {"queue": {"M": {}}, "next": {"L": [{"N": "1"}]}}},
    }


def make(engine: Engine, others: int = OTHERS) -> str:
    """Make the table with items of other programs in it, for all models here; return its name."""
    table = engine.create_table(range_type="S")
    for start in range(0, others, 25):
        puts = [{"PutRequest": {"Item": other(i)}} for i in range(start, min(start + 25, others))]
        assert not engine.client().batch_write_item(RequestItems={table: puts})["UnprocessedItems"]
    engine.bind_to(table, *MODELS)
    return table


def raw(engine: Engine, table: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return all items as they are stored, by their keys."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    kwargs: dict[str, Any] = {"TableName": table, "ConsistentRead": True}
    while True:
        answer = engine.client().scan(**kwargs)
        found |= {(item["pk"]["S"], item["sk"]["S"]): item for item in answer["Items"]}
        if "LastEvaluatedKey" not in answer:
            return found
        kwargs["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def assert_others_are_as_they_were(engine: Engine, table: str, others: int = OTHERS) -> None:
    """The items of other programs are byte for byte what they were."""
    stored = raw(engine, table)
    for i in range(others):
        item = other(i)
        assert stored[item["pk"]["S"], item["sk"]["S"]] == item
