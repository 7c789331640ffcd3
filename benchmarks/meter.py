"""What the requests of a block of code took, as DynamoDB reports it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from botocore.client import BaseClient

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
    """

    by_operation: Counter[str] = field(default_factory=Counter)
    write_units: float = 0.0
    read_units: float = 0.0
    refused: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def requests(self) -> int:
        """All requests."""
        return self.by_operation.total()

    def note(self, operation: str, answer: dict[str, Any] | None) -> None:
        """Count one request; None stands for an answer that was an error."""
        with self._lock:
            self.by_operation[operation] += 1
            if answer is None:
                self.refused += 1
                return
            consumed = answer.get("ConsumedCapacity", [])
            units = sum(each["CapacityUnits"] for each in (consumed if isinstance(consumed, list) else [consumed]))
            if operation in _READS:
                self.read_units += units
            else:
                self.write_units += units


_READS: Final = frozenset({"GetItem", "BatchGetItem", "Query", "Scan", "TransactGetItems"})
_WRITES: Final = frozenset({"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"})
_CLIENT: Final[Any] = BaseClient


@contextlib.contextmanager
def metered() -> Iterator[Meter]:
    """Count the requests of all clients of botocore in this process. One block at a time."""
    meter, client_class = Meter(), _CLIENT
    call = client_class._make_api_call

    def counting(client: Any, operation: str, kwargs: dict[str, Any]) -> Any:
        if operation not in _READS | _WRITES:
            return call(client, operation, kwargs)
        answer = None
        try:
            answer = call(client, operation, {**kwargs, "ReturnConsumedCapacity": "TOTAL"})
        finally:
            meter.note(operation, answer)
        return answer

    client_class._make_api_call = counting
    try:
        yield meter
    finally:
        client_class._make_api_call = call
