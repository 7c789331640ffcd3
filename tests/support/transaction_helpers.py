"""What several tests of transactions share: writes to choose from, expected errors, and counted costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pynamo_locking import VersionedMixin, transaction
from pynamo_locking.exceptions import Conflict, StaleVersion
from tests.support import wire
from tests.support.deeds import deeds
from tests.support.poisoned import put
from tests.support.transaction_models import Purse, Transactions, existing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking.transactions import Transaction
    from pynamo_locking_testing import VirtualClock


_M = TypeVar("_M", bound=VersionedMixin)


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


def costs(call: Callable[[], object]) -> tuple[int, float, float]:
    """How many requests a call makes, and how many write and read units they take."""
    total = {"requests": 0, "written": 0.0, "read": 0.0}

    def answer(send: wire.Send, operation: str, kwargs: dict[str, Any]) -> Any:
        answered: Any = send({**kwargs, "ReturnConsumedCapacity": "TOTAL"})
        consumed = answered.get("ConsumedCapacity", [])
        is_read = "Get" in operation or operation in ("Query", "Scan")
        for each in consumed if isinstance(consumed, list) else [consumed]:
            total["read" if is_read else "written"] += each["CapacityUnits"]
        total["requests"] += 1
        return answered

    with wire.intercepted(answer):
        call()
    return int(total["requests"]), total["written"], total["read"]


def units(_: object, call: Callable[[], object]) -> tuple[int, float, float]:
    """As `costs`."""
    return costs(call)


#: What writes something.
_WRITING = ("PutItem", "UpdateItem", "DeleteItem", "BatchExecuteStatement", "TransactWriteItems")


def doing(deed: str, *, nth: int = 1, times: float = 1) -> wire.Chosen:
    """Choose attempts of requests that do this; see `deeds`."""

    def does(body: wire.Body) -> bool:
        return any(deed in deeds(operation, body) for operation in _WRITING if _is(operation, body))

    return wire.on(*_WRITING, where=does, nth=nth, times=times)


def _is(operation: str, body: wire.Body) -> bool:
    if "Statements" in body or "TransactItems" in body:
        return operation == ("BatchExecuteStatement" if "Statements" in body else "TransactWriteItems")
    return operation == ("PutItem" if "Item" in body else "UpdateItem" if "UpdateExpression" in body else "DeleteItem")


def turn(transaction_id: str, **changes: Any) -> None:
    """Store the record of a transaction with these changes, as another process does."""
    put(Transactions, {**existing(Transactions, transaction_id), **changes})


def decide(transaction_id: str, state: str) -> None:
    """Store that a transaction is committed, or that it was aborted by an operator; its intents stay."""
    by = {"by": {"S": "asked"}} if state == "aborted" else {}
    turn(transaction_id, state={"S": state}, **by)


def renew(transaction_id: str, beat: int, clock: VirtualClock) -> None:
    """Store a renewal of a pending transaction, as its own process does."""
    turn(transaction_id, beat={"N": str(beat)}, until_ms={"N": str(clock.time_ms() + 10_000)})


def committed(model: type[_M], *key: Any) -> _M | None:
    """The committed item, even if the transaction that wrote it has not been finished; None if there is none."""
    with transaction(isolation="read_committed") as tx:
        return tx.get_or_none(model, *key)


def committed_balances(*keys: str) -> list[int]:
    """The balances of purses, each as it is committed."""
    return [int(purse.balance) for key in keys if (purse := committed(Purse, key)) is not None]


def balance(key: str) -> int:
    """What is stored."""
    return int(Purse.get(key, consistent_read=True).balance)
