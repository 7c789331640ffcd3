"""A DynamoDB in this process, for tests that take microseconds a request."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from weakref import WeakSet

from botocore import xform_name
from botocore.exceptions import ClientError
from botocore.hooks import HierarchicalEmitter
from pynamodb.connection.base import Connection
from typing_extensions import Self

from pynamo_locking._core.values import Refusal
from pynamo_locking._io import runtime
from pynamo_locking._locks import context, held_lock, local_queue
from pynamo_locking._transactions import group
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking_testing import _operations, _tables
from pynamo_locking_testing._tables import Store
from pynamo_locking_testing.clock import view_here

# The interface to botocore and PynamoDB.


_error_classes: dict[str, type[ClientError]] = {}


def error_class(code: str) -> type[ClientError]:
    """Return the class of the errors with this code, as ``client.exceptions`` has it."""
    return _error_classes.get(code) or _error_classes.setdefault(code, type(code, (ClientError,), {}))


def client_error(operation: str, code: str, message: str, details: Mapping[str, Any], status: int = 400) -> ClientError:
    """Return an error as botocore raises it; `details` are further parts of the response, as ``Item``."""
    error = {"Code": code, "Message": message}
    response: Any = {"Error": error, "ResponseMetadata": response_metadata(status), **details}
    return error_class(code)(response, operation)


def response_metadata(status: int) -> dict[str, Any]:
    """Return what botocore adds to every response."""
    return {"RequestId": "memory", "HTTPStatusCode": status, "HTTPHeaders": {}, "RetryAttempts": 0}


class Exceptions:
    """The exception classes of a client: ``client.exceptions.ConditionalCheckFailedException``."""

    def __getattr__(self, name: str) -> type[ClientError]:
        """Return the class of the errors with this code."""
        if name.startswith("_"):
            raise AttributeError(name)
        return ClientError if name == "ClientError" else error_class(name)


# The operations, and the arguments that they take.


_NAMES: Final = {"ExpressionAttributeNames"}
_PLACEHOLDERS: Final = {*_NAMES, "ExpressionAttributeValues"}
_REPORT: Final = {"ReturnConsumedCapacity", "ReturnItemCollectionMetrics"}
_CONDITION: Final = {"ConditionExpression", *_PLACEHOLDERS, "ReturnValuesOnConditionCheckFailure"}
_WRITE: Final = {"TableName", "ReturnValues", *_CONDITION, *_REPORT}
_PAGE: Final = {
    *("TableName", "IndexName", "Limit", "Select", "ConsistentRead", "ExclusiveStartKey"),
    *("FilterExpression", "ProjectionExpression", "ReturnConsumedCapacity", *_PLACEHOLDERS),
}

_Serve = Callable[[Store, Mapping[str, Any]], dict[str, Any]]
#: By operation, what serves it, what must be given, and what may.
_OPERATIONS: Final[dict[str, tuple[_Serve, set[str], set[str]]]] = {
    "GetItem": (
        _operations.get_item,
        {"TableName", "Key"},
        {"ConsistentRead", "ProjectionExpression", "ReturnConsumedCapacity", *_NAMES},
    ),
    "PutItem": (_operations.put_item, {"TableName", "Item"}, _WRITE),
    "UpdateItem": (_operations.update_item, {"TableName", "Key"}, {"UpdateExpression", *_WRITE}),
    "DeleteItem": (_operations.delete_item, {"TableName", "Key"}, _WRITE),
    "Query": (_operations.query, {"TableName"}, {"KeyConditionExpression", "ScanIndexForward", *_PAGE}),
    "Scan": (_operations.scan, {"TableName"}, {"Segment", "TotalSegments", *_PAGE}),
    "BatchGetItem": (_operations.batch_get_item, {"RequestItems"}, {"ReturnConsumedCapacity"}),
    "BatchWriteItem": (_operations.batch_write_item, {"RequestItems"}, _REPORT),
    "BatchExecuteStatement": (_operations.batch_execute_statement, {"Statements"}, {"ReturnConsumedCapacity"}),
    "TransactGetItems": (_operations.transact_get_items, {"TransactItems"}, {"ReturnConsumedCapacity"}),
    "TransactWriteItems": (_operations.transact_write_items, {"TransactItems"}, {"ClientRequestToken", *_REPORT}),
    "CreateTable": (
        _tables.create_table,
        {"TableName", "KeySchema", "AttributeDefinitions"},
        {
            *("LocalSecondaryIndexes", "GlobalSecondaryIndexes", "BillingMode", "ProvisionedThroughput"),
            *("Tags", "SSESpecification", "TableClass", "DeletionProtectionEnabled"),  # without effect
        },
    ),
    "DescribeTable": (_tables.describe_table, {"TableName"}, set()),
    "DeleteTable": (_tables.delete_table, {"TableName"}, set()),
    "ListTables": (_tables.list_tables, set(), {"Limit", "ExclusiveStartTableName"}),
    "UpdateTimeToLive": (_tables.update_time_to_live, {"TableName", "TimeToLiveSpecification"}, set()),
    "DescribeTimeToLive": (_tables.describe_time_to_live, {"TableName"}, set()),
}


def check_arguments(operation: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a request that the in-memory DynamoDB would not understand."""
    if operation not in _OPERATIONS:
        raise ConfigurationError(f"MemoryDynamoDB does not know the operation {operation}")
    _, required, optional = _OPERATIONS[operation]
    given = arguments.keys()
    if not required <= given:
        raise ConfigurationError(f"{operation} needs {', '.join(sorted(required - given))}")
    unknown = given - required - optional
    if unknown:
        raise ConfigurationError(f"MemoryDynamoDB does not know {', '.join(sorted(unknown))} of {operation}")


# A DynamoDB in this process, for tests that take microseconds a request.


_METHODS: Final = {xform_name(name): name for name in _OPERATIONS}

#: The database whose ``with`` block is open; there is one process-wide seam, so there is one.
_in_use: list[MemoryDynamoDB] = []


class MemoryDynamoDB:
    """An in-memory DynamoDB that replaces the real one.

    Inside its ``with`` block every PynamoDB connection of this process uses it, including those made before.

    Example::

        with MemoryDynamoDB():
            Account.create_table()
            Account("a-1").save()

    It knows tables with their indexes, the expressions of conditions, updates, filters and projections, transactions
    with their tokens, batches, pages, and DynamoDB's limits, errors and messages; the contract tests of this package
    run on it and on DynamoDB's own emulator alike. Not known: streams, backups, UpdateTable, tags, PartiQL except for
    the statements that this package sends, the parameters from before expressions (``Expected``, ``AttributesToGet``,
    ...). Asking for these raises a `ConfigurationError`.

    What differs from DynamoDB: each request sees all requests before it, so an eventually consistent read and an index
    are always up to date. No request conflicts with another, and none is throttled. Tables are created and deleted at
    once. Items with a TTL stay; DynamoDB keeps them for days, too.

    A lock that is held when the block begins has no effect inside. A lock from inside that is still held at the end of
    the block is ended without a request; a `ResourceWarning` names those with a heartbeat.

    Thread-safe: a request is atomic. The database shares no object with its callers. A process forked from this one has
    a separate copy.

    To put faults around the requests, override `handle`.

    Cost: some 10 to 100 microseconds a request, plus what PynamoDB needs itself.

    Attributes:
        exceptions: the exception classes, by their codes, as a boto3 client has them.
    """

    def __init__(self) -> None:
        self.exceptions: Exceptions = Exceptions()
        self._store = Store(self.time_ms)
        self._mutex = runtime.Runtime().mutex()  # a real one, also in a test with a virtual world
        self._client = MemoryClient(self)
        self._patch = ExitStack()

    def __enter__(self) -> Self:
        if _in_use:
            raise ConfigurationError(
                "a MemoryDynamoDB is in use already: PynamoDB's connections can go to one only. Leave its `with` "
                "block first, or use the one that is open."
            )
        self._patch.callback(_end_locks, WeakSet(runtime.living(held_lock.all_held)))
        connection: Any = Connection
        self._patch.callback(setattr, connection, "client", connection.client)
        connection.client = property(self.client_for)
        # Locks of the running code are in another database: they guard nothing here, and those from here nothing there.
        self._patch.callback(context.held_by_context.set, context.held_by_context.get())
        context.held_by_context.set({})
        self._patch.callback(setattr, local_queue, "local_queues", local_queue.local_queues)
        local_queue.local_queues = {}
        self._patch.callback(setattr, group, "under_way", group.under_way)
        group.under_way = {}
        _in_use.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _in_use.clear()
        self._patch.close()

    def handle(self, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Serve a request. Every request of every client goes through here, so this is the place for faults.

        Args:
            operation: the operation, as ``UpdateItem``.
            kwargs: its arguments, as boto3 takes them.

        Returns:
            The response, as boto3 gives it.

        Raises:
            ClientError: of botocore; DynamoDB would refuse the request.
            ConfigurationError: the operation or an argument is not known here.
        """
        check_arguments(operation, kwargs)
        try:
            with self._mutex:
                response = _OPERATIONS[operation][0](self._store, kwargs)
        except Refusal as refusal:
            raise client_error(operation, refusal.code, refusal.message, refusal.details) from None
        response["ResponseMetadata"] = response_metadata(200)
        return response

    def time_ms(self) -> int:
        """Return the database's own time in ms since the epoch: the age of tables and of tokens."""
        view = view_here()
        skew_ms = 0 if view is None else view.skew_ms  # the caller's, not ours
        return runtime.current.time_ms() - skew_ms

    def client(self) -> MemoryClient:
        """Return a low-level client, as ``boto3.client("dynamodb")`` makes one."""
        return self._client

    def client_for(self, connection: Connection) -> MemoryClient:  # noqa: ARG002 - for subclasses
        """Return the client that a PynamoDB connection uses inside the ``with`` block.

        Override it to tell connections apart, by their retries for example.
        """
        return self._client


def _end_locks(before: WeakSet[held_lock.HeldEntry]) -> None:
    """End the locks that have been acquired since."""
    held = [each for each in runtime.living(held_lock.all_held) if each not in before and not each.ownership.is_over]
    renewed = sorted({each.row.label for each in held if each.clock.has_heartbeat and each.ownership.is_held})
    for each in held:
        each.orphaned()
    if renewed:
        warnings.warn(
            f"the block of a MemoryDynamoDB was left while locks of it were held: {', '.join(renewed)}. They are ended "
            f"now. Release them in the block.",
            ResourceWarning,
            stacklevel=4,
        )


class MemoryClient:
    """A low-level client: ``get_item(**kwargs)`` and so on, for each operation of `MemoryDynamoDB`.

    Args:
        database: where the requests go.

    Attributes:
        exceptions: the exception classes, by their codes.
        meta: as much of a boto3 client's as PynamoDB and this package use; ``meta.events`` is botocore's own.
    """

    def __init__(self, database: MemoryDynamoDB) -> None:
        self.exceptions: Exceptions = database.exceptions
        #: None of botocore's events is raised by this client itself; a test that plays botocore's retries can.
        self.meta: Any = SimpleNamespace(
            endpoint_url="memory://dynamodb", region_name="memory", events=HierarchicalEmitter()
        )
        self._database = database

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        """Return the method of an operation."""
        if name not in _METHODS:
            raise AttributeError(f"MemoryDynamoDB has no {name!r}")
        return partial(self._call, _METHODS[name])

    def _call(self, operation: str, **kwargs: Any) -> dict[str, Any]:
        return self._make_api_call(operation, kwargs)

    def _make_api_call(self, operation_name: str, operation_kwargs: dict[str, Any]) -> dict[str, Any]:
        return self._database.handle(operation_name, operation_kwargs)

    def close(self) -> None:
        """Do nothing: there are no sockets."""


# If a process forks in the middle of another thread's request, the child's database would stay locked for ever.


def _pause_requests() -> None:
    for database in _in_use:
        database._mutex.acquire()


def _end_pause_of_requests() -> None:
    for database in _in_use:
        database._mutex.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_pause_requests, after_in_parent=_end_pause_of_requests, after_in_child=_end_pause_of_requests
    )
