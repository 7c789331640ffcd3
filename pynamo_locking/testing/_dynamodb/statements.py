"""BatchExecuteStatement, as far as this package sends it: writes of single items, each with its own condition."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._expressions.refusals import Refusal, invalid
from pynamo_locking._expressions.values import copy_of
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking.testing._dynamodb.capacity import Bill
from pynamo_locking.testing._dynamodb.items import read_delete, read_put, read_update
from pynamo_locking.testing._dynamodb.refusals import CONDITION_FAILED, unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pynamo_locking.testing._dynamodb.items import Write
    from pynamo_locking.testing._dynamodb.tables import Store

_MOST: Final = 25
_QUOTED: Final = r'"[^"]*"'
_PATH: Final = rf"{_QUOTED}(?:\.{_QUOTED})*"
_UPDATE: Final = rf"UPDATE (?P<update>{_QUOTED}) (?P<changes>(?:{_QUOTED}|[^\"])+?)"
_DELETE: Final = rf"DELETE FROM (?P<delete>{_QUOTED})"  # noqa: S608 - it is read
_INSERT: Final = re.compile(rf"INSERT INTO (?P<table>{_QUOTED}) VALUE \{{(?P<item>'[^']*': \?(?:, '[^']*': \?)*)\}}")
_STATEMENT: Final = re.compile(
    rf"(?:{_UPDATE}|{_DELETE}) WHERE (?P<key>{_QUOTED} = \?(?: AND {_QUOTED} = \?)?) AND \((?P<condition>.*)\)"
    r"(?P<shown> RETURNING ALL OLD \*)?"
)
_MISSING: Final = re.compile(rf"({_PATH}) IS (NOT )?MISSING")
_NAME_OR_VALUE: Final = re.compile(rf"{_QUOTED}|\?")
_READ: Final[dict[str, Callable[..., Write]]] = {
    "PutItem": read_put,
    "UpdateItem": read_update,
    "DeleteItem": read_delete,
}


def batch_execute_statement(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a batch: each statement is applied, or not, for itself."""
    statements = request["Statements"]
    if not 1 <= len(statements) <= _MOST:
        raise unfit("statements", f"have length between 1 and {_MOST}")
    writes = [single_write(store, each) for each in statements]
    places = [_place(store, kwargs) for _, kwargs in writes]
    if len(set(places)) < len(places):
        raise invalid("Provided list of item keys contains duplicates")
    bill = Bill(request)
    return {"Responses": [_served(store, bill, *each) for each in writes], **bill.of_all()}


def _place(store: Store, kwargs: dict[str, Any]) -> tuple[str, str]:
    table, named = store.table(kwargs["TableName"]), kwargs.get("Key") or kwargs["Item"]
    return table.name, repr([named.get(name) for name in table.schema.names])


def _served(store: Store, bill: Bill, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        write = _READ[operation](store, kwargs)
        change = write.evaluate()
        bill.add(write.table.name, change.apply())
    except Refusal as refusal:
        code = refused(operation) if refusal.code == CONDITION_FAILED else "ValidationError"
        return {"Error": {"Code": code, "Message": refusal.message}}
    shown = {} if "ReturnValues" not in kwargs or change.old is None else {"Item": copy_of(change.old.item)}
    return {"TableName": kwargs["TableName"], **shown}


def refused(operation: str) -> str:
    """Return the code of a statement whose single request's condition failed."""
    return "DuplicateItem" if operation == "PutItem" else "ConditionalCheckFailed"


def single_write(store: Store, statement: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the operation and the arguments of the single request that does what a statement says.

    Raises:
        ConfigurationError: this package does not send such statements.
    """
    inserted = _INSERT.fullmatch(statement["Statement"])
    found = inserted or _STATEMENT.fullmatch(statement["Statement"])
    if found is None or statement.keys() - {"Statement", "Parameters"}:
        raise ConfigurationError(
            f"MemoryDynamoDB knows only the statements that this package sends, each with a condition on one item: "
            f"not {statement['Statement']!r}"
        )
    parameters = iter(statement["Parameters"])
    if inserted is not None:
        return _put(store, inserted, parameters)
    kwargs: dict[str, Any] = {"ExpressionAttributeNames": {}, "ExpressionAttributeValues": {}}
    table = (found["update"] or found["delete"])[1:-1]
    if found["changes"]:
        kwargs["UpdateExpression"] = _expression(found["changes"], parameters, kwargs)
    key = {name[1:-1]: next(parameters) for name in re.findall(_QUOTED, found["key"])}
    condition = _expression(found["condition"], parameters, kwargs)
    exists = f"{re.findall(_QUOTED, found['key'])[0]} IS{' NOT' if found['changes'] else ''} MISSING"
    joined = "AND" if found["changes"] else "OR"  # a DELETE of an absent item is applied, and shows none
    condition = f"{_expression(exists, parameters, kwargs)} {joined} {condition}"
    store.table(table)
    kwargs |= {"TableName": table, "Key": key, "ConditionExpression": condition}
    kwargs |= {"ReturnValues": "ALL_OLD"} if found["shown"] else {}
    return "UpdateItem" if found["changes"] else "DeleteItem", _without_nothing(kwargs)


def _put(store: Store, inserted: re.Match[str], parameters: Iterator[Any]) -> tuple[str, dict[str, Any]]:
    kwargs: dict[str, Any] = {"ExpressionAttributeNames": {}, "ExpressionAttributeValues": {}}
    kwargs["TableName"] = inserted["table"][1:-1]
    kwargs["Item"] = {name[1:-1]: next(parameters) for name in re.findall("'[^']*'", inserted["item"])}
    key = store.table(kwargs["TableName"]).schema.names[0]
    kwargs["ConditionExpression"] = _expression(f'"{key}" IS MISSING', parameters, kwargs)
    return "PutItem", _without_nothing(kwargs)


def _without_nothing(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if value != {}}


def _expression(said: str, parameters: Iterator[Any], kwargs: dict[str, Any]) -> str:
    names, values = kwargs["ExpressionAttributeNames"], kwargs["ExpressionAttributeValues"]

    def placeholder(token: re.Match[str]) -> str:
        if token[0] == "?":
            values[f":v{len(values)}"] = next(parameters)
            return f":v{len(values) - 1}"
        names[f"#n{len(names)}"] = token[0][1:-1]
        return f"#n{len(names) - 1}"

    said = _MISSING.sub(lambda each: f"attribute_{'' if each[2] else 'not_'}exists({each[1]})", said)
    return _NAME_OR_VALUE.sub(placeholder, said)
