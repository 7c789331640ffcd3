"""Marks, headers and participants as another writer may have forged them, and everybody who meets them."""

from __future__ import annotations

from typing import Any, Final

from pynamo_locking import TransactionTable, TransactWrite, transaction
from tests.support.models import declare
from tests.support.transaction_models import Purse, Transactions, stored

#: A table with the headers of others, which no model here declares.
Foreign = declare("Foreign", TransactionTable, table_name="foreign")


def put(model: type[Any], row: dict[str, Any]) -> None:
    """Store a row as it is."""
    connection = model._get_connection()
    connection.connection.dispatch("PutItem", {"TableName": connection.table_name, "Item": row})


def name_of(model: type[Any]) -> str:
    return str(model._get_connection().table_name)


def entry(ticket: int = 1, **more: Any) -> dict[str, Any]:
    """A sound entry of a queue."""
    numbers = {"b": 0, "e": 9999999939999, "w": 0}
    stored_numbers = {name: {"N": str(value)} for name, value in numbers.items()}
    return {"L": [{"N": str(ticket)}, {"M": {"o": {"S": "o"}, **stored_numbers, **more}}]}


def document(tx: dict[str, Any] | None = None, **entries: Any) -> dict[str, Any]:
    """A sound lock document."""
    content = {
        "f": {"N": "1"},
        "since": {"N": "1"},
        "next": {"L": [{"N": "9"}]},
        "queue": {"M": entries},
        "evicted": {"M": {"5": {"N": "5"}}},
    }
    return {"M": content if tx is None else {**content, "tx": tx}}


def place(lock: dict[str, Any]) -> dict[str, Any]:
    """Store a purse of balance 1 with that lock."""
    image = {"purse_id": {"S": "p0"}, "balance": {"N": "1"}, "version": {"N": "1"}, "lock": lock}
    put(Purse, image)
    return image


def header(tx_id: str, state: str, /, **changes: Any) -> dict[str, Any]:
    """A header; None leaves a field out."""
    row = {
        "id": {"S": tx_id},
        "state": {"S": state},
        "priority": {"S": "000000000000001-x"},
        "owner": {"S": "mallory"},
        "beat": {"N": "0"},
        "lease_ms": {"N": "10000"},
        "until_ms": {"N": "1000"},
        "items": {"N": "1"},
        "rows": {"N": "1"},
        "early": {"BOOL": False},
        **changes,
    }
    return {name: value for name, value in row.items() if value is not None}


def mark(tx_id: str, table: str, **intent: Any) -> dict[str, Any]:
    """A mark that gives the purse a balance of 6, unless told otherwise."""
    intent = intent or {"op": {"S": "save"}, "set": {"M": {"balance": {"N": "6"}}}}
    return {"M": {"id": {"S": tx_id}, "table": {"S": table}, "intent": {"M": intent}}}


def participants(tx_id: str, *items: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """A row that names items which may carry a mark."""
    stored_items = {"items": {"L": [{"M": item} for item in items]}}
    return {"id": {"S": f"{tx_id}#{number:04}"}, "content": {"M": stored_items}}


def participant(key: str = "p0", table: str = "", **more: Any) -> dict[str, Any]:
    """An item in such a row."""
    return {
        "table": {"S": table or name_of(Purse)},
        "key": {"M": {"purse_id": {"S": key}}},
        "lock": {"S": "lock"},
        **more,
    }


def save() -> None:
    purse = Purse.get("p0")
    purse.balance = 5
    purse.save()


def blind_save() -> None:
    Purse("p0", balance=5).save(add_version_condition=False)


def update() -> None:
    Purse("p0").update([Purse.balance.add(1)], add_version_condition=False)


def delete() -> None:
    Purse.get("p0").delete()


def modify() -> None:
    Purse.modify("p0", change=lambda purse: setattr(purse, "balance", 5), wait=3)


def locked() -> None:
    with Purse.locked("p0", wait=3):
        pass


def locked_at_once() -> None:
    with Purse.locked("p0", wait=0):
        pass


def edit() -> None:
    with Purse.edit("p0", wait=3) as purse:
        purse.balance = 5


def native() -> None:
    with TransactWrite(connection=Purse._get_connection().connection) as write:
        write.save(Purse("p0", balance=5), add_version_condition=False)
        write.save(Purse("other", balance=5))


def native_check() -> None:
    with TransactWrite(connection=Purse._get_connection().connection) as write:
        write.check(Purse.get("p0"))
        write.save(Purse("other", balance=5))


def batch() -> None:
    with Purse.guarded_batch() as guarded:
        guarded.save(Purse("p0", balance=5), add_version_condition=False)


def tx_read_committed() -> None:
    with transaction(isolation="read_committed", wait=3) as tx:
        tx.get(Purse, "p0")


def tx_get() -> None:
    with transaction(wait=3) as tx:
        tx.get(Purse, "p0")


def tx_snapshot() -> None:
    with transaction(read_only=True, wait=3) as tx:
        tx.get(Purse, "p0")


def tx_snapshot_of_a_mark_that_came_later() -> None:
    with transaction(read_only=True, wait=3) as tx:
        image = stored(Purse, "p0")
        assert image is not None, "the purse p0, which is to carry the mark, is not stored"
        put(Purse, {**image, "lock": {"M": {}}})
        tx.get(Purse, "p0")
        put(Purse, image)


def tx_query() -> None:
    with transaction(isolation="read_committed", wait=3) as tx:
        tx.query(Purse, "p0")


def tx_for_update() -> None:
    with transaction(wait=3) as tx:
        tx.get(Purse, "p0", for_update=True)


def tx_single() -> None:
    with transaction(wait=3) as tx:
        tx.save(Purse("p0", balance=5), add_version_condition=False)


def tx_native() -> None:
    with transaction(wait=3) as tx:
        tx.save(Purse("p0", balance=5), add_version_condition=False)
        tx.save(Purse("other", balance=5))


def tx_long() -> None:
    with transaction(wait=3, workers=1) as tx:
        tx.update(Purse("p0"), [Purse.balance.add(1)], add_version_condition=False)
        for i in range(5):
            tx.save(Purse(f"other{i}", balance=5))


#: Those that have to know what the mark means.
RESOLVING: Final = [
    *(save, blind_save, update, delete, modify, locked, locked_at_once, edit, native, native_check, batch),
    *(tx_read_committed, tx_get, tx_snapshot, tx_snapshot_of_a_mark_that_came_later, tx_query),
    *(tx_for_update, tx_single, tx_native, tx_long),
]


def get() -> None:
    assert Purse.get("p0", consistent_read=True).balance == 1


def refresh() -> None:
    purse = Purse("p0")
    purse.refresh(consistent_read=True)
    assert purse.balance == 1


def batch_get() -> None:
    assert [purse.balance for purse in Purse.batch_get(["p0"], consistent_read=True)] == [1]


def scan() -> None:
    assert [purse.balance for purse in Purse.scan(consistent_read=True)] == [1]


def query() -> None:
    assert [purse.balance for purse in Purse.query("p0", consistent_read=True)] == [1]


def lock_state() -> None:
    assert Purse.lock_state("p0") == Purse.get("p0", consistent_read=True).lock


def break_lock() -> None:
    assert Purse.break_lock("p0", ticket=77) is False


def sweep_all() -> None:
    Transactions.sweep()


def recover_one() -> None:
    Transactions.recover("T")


#: Those that only show the item.
LOOKING: Final = [get, refresh, batch_get, scan, query, lock_state]
