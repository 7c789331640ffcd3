"""An application that a server loads, which reads in every way there is, and whose workers are then forked from it.

Each way of reading has a model of its own: were two to share one, a way that is safe would hide one that is not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import NumberAttribute, TTLAttribute, UnicodeAttribute, VersionAttribute
from pynamodb.connection import Connection
from pynamodb.models import Model
from pynamodb.transactions import TransactGet

from pynamo_locking import (
    ExpiringMixin,
    LockableModel,
    LockAttribute,
    TransactionTable,
    TransactWrite,
    VersionedMixin,
    transaction,
)
from tests.support.models import declare
from tests.support.workers import Locks, Versioned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: A process that goes on failing has said enough, and each of its requests may wait for an answer that another one got.
_MOST_TOLD: Final = 3

#: Where the application's transactions note their idempotency keys.
Transactions = declare("Transactions", TransactionTable, table_name="transactions")


@dataclass
class Case:
    """A model, and the one way in which the application has read it before the fork.

    Attributes:
        read: reads the item with this key, and returns the keys of what it got.
        commit: adds one to the item with this key, in a transaction.
    """

    name: str
    model: Any
    read: Callable[[str], list[str]]
    commit: Callable[[str], None]


@dataclass
class Report:
    """What a process did, by the keys of the items: what was acknowledged, and all that went wrong."""

    added: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def _meta(of: Any, **more: Any) -> type:
    values = {name: value for name, value in vars(of.Meta).items() if not name.startswith("__")}
    return type("Meta", (), values | {"max_retry_attempts": 1} | more)


def _model(kind: str) -> Any:
    """Return a new model of the one table."""
    fields: dict[str, Any] = {
        "name": UnicodeAttribute(hash_key=True),
        "value": NumberAttribute(default=0),
        "version": VersionAttribute(),
    }
    if kind == "beside":
        locks = type("OwnLocks", (Locks,), {"Meta": _meta(Locks), "_connection": None})
        return type("Item", (LockableModel,), {"Meta": _meta(Versioned, lock_table=locks), **fields})
    fields["Meta"] = _meta(Versioned)
    if kind == "versioned":
        return type("Item", (VersionedMixin, Model), fields)
    if kind == "expiring":
        return type("Item", (ExpiringMixin, VersionedMixin, Model), {**fields, "ends": TTLAttribute(null=True)})
    return type("Item", (LockableModel,), {**fields, "lock": LockAttribute()})


def _connection(model: Any) -> Connection:
    names = ("region", "host", "aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    return Connection(**{name: getattr(model.Meta, name, None) for name in names})


def _by_get(model: Any) -> Callable[[str], list[str]]:
    return lambda key: [model.get(key, consistent_read=True).name]


def _by_refresh(model: Any) -> Callable[[str], list[str]]:
    def read(key: str) -> list[str]:
        item = model(key)
        item.refresh(consistent_read=True)
        return [item.name]

    return read


def _by_count(model: Any) -> Callable[[str], list[str]]:
    return lambda key: [key] * int(model.count(key))


def _by_exists(model: Any) -> Callable[[str], list[str]]:
    return lambda key: [key] * bool(model.exists())


def _by_describe(model: Any) -> Callable[[str], list[str]]:
    return lambda key: [key] * (model.describe_table()["TableName"] == model.Meta.table_name)


def _by_lock_state(model: Any) -> Callable[[str], list[str]]:
    return lambda key: [key] * (model.lock_state(key).entries == ())


def _by_lock_table(model: Any) -> Callable[[str], list[str]]:
    return lambda key: [key] * bool(model.Meta.lock_table.exists())


def _by_transact_get(model: Any, connection: Connection) -> Callable[[str], list[str]]:
    def read(key: str) -> list[str]:
        with TransactGet(connection=connection) as reads:
            future = reads.get(model, key)
        return [future.get().name]

    return read


def _by_transaction(model: Any) -> Callable[[str], list[str]]:
    def read(key: str) -> list[str]:
        with transaction(read_only=True) as tx:
            return [tx.get(model, key).name]

    return read


def _get_by(connection: Connection, key: str) -> str:
    table = Versioned.Meta.table_name
    answer = connection.dispatch("GetItem", {"TableName": table, "Key": {"name": {"S": key}}, "ConsistentRead": True})
    name: str = answer["Item"]["name"]["S"]
    return name


def _commit(model: Any, table: Any = None) -> Callable[[str], None]:
    def commit(key: str) -> None:
        once = None if table is None else f"{key}-{model.get(key, consistent_read=True).version}"
        with transaction(table, idempotency_key=once) as tx:
            item = tx.get(model, key)
            item.value += 1
            tx.save(item)

    return commit


def _commit_by(model: Any, connection: Connection) -> Callable[[str], None]:
    def commit(key: str) -> None:
        item = model.get(key, consistent_read=True)
        item.value += 1
        with TransactWrite(connection=connection) as writes:
            writes.save(item)
        for _ in range(20):  # it was handed over, so the process has its own sockets now
            assert _get_by(connection, key) == key

    return commit


_READS: Final[dict[str, tuple[str, Callable[[Any], Callable[[str], list[str]]]]]] = {
    "get": ("lockable", _by_get),
    "refresh": ("lockable", _by_refresh),
    "query": ("lockable", lambda model: lambda key: [item.name for item in model.query(key, consistent_read=True)]),
    "scan": ("lockable", lambda model: lambda key: [i.name for i in model.scan(model.name == key, page_size=50)]),
    "count": ("lockable", _by_count),
    "batch-get": ("lockable", lambda model: lambda key: [item.name for item in model.batch_get([key])]),
    "exists": ("lockable", _by_exists),
    "describe": ("lockable", _by_describe),
    "lock-state": ("lockable", _by_lock_state),
    "transaction": ("lockable", _by_transaction),
    "versioned": ("versioned", _by_get),
    "expiring": ("expiring", _by_get),
    "beside": ("beside", _by_get),
    "lock-table": ("beside", _by_lock_table),
}


def _cases(transactions: Any) -> Iterator[Case]:
    for name, (kind, way) in _READS.items():
        model = _model(kind)
        yield Case(name, model, way(model), _commit(model))
    model = _model("lockable")
    yield Case("transact-get", model, _by_transact_get(model, model._get_connection().connection), _commit(model))
    # A connection that the application made and used itself, and that a call of ours sees after the fork first: before
    # that it is PynamoDB's alone, which shares its sockets.
    model, own = _model("lockable"), _connection(Versioned)
    assert _get_by(own, key_of(0, "own-transact-write")) == key_of(0, "own-transact-write")
    yield Case("own-transact-write", model, _by_get(model), _commit_by(model, own))
    model = _model("versioned")
    yield Case("idempotent", model, _by_get(model), _commit(model, transactions))


def names() -> list[str]:
    """Return the names of all cases."""
    return [*_READS, "transact-get", "own-transact-write", "idempotent"]


def key_of(party: int, name: str) -> str:
    """Return the key of the item that this process alone changes in this case."""
    return f"{name}-{party}"


class Application:
    """What is loaded before the fork: it has read everything, and begun to read something more."""

    def __init__(self, parties: int) -> None:
        transactions: Any = type("OwnTransactions", (Transactions,), {"Meta": _meta(Transactions), "_connection": None})
        self._keys = {key_of(party, name) for party in range(parties) for name in names()}
        self._cases = list(_cases(transactions))
        assert [case.name for case in self._cases] == names()
        for case in self._cases:
            assert case.read(key_of(0, case.name)) == [key_of(0, case.name)]
        assert transactions.exists()
        self._scanned = _model("versioned").scan(page_size=20)
        self._first = next(self._scanned).name

    def work(self, party: int, rounds: int) -> Report:
        """Read, edit, modify and commit items of this process, so many times each."""
        report = Report()
        for number in range(rounds):
            case = self._cases[number % len(self._cases)]
            key = key_of(party, case.name)
            read = self._scan_on if number == 0 else self._read if number < len(self._cases) else self._get
            for do in (read, self._edit, self._modify, self._commit):
                if len(report.wrong) < _MOST_TOLD:
                    try:
                        report.added[key] += do(case, key)
                    except Exception as error:  # noqa: BLE001 - told, and the next one may go wrong as well
                        report.wrong.append(f"{do.__name__} of {key}: {error!r}")
        return report

    def _scan_on(self, case: Case, key: str) -> int:
        found = sorted(item.name for item in self._scanned)
        assert found == sorted(self._keys - {self._first}), f"the scan from before the fork found {len(found)} items"
        return self._read(case, key)

    def _read(self, case: Case, key: str) -> int:
        found = case.read(key)
        assert found == [key], f"found {found}"
        return self._get(case, key)

    def _get(self, case: Case, key: str) -> int:
        found = case.model.get(key, consistent_read=True).name
        assert found == key, f"found {found}"
        return 0

    def _edit(self, case: Case, key: str) -> int:
        if not issubclass(case.model, LockableModel):
            return 0
        with case.model.edit(key) as item:
            assert item.name == key, f"edits {item.name}"
            item.value += 1
        return 1

    def _modify(self, case: Case, key: str) -> int:
        case.model.modify(key, change=lambda item: setattr(item, "value", item.value + 1))
        return 1

    def _commit(self, case: Case, key: str) -> int:
        case.commit(key)
        return 1
