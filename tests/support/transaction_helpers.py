"""What several tests of transactions share: writes to choose from, expected errors, and counted costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.connection import Connection

from pynamo_locking.exceptions import Conflict, StaleVersion
from tests.support.transaction_models import Purse

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pynamo_locking.transactions import Transaction


def add_fillers(tx: Transaction, path: str, name: str = "filler") -> None:
    """Write other items besides, so that the transaction takes that path."""
    for i in range({"single": 0, "native": 1, "long": 5}[path]):
        tx.save(Purse(f"{name}{i}", balance=i), add_version_condition=False)


def tx_save(tx: Transaction, item: Purse, **options: Any) -> None:
    tx.save(item, **options)


def tx_update(tx: Transaction, item: Purse, **options: Any) -> None:
    tx.update(item, [Purse.note.set("written")], **options)


def tx_delete(tx: Transaction, item: Purse, **options: Any) -> None:
    tx.delete(item, **options)


def tx_touch(tx: Transaction, item: Purse, **options: Any) -> None:
    tx.touch(item, **options)


WRITES = [tx_save, tx_update, tx_delete, tx_touch]


class Expecting:
    """Expects an error of exactly this class or of one derived from it, or none."""

    def __init__(self, kind: type[Exception] | None) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        if self._kind is None:
            return False
        assert kind is not None, f"{self._kind.__name__} was expected"
        return issubclass(kind, self._kind) and (self._kind is not Conflict or not issubclass(kind, StaleVersion))


def units(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> tuple[int, float, float]:
    """How many requests a call makes, and how many write and read units they take."""
    total = {"requests": 0, "CapacityUnits": 0.0, "read": 0.0}
    original = Connection.dispatch

    def dispatch(connection: Connection, operation: str, kwargs: dict[str, Any], *args: Any) -> Any:
        answer: Any = original(connection, operation, {**kwargs, "ReturnConsumedCapacity": "TOTAL"}, *args)
        consumed = answer.get("ConsumedCapacity", [])
        is_read = "Get" in operation or operation in ("Query", "Scan")
        for each in consumed if isinstance(consumed, list) else [consumed]:
            total["read" if is_read else "CapacityUnits"] += each["CapacityUnits"]
        total["requests"] += 1
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "dispatch", dispatch)
        call()
    return int(total["requests"]), total["CapacityUnits"], total["read"]


def balance(key: str) -> int:
    """What is stored."""
    return int(Purse.get(key, consistent_read=True).balance)
