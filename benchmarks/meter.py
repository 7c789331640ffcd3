"""What the requests of a block of code took, as DynamoDB reports it."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from botocore.client import BaseClient
from botocore.exceptions import ClientError

from pynamo_locking._core.values import item_size
from pynamo_locking_testing._engine.partitions import READS, write_units

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Meter:
    """What the requests of a block took.

    Attributes:
        requests: how many there were, also those that were refused.
        write_units: of requests that write.
        read_units: of requests that only read.
        refused: how many requests were answered with an error.
        written: write units, with those that DynamoDB bills for refused writes, of which it reports none.
    """

    requests: int = 0
    write_units: float = 0.0
    read_units: float = 0.0
    refused: int = 0
    written: float = 0.0
    _stored: dict[str, float] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def note(self, operation: str, request: dict[str, Any], answer: dict[str, Any] | None) -> None:
        """Count one request; None stands for no answer."""
        with self._lock:
            self.requests += 1
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
            self.written += units
            if "Key" in request:
                self._stored[_place(request)] = units

    def _note_refusal(self, operation: str, request: dict[str, Any], answer: dict[str, Any]) -> None:
        code = answer.get("Error", {}).get("Code")
        if operation == "TransactWriteItems":
            for reason in answer.get("CancellationReasons", ()):
                self.written += 2 * write_units(item_size(reason.get("Item", {})))
        elif code == "ConditionalCheckFailedException":
            self.written += self._met(request, answer)

    def _met(self, request: dict[str, Any], answer: dict[str, Any]) -> float:
        """Return what a refused write took: by the item that it met, if that is known."""
        if "Item" in answer:
            return write_units(item_size(answer["Item"]))
        if "Item" in request:
            return write_units(item_size(request["Item"]))
        return self._stored.get(_place(request), 1.0)


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
