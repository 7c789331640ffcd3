"""What happens to an application only now and then, made to happen in a test, on any engine.

Requests are seen where PynamoDB sends them. So it makes no difference whether they go to a `MemoryDynamoDB`, to moto,
to DynamoDB Local or to AWS; requests of boto3 clients are not seen.
"""

from __future__ import annotations

import contextvars
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from botocore.exceptions import ClientError, ConnectionClosedError
from pynamodb.connection.base import Connection
from pynamodb.exceptions import DoesNotExist
from pynamodb.models import Model

from pynamo_locking._core.dynamodb import INVALID
from pynamo_locking._io import lock_record, runtime
from pynamo_locking._io.client import actions_of
from pynamo_locking._items.keys import key_of
from pynamo_locking._locks import held_lock, inspection
from pynamo_locking._locks.lock import Lock, handle_of
from pynamo_locking._pynamodb import new_item, ttl_attribute_of
from pynamo_locking.exceptions import ConfigurationError, LockLost
from pynamo_locking_testing._engine.partitions import REFUSED, throttling_reason
from pynamo_locking_testing._expressions import Expressions
from pynamo_locking_testing.memory import client_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_M = TypeVar("_M", bound=Model)
_T = TypeVar("_T")

#: What a strong global table does not have, and what may conflict with a write of another Region there.
_NOT_THERE: Final = frozenset({"TransactWriteItems", "TransactGetItems", "UpdateTimeToLive"})
_WRITES: Final = frozenset({"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"})

#: A limit of a table or an index, as DynamoDB's reasons for throttling name it.
ThrottlingLimit: TypeAlias = Literal[
    "AccountLimitExceeded",
    "KeyRangeThroughputExceeded",
    "MaxOnDemandThroughputExceeded",
    "ProvisionedThroughputExceeded",
]

#: Whether the requests of this context are those of a fault itself.
_is_fault: Final = contextvars.ContextVar("pynamo_locking_is_fault", default=False)


class FaultCount:
    """What a fault has done.

    Attributes:
        count: how many times it has struck.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self._mutex = runtime.current.exclusive()

    def _is_due(self, is_meant: Callable[[], bool], most: int | None) -> bool:
        """Count a request that the fault is to strike, which it does so many times; tell whether it is one."""
        with self._mutex:
            is_hit = (most is None or self.count < most) and is_meant()
            self.count += is_hit
        return is_hit


@contextmanager
def concurrent_write(
    model: type[_M],
    hash_key: Any,
    range_key: Any = None,
    *,
    by: Callable[[_M], object] | None = None,
    times: int = 1,
) -> Iterator[FaultCount]:
    """Let another writer change an item just before the block's next write of it.

    Example::

        with concurrent_write(Account, "a-1"):
            pay_in("a-1", 30)  # must try again

    It is a real conflict: the other writer reads the item and writes it, and DynamoDB finds out. It holds none of the
    application's locks and takes no part in its transaction. What counts as a write is whatever changes the item, alone
    or in a batch or transaction, and the check of a transaction that it is as it was read; a request for its lock does
    not count.

    Args:
        model: of the item.
        hash_key: of the item.
        range_key: of the item.
        by: what the other writer does; it is called with the item as it is stored then, or with a new one that has its
            keys if there is none. Without it, it saves the item as it is, which gives it another version. So pass
            ``by=lambda account: account.update([Account.balance.set(0)])`` for a model without a version, or
            ``by=Account.delete``.
        times: before how many writes, one after the other. Once, unless set.

    Yields:
        The number of writes so far.

    Raises:
        AssertionError: when the block ends: it did not write the item, or the other writer was refused, as it is where
            the application holds the item's lock. A retry of `modify` and `transactional` holds it, unless their `wait`
            is 0. An error of the block takes precedence.

    Cost: 1 read and 1 write for each time.
    """
    is_write = _writes_of(model, hash_key, range_key)
    strikes, failures = FaultCount(), list[Exception]()

    def write() -> None:
        try:
            item = model.get(hash_key, range_key, consistent_read=True)
        except DoesNotExist:
            item = new_item(model, hash_key, range_key)
        if by is None:
            item.save()
        else:
            by(item)

    def see(operation: str, kwargs: dict[str, Any], send: Callable[[], Any]) -> Any:
        if strikes._is_due(lambda: is_write(operation, kwargs), times):
            try:
                _in_another_process(write)
            except Exception as error:  # noqa: BLE001 - raised when the block ends, and not in the application
                failures.append(error)
        return send()

    name = f"{model.__name__} {hash_key!r}" + ("" if range_key is None else f" {range_key!r}")
    with _requests_seen(see):
        yield strikes
    if failures:
        raise AssertionError(
            f"there was no conflict: the other writer of {name} was refused. Where the application holds its lock "
            f"there is none; use lose_lock() for the loss of a lock. {failures[0]}"
        ) from failures[0]
    if not strikes.count:
        raise AssertionError(f"there was no conflict: the block did not write {name}.")


@contextmanager
def lost_responses(
    model: type[Model], hash_key: Any, range_key: Any = None, *, times: int | None = None, is_applied: bool = True
) -> Iterator[FaultCount]:
    """Lose all responses, from the block's next write of an item on.

    Example::

        with lost_responses(Account, "a-1"), pytest.raises(OutcomeUnknown):
            pay_in("a-1", 30)

    DynamoDB executes the request; the connection breaks before its response. With ``times=1`` one response is lost, and
    this package finds out whether the write was applied: a test shows that the application notices nothing.

    Args:
        model: of the item.
        hash_key: of the item.
        range_key: of the item.
        times: how many requests get no response, the write included, whatever they are about. All until the end of the
            block, unless set.
        is_applied: False if the requests do not even reach DynamoDB.

    Yields:
        What has happened so far.

    Raises:
        AssertionError: when the block ends: it did not write the item. An error of the block takes precedence.
    """
    is_write = _writes_of(model, hash_key, range_key)
    strikes = FaultCount()

    def see(operation: str, kwargs: dict[str, Any], send: Callable[[], Any]) -> Any:
        if not strikes._is_due(lambda: strikes.count > 0 or is_write(operation, kwargs), times):
            return send()
        if is_applied:
            with suppress(ClientError):
                send()
        raise ConnectionClosedError(endpoint_url="of a test")

    with _requests_seen(see):
        yield strikes
    if not strikes.count:
        raise AssertionError(f"no response was lost: the block did not write {model.__name__} {hash_key!r}.")


@contextmanager
def throttled(
    model: type[Model],
    *,
    times: int | None = None,
    limit: ThrottlingLimit = "ProvisionedThroughputExceeded",
    index: str | None = None,
) -> Iterator[FaultCount]:
    """Let DynamoDB throttle the requests to a model's table.

    It is the refusal that comes after botocore's own attempts, always as a ``ProvisionedThroughputExceededException``.
    Its reason is made of `index`, the request and `limit`, as ``"TableWriteProvisionedThroughputExceeded"``.

    Args:
        model: whose table.
        times: how many requests are refused. All until the end of the block, unless set.
        limit: which limit is reached.
        index: the name of the throttled index. The table itself, unless set.

    Yields:
        What has happened so far.
    """
    table, strikes = _table_of(model), FaultCount()

    def see(operation: str, kwargs: dict[str, Any], send: Callable[[], Any]) -> Any:
        if strikes._is_due(lambda: table in _tables(kwargs), times):
            reason = throttling_reason(operation, limit, table, index)
            raise client_error(operation, REFUSED, "throttled by a test", {"ThrottlingReasons": [reason]})
        return send()

    with _requests_seen(see):
        yield strikes


@contextmanager
def strong_global_table(model: type[Model], *, conflicts: int = 0) -> Iterator[FaultCount]:
    """Let a model's table answer as a global table with strong consistency between Regions does.

    Example::

        with strong_global_table(Account, conflicts=2):
            pay_in("a-1", 30)  # two writes of other Regions were in the way

    It has no transactions and no TTL: such requests are refused. The text of DynamoDB's error is not known here.

    Args:
        model: whose table.
        conflicts: how many writes, the first ones of the block, are refused with `ReplicatedWriteConflictException`: a
            write of another Region is at work on the item. It is the refusal after botocore's own attempts. Statements
            in batches are not refused.

    Yields:
        How many writes have been refused so far.
    """
    table, strikes = _table_of(model), FaultCount()

    def see(operation: str, kwargs: dict[str, Any], send: Callable[[], Any]) -> Any:
        if table not in _tables(kwargs):
            return send()
        if operation in _NOT_THERE:
            message = f"{operation} is not supported on global tables with multi-Region strong consistency"
            raise client_error(operation, INVALID, message, {})
        if strikes._is_due(lambda: operation in _WRITES, conflicts):
            code, message = "ReplicatedWriteConflictException", "refused by a test: a write of another Region has it"
            raise client_error(operation, code, message, {})
        answer = send()
        if operation == "DescribeTable":
            regions = ("us-east-1", "us-east-2", "us-west-2")
            replicas = [{"RegionName": region, "ReplicaStatus": "ACTIVE"} for region in regions]
            answer["Table"] |= {"Replicas": replicas, "MultiRegionConsistency": "STRONG"}
        return answer

    with _requests_seen(see):
        yield strikes


@contextmanager
def held_by_other(lock: Lock[_M]) -> Iterator[Lock[_M]]:
    """Hold a lock as another process while the block runs.

    Example::

        with held_by_other(Account.locked("a-1", owner="another host")):
            with pytest.raises(LockTimeout):
                Account.locked("a-1", wait=0).acquire()

    Callers in the block wait for it as for any holder. It is renewed by a heartbeat, unless the lock says otherwise. If
    it is lost, by `lose_lock` or because a lease without heartbeat has ended, no error is raised here.

    Args:
        lock: a lock that is not acquired, as `locked` makes it: of an item, a name or a range; shared, or permits.

    Yields:
        The lock.

    Raises:
        LockTimeout: it could not be acquired.
    """
    context = contextvars.Context()
    context.run(lock.acquire)
    try:
        yield lock
    finally:
        with suppress(LockLost):
            context.run(lock.release)


def lose_lock(lock: Lock[Any] | type[Model], hash_key: Any = None, range_key: Any = None) -> None:
    """Let the holders of a lock lose it now, as if an operator had broken it.

    Their entries are removed from the queue. Holders in this process are notified at once: ``lost`` is set, ``on_lost``
    is called, and writes under the lock are refused with `LockLost`. Holders in other processes find out with their
    next renewal or write.

    To lose a lock that the application acquires and releases itself, call this from a mock of something that it calls
    meanwhile; or just before its write: ``concurrent_write(Account, "a-1", by=lambda _: lose_lock(Account, "a-1"))``.

    Args:
        lock: the lock, acquired; or the model of what is locked.
        hash_key: with a model; the name, with a `NamedLock`.
        range_key: with a model.

    Raises:
        ConfigurationError: nobody holds the lock.

    Cost: 1 read; 1 read and 1 write for each holder, and 1 write for each that is in this process.
    """
    keys = [key for key in (hash_key, range_key) if key is not None]
    found: Any = lock if isinstance(lock, Lock) else lock.locked(*keys)  # type: ignore[attr-defined]
    row = handle_of(found).target.row
    holders = inspection.state(row).holders
    if not holders:
        raise ConfigurationError(f"nobody holds {row.label}, so nobody can lose it.")
    for entry in holders:
        _in_another_process(partial(inspection.break_entry, row, entry.ticket))
    lost = {entry.id for entry in holders}
    for each in runtime.living(held_lock.all_held):
        if each.entry.id in lost:
            with suppress(LockLost):
                _in_another_process(each.renew)


class _Seen:
    """A connection whose requests a function sees."""

    def __init__(self, connection: Connection, see: Callable[..., Any]) -> None:
        def make(operation: str, kwargs: dict[str, Any]) -> Any:
            return see(operation, kwargs, partial(connection.client._make_api_call, operation, kwargs))

        self._connection = connection
        self.client = SimpleNamespace(_make_api_call=make)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@contextmanager
def _requests_seen(see: Callable[[str, dict[str, Any], Callable[[], Any]], Any]) -> Iterator[None]:
    """Let a function see all requests of PynamoDB, and send them, but for those of faults themselves."""
    connection: Any = Connection
    original = connection._make_api_call

    def make(self: Connection, operation: str, kwargs: dict[str, Any]) -> Any:
        return original(self if _is_fault.get() else _Seen(self, see), operation, kwargs)

    connection._make_api_call = make
    try:
        yield
    finally:
        connection._make_api_call = original


def _in_another_process(call: Callable[[], _T]) -> _T:
    """Do what another process does: it holds no lock of this context, and no fault strikes it."""

    def run() -> _T:
        _is_fault.set(True)
        return call()

    return contextvars.Context().run(run)


def _writes_of(model: type[Model], hash_key: Any, range_key: Any) -> Callable[[str, dict[str, Any]], bool]:
    """Return a function that tells whether a request writes an item."""
    key, table = key_of(model, hash_key, range_key), model.Meta.table_name
    own = _of_the_lock(model)

    def is_write_of_item(kwargs: dict[str, Any]) -> bool:
        if kwargs.get("TableName") != table:
            return False
        named = kwargs.get("Key") or kwargs.get("Item", {})
        if any(named.get(name) != value for name, value in key.items()):
            return False
        update = Expressions(kwargs, "UpdateExpression", "ConditionExpression").update()
        if not own or update is None:
            return True
        # A request for the lock changes nothing else of the item. The intent of a transaction is in the lock as well.
        values = kwargs.get("ExpressionAttributeValues", {}).values()
        is_intent = any(lock_record.TX in value.get("M", ()) for value in values)
        return is_intent or any(path[0] not in own for path in update.paths)

    def is_write(operation: str, kwargs: dict[str, Any]) -> bool:
        if operation in ("PutItem", "UpdateItem", "DeleteItem"):
            return is_write_of_item(kwargs)
        if operation == "TransactWriteItems":
            return any(is_write_of_item(action) for each in kwargs["TransactItems"] for action in each.values())
        if operation == "BatchWriteItem":
            requests = [request for each in kwargs["RequestItems"].get(table, ()) for request in each.values()]
            return any(is_write_of_item({"TableName": table, **request}) for request in requests)
        if operation == "BatchExecuteStatement":
            return any(
                f'"{table}"' in each["Statement"] and all(value in each["Parameters"] for value in key.values())
                for each in kwargs["Statements"]
            )
        return False

    return is_write


def _of_the_lock(model: Any) -> set[str]:
    """Return the attributes that requests for the lock of an item change."""
    lock = getattr(model, "_lock_attribute", lambda: None)()
    if lock is None:
        return set()
    is_only_lock = getattr(model, "_lock_creates_item", False)  # the row says until when it is kept
    return {lock.attr_name} | ({lock_record.LEASE_ENDS, ttl_attribute_of(model).attr_name} if is_only_lock else set())


def _table_of(model: type[Model]) -> str:
    return str(model.Meta.table_name).rpartition(":table/")[2]  # without its ARN


def _tables(kwargs: dict[str, Any]) -> set[str]:
    return {action["TableName"] for action in actions_of(kwargs)}
