"""Many items in one request: reads (TransactGetItems, BatchGetItem), and conditional writes in PartiQL.

DynamoDB applies each statement, or not, as it would the single request from which it is made. A batch has no token. So
only a write of which a second copy does no harm may be sent in one, and whatever was not applied is sent alone, which
also finds out why.
"""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import dynamodb
from pynamo_locking._core.dynamodb import CANCELLED, FAILED, INVALID, PASSING, RetryPolicy, RetryState
from pynamo_locking._core.lease import PATIENCE_S, Deadline, backoff
from pynamo_locking._core.values import item_size
from pynamo_locking._io import client, responses, runtime
from pynamo_locking._io.client import is_sent_again
from pynamo_locking._io.model_doors import endpoint_to
from pynamo_locking._io.runtime import logger
from pynamo_locking._pynamodb import access_key_of, connection_of
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from pynamodb.connection import Connection
    from pynamodb.models import Model

    from pynamo_locking._io.stored_rows import Image


#: Codes with which a read of more than 4 MB is refused.
_TOO_LARGE: Final = frozenset({INVALID, CANCELLED})


class TooLarge(Exception):  # noqa: N818 - an answer, not an error
    """DynamoDB refuses to read these items together, as it does if they have more than 4 MB."""

    def __init__(self, error: TransactWriteError) -> None:
        super().__init__(str(error))
        self.error = error


def transact_get(connection: Connection, gets: Sequence[dict[str, Any]]) -> list[Image | None]:
    """Return stored items as they were at one moment, up to a hundred.

    Raises:
        TooLarge: the request is refused as it is.
        TransactionConflict: other transactions kept the items busy.
        TransactWriteError: DynamoDB refused the request for another reason.
    """
    sending = RetryState(RetryPolicy(repeats=0))
    while True:
        try:
            answer: dict[str, Any] = client.dispatch(connection, "TransactGetItems", {"TransactItems": gets})
        except responses.BOTOCORE_EXCEPTIONS as error:
            if is_sent_again(sending, responses.answer_in(error)):
                continue
            if responses.answer_in(error, is_single=True) in PASSING:
                raise also(TransactionConflict, TransactWriteError)(
                    f"other transactions or a limit held up this one; nothing was written, and it can be tried "
                    f"again: {error}",
                    cause=error,
                ) from error
            failure = TransactWriteError(f"Failed to read transaction items: {error}", responses.readable(error))
            if responses.code_of(error) in _TOO_LARGE:
                raise TooLarge(failure) from error
            raise failure from error
        return [each.get("Item") for each in answer["Responses"]]


def settle(model: type[Model], keys: Sequence[Image]) -> None:
    """Return once DynamoDB has applied all native transactions that were decided before to these items.

    DynamoDB decides a native transaction at one moment, and applies it item by item. Until it has applied it to an
    item, a plain read (consistent or not) and a query show that item as it was before, although another item of the
    same transaction is already new. Until then it refuses a transactional read. The values that were read are not used.

    Raises:
        TransactionConflict: other transactions kept the items busy.
        TransactWriteError: DynamoDB refused the request for another reason.
    """
    connection = connection_of(model)
    get = {
        "TableName": connection.table_name,
        "ProjectionExpression": "#key",
        "ExpressionAttributeNames": {"#key": next(iter(keys[0]))} if keys else {},
    }
    gets = [{"Get": {**get, "Key": key}} for key in keys]
    for start in range(0, len(gets), dynamodb.MOST_ACTIONS):
        _settle_some(connection.connection, gets[start : start + dynamodb.MOST_ACTIONS])


def _settle_some(connection: Connection, gets: list[dict[str, Any]]) -> None:
    try:
        transact_get(connection, gets)
    except TooLarge as refused:
        if len(gets) == 1:
            raise refused.error from refused
        half = len(gets) // 2  # DynamoDB counts 4 MB before it applies the projection
        _settle_some(connection, gets[:half])
        _settle_some(connection, gets[half:])


def get_batch(
    ask: Callable[[Connection, str, dict[str, Any]], dict[str, Any]],
    connection: Connection,
    table: str,
    keys: Sequence[Image],
    deadline: Deadline | None = None,
    **how: Any,
) -> list[Image]:
    """Return the stored items of up to a hundred different keys, in any order; each is read for itself, consistently.

    Keys that DynamoDB has left out, since it was busy or the answer had 16 MB, are asked for again: until the
    deadline if an answer brings nothing, and always if it brings some. `how` they are read is a
    projection. What `ask` raises is raised.
    """
    found: list[Image] = []
    repeats, end = 0, deadline or Deadline(runtime.current.monotonic() + PATIENCE_S)
    while keys:
        asked = {table: {"Keys": keys, "ConsistentRead": True, **how}}
        answer = ask(connection, "BatchGetItem", {"RequestItems": asked})
        found += [image for images in answer["Responses"].values() for image in images]
        count, keys = len(keys), [key for left in answer.get("UnprocessedKeys", {}).values() for key in left["Keys"]]
        if len(keys) == count and runtime.current.monotonic() >= end.at:
            why = f"DynamoDB had no time for {count} items of {table} until the wait was over; a retry is safe"
            raise responses.throttled(why, table)
        if keys and repeats:
            runtime.current.sleep(backoff(repeats, runtime.current.jitter()))
        repeats += 1
    return found


# Conditional writes of single items, up to 25 in one request: statements in PartiQL, each answered for itself.


#: The longest statement, in characters.
_LONGEST: Final = 8192

#: With more bytes of values a write is sent alone, so that a batch has at most 1 MB.
LARGEST_BYTES: Final = 40_000

#: DynamoDB's codes where the caller may send no statements, for a request and for a statement.
_DENIED: Final = frozenset({"AccessDeniedException", "AccessDenied"})

#: The code of an engine that knows no such operation.
_NO_OPERATION: Final = "UnknownOperationException"

#: What an engine says of a statement that it does not know. The code is that of any value that cannot be stored.
_MALFORMED: Final = "wasn't well formed"

#: For so long no batch is sent where statements are refused, in seconds: a permission may be given meanwhile.
_OFF_S: Final = 300.0

#: What DynamoDB says of a statement that it may apply later.
_BUSY: Final = dynamodb.THROTTLING | {"TransactionConflict"}

#: The end of a statement whose answer shows the deleted item: without it, a DELETE of nothing looks applied.
_SHOWN: Final = " RETURNING ALL OLD *"

#: The tables for which an engine has refused statements, with its place: until when none are sent, on our clock.
_off_until_s: dict[Hashable, float] = {}


class StatementResult(Enum):
    """What became of a write in a batch."""

    APPLIED = "applied"
    NOT_APPLIED = "not applied: the same write, sent alone, shows why"
    BUSY = "not applied for now"
    UNKNOWN = "perhaps applied: no answer came"


class StatementWrite(NamedTuple):
    """A conditional UpdateItem or DeleteItem, as it would be sent alone; or a PutItem of a new item.

    A PutItem is refused wherever there is an item, whatever its condition. So it must hold where there is none.
    """

    connection: Connection
    operation: str
    kwargs: dict[str, Any]


def are_used(connection: Connection, table: str) -> bool:
    """Tell whether several writes of that table are sent in one request."""
    off_until_s = _off_until_s.get(_place(connection, table), -math.inf)
    return dynamodb.MOST_STATEMENTS > 1 and runtime.current.monotonic() >= off_until_s


def _place(connection: Connection, table: str) -> Hashable:
    return endpoint_to(connection, access_key_of(connection)), table


def send(writes: Sequence[StatementWrite | None]) -> list[StatementResult]:
    """Send up to 25 writes of one table in one request, and return what became of each.

    What cannot be said in a statement is not sent, nor is None, nor a single write. Never raises for what DynamoDB, or
    the way to it, does: the single request will.
    """
    made = [
        None if write is None or not are_used(write.connection, write.kwargs["TableName"]) else _statement(write)
        for write in writes
    ]
    results = [StatementResult.NOT_APPLIED] * len(writes)
    sent = [i for i, statement in enumerate(made) if statement is not None]
    if len(sent) > 1:
        [first, *_] = [writes[i] for i in sent]
        assert first is not None  # noqa: S101 - it has a statement
        for i, result in zip(sent, _send_together(first, [made[i] for i in sent]), strict=True):
            results[i] = result
    return results


def _send_together(first: StatementWrite, batch: list[Any]) -> list[StatementResult]:
    try:
        answer = client.dispatch(first.connection, "BatchExecuteStatement", {"Statements": batch})
    except Exception as error:  # noqa: BLE001 - the single requests will show what is wrong with a value, or a token
        _note_refusals(first, [{"Code": responses.code_of(error), "Message": responses.message_of(error)}])
        return [_result_of_all(error)] * len(batch)
    errors = [each.get("Error") for each in answer["Responses"]]
    _note_refusals(first, errors)
    return [_result(statement, each) for statement, each in zip(batch, answer["Responses"], strict=True)]


def _result_of_all(error: Exception) -> StatementResult:
    if responses.is_ambiguous(error):
        return StatementResult.UNKNOWN
    return StatementResult.BUSY if responses.answer_in(error) in PASSING else StatementResult.NOT_APPLIED


def _result(statement: dict[str, Any], response: dict[str, Any]) -> StatementResult:
    error = response.get("Error")
    if error is None:
        has_deleted_nothing = statement["Statement"].endswith(_SHOWN) and "Item" not in response
        return StatementResult.NOT_APPLIED if has_deleted_nothing else StatementResult.APPLIED
    if error.get("Code") == FAILED:
        return StatementResult.UNKNOWN
    return StatementResult.BUSY if error.get("Code") in _BUSY else StatementResult.NOT_APPLIED


def _note_refusals(write: StatementWrite, errors: Sequence[dict[str, Any] | None]) -> None:
    """Send the writes of a table one by one for a while, if none of these can ever be sent in a statement."""
    refusals = [_refusal(error) for error in errors]
    if not all(refusals):
        return
    table = write.kwargs["TableName"]
    _off_until_s[_place(write.connection, table)] = runtime.current.monotonic() + _OFF_S
    logger.warning("for %d s writes of %s are sent one by one, since %s", _OFF_S, table, refusals[0])


def _refusal(error: dict[str, Any] | None) -> str:
    """Say why no such statement can be sent; empty if this one was applied, or refused for its values, or for now."""
    if error is None:
        return ""
    code, message = str(error.get("Code")), str(error.get("Message"))
    if code in _DENIED:
        return (
            "batches of statements need the permissions dynamodb:PartiQLInsert, dynamodb:PartiQLUpdate and "
            f"dynamodb:PartiQLDelete: {message}"
        )
    if code == _NO_OPERATION or _MALFORMED in message:
        return f"this DynamoDB knows no such statements: {message}"
    return ""


class _NoStatement(Exception):  # noqa: N818 - an answer, not an error
    """The write has something that is not written as a statement here."""


_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
_PATH: Final = r"#\w+(?:\.#\w+)*"
_TOKEN: Final = re.compile(
    rf"\s*(?:attribute_(?P<not>not_)?exists\s*\(\s*(?P<of>{_PATH})\s*\)|(?P<path>{_PATH})|(?P<value>:\w+)"
    r"|(?P<plain>AND\b|OR\b|NOT\b|SET\b|REMOVE\b|<>|<=|>=|[=<>(),]))"
)


def _statement(write: StatementWrite) -> dict[str, Any] | None:
    parameters = list[Any]()
    try:
        text = (_insert if write.operation == "PutItem" else _change)(write.kwargs, parameters)
    except _NoStatement:
        return None
    if len(text) > _LONGEST or item_size({str(i): value for i, value in enumerate(parameters)}) > LARGEST_BYTES:
        return None
    return {"Statement": text, "Parameters": parameters}


def _insert(kwargs: dict[str, Any], parameters: list[Any]) -> str:
    parameters += kwargs["Item"].values()
    values = ", ".join(f"'{_plain(name)}': ?" for name in kwargs["Item"])
    return f"INSERT INTO {_quoted(kwargs['TableName'])} VALUE {{{values}}}"


def _change(kwargs: dict[str, Any], parameters: list[Any]) -> str:
    table, changes = _quoted(kwargs["TableName"]), _in_partiql(kwargs.get("UpdateExpression", ""), kwargs, parameters)
    parameters += kwargs["Key"].values()
    found = " AND ".join(f"{_quoted(name)} = ?" for name in kwargs["Key"])
    condition = _in_partiql(kwargs["ConditionExpression"], kwargs, parameters)
    verb = f"UPDATE {table} {changes}" if changes else f"DELETE FROM {table}"  # noqa: S608 - quoted
    return f"{verb} WHERE {found} AND ({condition}){_SHOWN if 'ReturnValues' in kwargs else ''}"


def _in_partiql(expression: str, kwargs: dict[str, Any], parameters: list[Any]) -> str:
    """Return an expression in PartiQL, and add its values to the parameters, in their order."""
    names, values = kwargs["ExpressionAttributeNames"], kwargs.get("ExpressionAttributeValues", {})
    parts, position = list[str](), 0
    while position < len(expression.rstrip()):
        token = _TOKEN.match(expression, position)
        if token is None:
            raise _NoStatement
        position = token.end()
        if token["plain"] == "," and "REMOVE" in parts:  # DynamoDB wants a clause for each, dynoxide takes one clause
            raise _NoStatement
        if token["value"]:
            parameters.append(values[token["value"]])
            parts.append("?")
        elif token["of"]:
            parts.append(f"{_path(token['of'], names)} IS {'' if token['not'] else 'NOT '}MISSING")
        else:
            parts.append(_path(token["path"], names) if token["path"] else token["plain"])
    return " ".join(parts)


def _path(path: str, names: dict[str, str]) -> str:
    return ".".join(_quoted(names[name]) for name in path.split("."))


def _quoted(name: str) -> str:
    return f'"{_plain(name)}"'


def _plain(name: str) -> str:
    if _PLAIN.fullmatch(name) is None:  # dynoxide takes a quoted "a.b" for a path
        raise _NoStatement
    return name


def batches(places: Iterable[tuple[Connection, str] | None]) -> list[list[int]]:
    """Return which of some writes are sent together, by their places; None is one that is sent alone."""
    together: list[list[int]] = []
    open_batches: dict[Hashable, list[int]] = {}
    for i, place in enumerate(places):
        group = None if place is None or not are_used(*place) else (id(place[0]), place[1])
        batch = [] if group is None else open_batches.get(group, [])
        if not batch or len(batch) >= dynamodb.MOST_STATEMENTS:
            batch = []
            together.append(batch)
            if group is not None:
                open_batches[group] = batch
        batch.append(i)
    return together
