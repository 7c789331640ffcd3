"""BatchGetItem and BatchWriteItem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._expressions.refusals import invalid
from pynamo_locking._expressions.values import canonical_item, copy_of
from pynamo_locking.testing._dynamodb.capacity import Bill, read_factor
from pynamo_locking.testing._dynamodb.items import Delete, Put, read_delete, read_projection, read_put, shown, size_of
from pynamo_locking.testing._dynamodb.refusals import unfit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking.testing._dynamodb.tables import Store

_MOST_READS: Final = 100
_MOST_WRITES: Final = 25
_MOST_BYTES: Final = 16 * 1024 * 1024


def batch_get_item(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a BatchGetItem. What does not fit into 16 MB is left for another request."""
    asked: Mapping[str, Any] = request["RequestItems"]
    _check_number("BatchGetItem", sum(len(each["Keys"]) for each in asked.values()), _MOST_READS)
    bill, size = Bill(request), 0
    responses: dict[str, Any] = {}
    unprocessed: dict[str, Any] = {}
    for name, arguments in asked.items():
        projection = read_projection(arguments)
        table = store.table(name)
        keys = [table.key_of_request(key) for key in arguments["Keys"]]
        _check_distinct(keys)
        responses[name] = found = []
        for key, given in zip(keys, arguments["Keys"], strict=True):
            record = table.primary.get(key)
            size += size_of(record)
            if size > _MOST_BYTES:
                left = unprocessed.setdefault(name, {**arguments, "Keys": []})
                left["Keys"].append(copy_of(canonical_item(given)))
                continue
            bill.add_read(table.name, size_of(record), read_factor(arguments))
            if record is not None:
                found.append(shown(record, projection))
    return {"Responses": responses, "UnprocessedKeys": unprocessed, **bill.of_all()}


def batch_write_item(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a BatchWriteItem. Every write is done; there are no conditions."""
    asked: Mapping[str, Any] = request["RequestItems"]
    _check_number("BatchWriteItem", sum(map(len, asked.values())), _MOST_WRITES)
    writes = list[Put | Delete]()
    for name, actions in asked.items():
        of_table = list[Put | Delete]()
        for action in actions:
            if "PutRequest" in action:
                of_table.append(read_put(store, {"TableName": name, "Item": action["PutRequest"]["Item"]}))
            else:
                of_table.append(read_delete(store, {"TableName": name, "Key": action["DeleteRequest"]["Key"]}))
        _check_distinct([write.key for write in of_table])
        writes += of_table
    bill = Bill(request)
    for change in [write.evaluate() for write in writes]:
        bill.add(change.table.name, change.apply())
    return {"UnprocessedItems": {}, **bill.of_all()}


def _check_number(operation: str, number: int, most: int) -> None:
    if number > most:
        raise invalid(f"Too many items requested for the {operation} call")
    if number < 1:
        raise unfit("requestItems", "have length greater than or equal to 1", "{}")


def _check_distinct(keys: list[Any]) -> None:
    if len(set(keys)) < len(keys):
        raise invalid("Provided list of item keys contains duplicates")
