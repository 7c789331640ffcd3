"""Partitions before an engine that has none: how requests and answers are read, to know what they take of which key.

An engine reports what it took if it is asked to. It says nothing of a write that a condition refused, which DynamoDB
bills by the size of the item it met; so that item is asked for, and taken out of the answer again.

Scans and batches pass as they are, and take nothing. Of a transaction's actions in one table each pays the same.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.values import item_size
from pynamo_locking_testing._engine.partitions import READS, TRANSACTIONS, actions_of, refusal, write_units

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamo_locking_testing._engine.partitions import Partitions

Key = tuple[str, str]

_REPORT: Final = "ReturnConsumedCapacity"
_SHOW: Final = "ReturnValuesOnConditionCheckFailure"
_EQUAL: Final = re.compile(r"([#\w]+)\s*=\s*(:\w+)")


class Throttle:
    """Decides about each request, and notes what it took.

    Args:
        partitions: what is left of each hash key.
        describe: asks the engine about a table.
        clock: tells the time, in seconds.

    Attributes:
        refused: how many requests of each operation were refused.
        units: all that was taken, by whether it was read.
    """

    def __init__(
        self,
        partitions: Partitions,
        describe: Callable[[str], Mapping[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.units = {False: 0.0, True: 0.0}
        self._partitions = partitions
        self._describe = describe
        self._clock = clock
        self._hash_names: dict[str, str] = {}
        self._mutex = threading.Lock()

    def refusal(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the error with which a request is refused, or None if it is to be served."""
        keys, reading = self._keys(operation, request), operation in READS
        with self._mutex:
            now = self._clock()
            are_spent = [self._partitions.is_spent(key, reading=reading, now=now) for key in keys]
            if not any(are_spent):
                return None
            self.refused[operation] += 1
        return refusal(operation, are_spent, keys[0][0])

    def asking(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request that also asks what is needed to charge for it."""
        if not actions_of(operation, request):
            return dict(request)
        asking = {_REPORT: "TOTAL", **request}
        if asking[_REPORT] == "NONE":
            asking[_REPORT] = "TOTAL"
        if operation not in READS and operation not in TRANSACTIONS and "ConditionExpression" in request:
            asking[_SHOW] = "ALL_OLD"
        return asking

    def charge(self, operation: str, request: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """Take the units of a request that was served; return its answer without what the client did not ask for."""
        keys = self._keys(operation, request)
        if not keys:
            return answer
        reported = answer.get("ConsumedCapacity", [])
        consumed = {each["TableName"]: each["CapacityUnits"] for each in _listed(reported)}
        if not consumed and "__type" in answer:
            consumed = _of_refused(operation, keys, answer)
        shares = Counter(table for table, _ in keys)
        with self._mutex:
            for table, value in keys:
                units = consumed.get(table, 0.0) / shares[table]
                self.units[operation in READS] += units
                self._partitions.take((table, value), units, reading=operation in READS, now=self._clock())
        return _as_asked(request, answer)

    def _keys(self, operation: str, request: Mapping[str, Any]) -> list[Key]:
        return [self._key(action) for action in actions_of(operation, request)]

    def _key(self, action: Mapping[str, Any]) -> Key:
        table = action["TableName"]
        name = self._hash_name(table)
        if "KeyConditionExpression" in action:
            return table, str(_hash_value(action, name))
        return table, str(action.get("Key", action.get("Item", {})).get(name))

    def _hash_name(self, table: str) -> str:
        if table not in self._hash_names:
            schema = self._describe(table).get("Table", {}).get("KeySchema", [])
            self._hash_names[table] = next((each["AttributeName"] for each in schema if each["KeyType"] == "HASH"), "")
        return self._hash_names[table]


def _hash_value(query: Mapping[str, Any], hash_name: str) -> Any:
    """Return the value that a query compares the hash key with."""
    names, values = query.get("ExpressionAttributeNames", {}), query["ExpressionAttributeValues"]
    compared = {names.get(name, name): values[value] for name, value in _EQUAL.findall(query["KeyConditionExpression"])}
    return compared.get(hash_name)


def _of_refused(operation: str, keys: list[Key], answer: Mapping[str, Any]) -> dict[str, float]:
    """Return what an answer costs that is an error, by table."""
    if operation in READS:
        return {}
    if operation in TRANSACTIONS:
        taken: dict[str, float] = {}
        for (table, _), reason in zip(keys, answer.get("CancellationReasons", ()), strict=False):
            taken[table] = taken.get(table, 0.0) + 2 * write_units(item_size(reason.get("Item", {})))
        return taken
    is_billed = str(answer["__type"]).endswith("ConditionalCheckFailedException")
    return {keys[0][0]: write_units(item_size(answer.get("Item", {})))} if is_billed else {}


def _listed(reported: Any) -> list[Any]:
    return reported if isinstance(reported, list) else [reported]


def _as_asked(request: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    hidden = set()
    if request.get(_REPORT, "NONE") == "NONE":
        hidden.add("ConsumedCapacity")
    if "__type" in answer and request.get(_SHOW) != "ALL_OLD":
        hidden.add("Item")
    return {name: value for name, value in answer.items() if name not in hidden}
