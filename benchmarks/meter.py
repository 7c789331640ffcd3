"""What the requests of a block of code took, as DynamoDB reports it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from botocore.client import BaseClient
from botocore.exceptions import ClientError

from pynamo_locking._core.values import item_size
from pynamo_locking_simulator._engine.partitions import READS, REFUSED, write_units

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Meter:
    """What the requests of a block took.

    Attributes:
        by_operation: how many requests there were, also those that were refused.
        write_units: of requests that write.
        read_units: of requests that only read.
        refused: how many requests were answered with an error.
        throttled: how many of them since a partition had no units left.
        written: write units by table, with those that DynamoDB bills for refused writes, of which it reports none.
    """

    by_operation: Counter[str] = field(default_factory=Counter)
    write_units: float = 0.0
    read_units: float = 0.0
    refused: int = 0
    throttled: int = 0
    written: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _stored: dict[str, float] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def requests(self) -> int:
        """All requests."""
        return self.by_operation.total()

    def note(self, operation: str, request: dict[str, Any], answer: dict[str, Any] | None) -> None:
        """Count one request; None stands for no answer."""
        with self._lock:
            self.by_operation[operation] += 1
            if answer is None or "Error" in answer:
                self.refused += 1
                self._note_refusal(operation, request, answer or {})
                return
            consumed = answer.get("ConsumedCapacity", [])
            reported = consumed if isinstance(consumed, list) else [consumed]
            units = sum(each["CapacityUnits"] for each in reported)
            if operation in READS:
                self.read_units += units
                return
            self.write_units += units
            for each in reported:
                self.written[each["TableName"]] += each["CapacityUnits"]
            if "Key" in request:
                self._stored[_place(request)] = units

    def _note_refusal(self, operation: str, request: dict[str, Any], answer: dict[str, Any]) -> None:
        code = answer.get("Error", {}).get("Code")
        self.throttled += code == REFUSED
        if operation == "TransactWriteItems":
            actions = [next(iter(action.values())) for action in request["TransactItems"]]
            for action, reason in zip(actions, answer.get("CancellationReasons", ()), strict=False):
                self.throttled += reason["Code"] == "ThrottlingError"
                self.written[action["TableName"]] += 2 * write_units(item_size(reason.get("Item", {})))
        elif code == "ConditionalCheckFailedException":
            self.written[request["TableName"]] += self._met(request, answer)

    def _met(self, request: dict[str, Any], answer: dict[str, Any]) -> float:
        """Return what a refused write took: by the item that it met, if that is known."""
        if "Item" in answer:
            return write_units(item_size(answer["Item"]))
        if "Item" in request:
            return write_units(item_size(request["Item"]))
        return self._stored.get(_place(request), 1.0)

    def taken(self) -> Taken:
        """Return what was counted up to now."""
        with self._lock:
            return Taken(self.by_operation.copy(), self.read_units, dict(self.written))


@dataclass
class Taken:
    """What requests took.

    Attributes:
        requests: by operation.
        read_units: as DynamoDB reports them.
        written: write units by table, with those of refused writes.
    """

    requests: Counter[str] = field(default_factory=Counter)
    read_units: float = 0.0
    written: dict[str, float] = field(default_factory=dict)

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.requests + other.requests, self.read_units + other.read_units, self._with(other, 1))

    def __sub__(self, earlier: Taken) -> Taken:
        return Taken(self.requests - earlier.requests, self.read_units - earlier.read_units, self._with(earlier, -1))

    def _with(self, other: Taken, times: int) -> dict[str, float]:
        tables = {**self.written, **other.written}
        return {table: self.written.get(table, 0.0) + times * other.written.get(table, 0.0) for table in tables}


def _place(request: dict[str, Any]) -> str:
    return f"{request['TableName']} {request['Key']}"


_SINGLE: Final = frozenset({"PutItem", "UpdateItem", "DeleteItem"})
_WRITES: Final = _SINGLE | {"BatchWriteItem", "BatchExecuteStatement", "TransactWriteItems"}
_CLIENT: Final[Any] = BaseClient


@contextlib.contextmanager
def metered() -> Iterator[Meter]:
    """Count the requests of all clients of botocore in this process. One block at a time."""
    meter, client_class = Meter(), _CLIENT
    call = client_class._make_api_call

    def counting(client: Any, operation: str, kwargs: dict[str, Any]) -> Any:
        if operation not in READS | _WRITES:
            return call(client, operation, kwargs)
        answer = None
        try:
            answer = call(client, operation, {**kwargs, "ReturnConsumedCapacity": "TOTAL"})
        except ClientError as error:
            answer = error.response
            raise
        finally:
            meter.note(operation, kwargs, answer)
        return answer

    client_class._make_api_call = counting
    try:
        yield meter
    finally:
        client_class._make_api_call = call
