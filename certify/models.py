"""The models of the checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pynamodb.attributes import JSONAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import LockableModel, LockAttribute, LockSettings, NamedLock, TransactionTable, VersionAttribute

if TYPE_CHECKING:
    from certify.plan import Place


class Row(LockableModel):
    """A row of the table of items: a counter, or an account."""

    pk = UnicodeAttribute(hash_key=True)
    n = NumberAttribute(default=0)
    ticket = NumberAttribute(default=0)
    #: How many changes of each process are in it.
    changes = JSONAttribute(default=dict)
    version = VersionAttribute()
    lock = LockAttribute()


class Stock(Model):
    """A row as PynamoDB's own model writes it, for comparison."""

    pk = UnicodeAttribute(hash_key=True)
    n = NumberAttribute(default=0)


class Models(NamedTuple):
    """The models, at a place."""

    row: type[Row]
    stock: type[Stock]
    locks: type[NamedLock]
    transactions: type[TransactionTable]


def models_of(place: Place, lease: float) -> Models:
    """Return the models of a place; locks on them have this lease, in seconds."""
    reached = {"region": place.region, "host": place.endpoint}
    reach = {name: value for name, value in reached.items() if value is not None}

    def meta(kind: str, **more: Any) -> type[Any]:
        return type("Meta", (), {"table_name": place.table(kind), **reach, **more})

    def made(base: type[Any], kind: str, **more: Any) -> Any:
        return type(base.__name__, (base,), {"Meta": meta(kind, **more), "__module__": __name__})

    settings = LockSettings(lease=lease, wait=120, request_timeout=min(2.0, lease / 6.1))
    transactions = cast("type[TransactionTable]", made(TransactionTable, "transactions"))
    return Models(
        made(Row, "items", lock_settings=settings, transaction_table=transactions),
        made(Stock, "items"),
        made(NamedLock, "locks", lock_settings=settings),
        transactions,
    )
