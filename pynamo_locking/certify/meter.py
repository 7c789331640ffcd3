"""The units that all processes of a run have used, and the cap on them.

Numbers are in memory that all processes share, so what a killed process has written stays. Each attempt of a request
reserves more units than it can use before it is sent. What DynamoDB reports replaces the reservation. So the sum never
passes the cap, whichever processes send at once.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from botocore.client import BaseClient

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

#: What is counted, for each process.
FIELDS: Final = ("reads", "writes", "unreported", "pending", "requests", "begun", "done", "holds", "wrong", "looks")

#: So many processes can be counted in one run.
SLOTS: Final = 4096

#: Exit code of a child that would pass the cap.
CAPPED: Final = 3

_READS: Final = {"GetItem", "BatchGetItem", "TransactGetItems", "Query", "Scan"}
_UNMETERED: Final = {"CreateTable", "DeleteTable", "DescribeTable", "ListTables", "ListTagsOfResource"}

#: A scan or query reads 1 MB at most: 256 units, consistently.
_SCAN: Final = 256


class Ledger:
    """Numbers of each process.

    Args:
        context: of the processes.
        cap: units, reads and writes together.
    """

    def __init__(self, context: BaseContext, cap: float) -> None:
        self._numbers: Any = context.RawArray("d", len(FIELDS) * SLOTS)
        self._used: Any = context.RawValue("l", 0)
        self.cap = cap

    def new_slot(self) -> int:
        """Return the slot of a new process. Only the parent asks for it."""
        self._used.value += 1
        if self._used.value > SLOTS:
            raise RuntimeError(f"more than {SLOTS} processes in one run")
        return int(self._used.value) - 1

    def add(self, slot: int, field: str, number: float) -> None:
        """Add to a number. Each slot has one writer at a time."""
        self._numbers[slot * len(FIELDS) + FIELDS.index(field)] += number

    def of(self, slot: int, field: str) -> float:
        """Return a number of one process."""
        return float(self._numbers[slot * len(FIELDS) + FIELDS.index(field)])

    def total(self, *fields: str, since: int = 0) -> float:
        """Return the sum over all processes, or those since a slot."""
        used, width = self._used.value, len(FIELDS)
        starts = (since * width + FIELDS.index(field) for field in fields)
        return float(sum(sum(self._numbers[start : used * width : width]) for start in starts))

    def used(self) -> float:
        """Return what counts for the cap."""
        return self.total("reads", "writes", "unreported", "pending")


class Meter:
    """Counts what this process sends. It ends the process where a request might pass the cap."""

    def __init__(self, ledger: Ledger, slot: int) -> None:
        self._ledger = ledger
        self._slot = slot
        self._mutex = threading.Lock()
        self._current = threading.local()
        self._watched: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        """Count the requests of all clients of this process from now on."""
        client: Any = BaseClient
        original = client._make_api_call

        def call(made: Any, operation: str, arguments: dict[str, Any]) -> Any:
            if made.meta.service_model.service_name != "dynamodb" or operation in _UNMETERED:
                return original(made, operation, arguments)
            self._watch(made)
            return original(made, operation, {**arguments, "ReturnConsumedCapacity": "TOTAL"})

        client._make_api_call = call

    def _watch(self, client: Any) -> None:
        with self._mutex:
            if client in self._watched:
                return
            self._watched.add(client)
        client.meta.events.register("before-send.dynamodb", self._reserve)
        client.meta.events.register("response-received.dynamodb", self._settle)

    def _reserve(self, request: Any, event_name: str, **_: Any) -> None:
        body, operation = request.body, event_name.rpartition(".")[2]
        actions = _actions(json.loads(body))
        bound = _SCAN if operation in {"Query", "Scan"} else 16 + 4 * actions + len(body) // 256
        with self._mutex:
            self._ledger.add(self._slot, "pending", bound)
            self._ledger.add(self._slot, "requests", 1)
            if self._ledger.used() > self._ledger.cap:
                self._ledger.add(self._slot, "pending", -bound)
                os._exit(CAPPED)  # no thread of this process may send another one
        self._current.sent = (operation, bound, actions)

    def _settle(self, parsed_response: Any = None, **_: Any) -> None:
        operation, bound, actions = self._current.sent
        answer = parsed_response or {}
        reported = answer.get("ConsumedCapacity")
        field = "reads" if operation in _READS else "writes"
        if reported is not None:
            units = _units(reported)
        else:  # DynamoDB does not say what a refused request has used
            field, units = "unreported", _unreported(answer, operation, actions)
        with self._mutex:
            self._ledger.add(self._slot, field, units)
            self._ledger.add(self._slot, "pending", -bound)


def _actions(body: dict[str, Any]) -> int:
    """Return how many items a request is about."""
    several = [*body.get("TransactItems", ()), *body.get("Statements", ())]
    for each in body.get("RequestItems", {}).values():
        several += each if isinstance(each, list) else each["Keys"]
    return max(1, len(several))


def _units(reported: Any) -> float:
    """Return the sum of what DynamoDB reports, of one table or of several."""
    each = reported if isinstance(reported, list) else [reported]
    return float(sum(table["CapacityUnits"] for table in each))


def _unreported(answer: dict[str, Any], operation: str, actions: int) -> float:
    """Return what a request without a report has used: a unit for each item, two in a transaction.

    A refusal by a condition uses what the write would have used. An invalid request uses nothing.
    """
    code = answer.get("Error", {}).get("Code", "")
    if code and code not in {"ConditionalCheckFailedException", "TransactionCanceledException"}:
        return 0.0
    return actions * (2.0 if operation.startswith("Transact") else 1.0)
