"""DynamoDB, and everything that can happen on the way to it and back."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from pynamo_locking._io import requests
from pynamo_locking.testing import MemoryClient, MemoryDynamoDB
from tests.simulation.engine.faults import READS, TIMEOUTS, Fault
from tests.simulation.engine.scheduler import LATENCY_S, Dead, Landing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from pynamodb.connection import Connection

    from tests.simulation.engine.faults import Faults
    from tests.simulation.engine.scheduler import Actor, Scheduler

Image = dict[str, Any]

_REQUESTS: Final = vars(requests)


#: An eventually consistent read may show the item as it was before so many writes.
_OLDEST: Final = 3


class Place(NamedTuple):
    """An item: its table, and its key."""

    table: str
    key: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.table}/{'/'.join(map(str, self.key))}"


class Change(NamedTuple):
    """One accepted write of one item."""

    place: Place
    before: Image | None
    after: Image | None


class Request(NamedTuple):
    """A request, and on whose behalf it was made.

    Attributes:
        operation: what DynamoDB is asked for.
        kwargs: its arguments.
        actor: who asks; None before the run.
        purpose: the operation of the workload, if it is part of one.
        places: the items that it is about.
        step: the function of the lock's own requests that makes it, as ``enter`` or ``renew``; "" for any other.
    """

    operation: str
    kwargs: dict[str, Any]
    actor: Actor | None
    purpose: Any
    places: tuple[Place, ...]
    step: str

    def __str__(self) -> str:
        return f"{self.operation} {', '.join(map(str, self.places))}"


class Network(MemoryDynamoDB):
    """The in-memory DynamoDB behind a network that is not to be trusted.

    Args:
        scheduler: says who runs.
        faults: decide what happens to a request.
        pause_s: how long a paused process stands still.
    """

    def __init__(self, scheduler: Scheduler, faults: Faults, pause_s: float) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._faults = faults
        self._pause_s = pause_s
        self._clients: dict[int, FaultyClient] = {}
        self._older: dict[Place, list[Any]] = {}
        self._tokens = 0
        self.purpose_of: Callable[[Actor], Any] = lambda _: None
        self.on_changes: list[Callable[[Request, list[Change]], None]] = []
        self.on_request: list[Callable[[Request, Fault | None, Any], None]] = []

    def time_ms(self) -> int:
        """Return DynamoDB's own time."""
        return self._scheduler.time_ms()

    def client_for(self, connection: Connection) -> FaultyClient:
        """Return the client of a connection, with its number of attempts."""
        if id(connection) not in self._clients:
            self._clients[id(connection)] = FaultyClient(self, connection)
        return self._clients[id(connection)]

    def new_token(self) -> str:
        """Return a ClientRequestToken, as botocore makes one for each call."""
        self._tokens += 1
        return f"request-{self._tokens}"

    # One attempt

    def attempt(self, operation: str, kwargs: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request once, and return or raise what the client hears of it."""
        actor = self._scheduler.current
        if actor is None:
            return super().handle(operation, kwargs)
        places = self._places(operation, kwargs)
        request = Request(operation, kwargs, actor, self.purpose_of(actor), places, _step())
        self._scheduler.hand_over(request)
        fault = self._faults.at(
            operation,
            is_consistent=bool(kwargs.get("ConsistentRead")),
            may_conflict=operation not in READS,
            now=self._scheduler.now,
        )
        if fault in {Fault.CRASH_BEFORE, Fault.PAUSE_BEFORE}:
            self._heard(request, fault, None)
            self._strike(fault, actor)
        try:
            answer = self._result(request, fault)
        except Exception as error:
            self._heard(request, fault, error)
            if fault in TIMEOUTS:
                self._scheduler.block(timeout_s, f"{operation} is not answered")
            self._strike_after(fault, actor)
            raise
        self._heard(request, fault, answer)
        self._strike_after(fault, actor)
        return answer

    def _strike_after(self, fault: Fault | None, actor: Actor) -> None:
        if fault in {Fault.CRASH_AFTER, Fault.PAUSE_AFTER}:
            self._strike(fault, actor)

    def _heard(self, request: Request, fault: Fault | None, answer: Any) -> None:
        for listener in self.on_request:
            listener(request, fault, answer)

    def _strike(self, fault: Fault | None, actor: Actor) -> None:
        if fault in {Fault.CRASH_BEFORE, Fault.CRASH_AFTER}:
            self._scheduler.kill(actor.process)
            raise Dead
        self._scheduler.pause(self._pause_s)
        self._faults.last_at = self._scheduler.now

    def _result(self, request: Request, fault: Fault | None) -> dict[str, Any]:
        """Return what the client hears, or raise it."""
        if fault is Fault.STALE:
            return self._stale(request)
        answer: dict[str, Any] = {}
        if fault is Fault.LATE:
            copied = request._replace(kwargs=copy.deepcopy(request.kwargs))
            self._scheduler.landings.append(Landing(f"late {request.operation}", lambda: self._land(copied)))
        elif fault in _NOT_APPLIED:
            raise _NOT_APPLIED[fault](request)
        else:
            answer = self.apply(request)
        if fault is Fault.FAILED_AFTER:
            raise _failed(request)
        if fault in TIMEOUTS:
            raise ReadTimeoutError(endpoint_url="simulation")
        return answer

    def _land(self, request: Request) -> None:
        self._faults.last_at = self._scheduler.now
        try:
            answer: Any = self.apply(request)
        except ClientError as refusal:
            answer = refusal
        self._heard(request, Fault.LATE, answer)

    def _stale(self, request: Request) -> dict[str, Any]:
        [place] = request.places
        older = self._older.get(place, [])[-_OLDEST:]
        if not older:
            return self.apply(request)
        table = self._store.table(place.table)
        now, then = table.primary.get(place.key), older[-1 - self._faults.age(len(older))]
        table.replace(now, then)
        try:
            return super().handle(request.operation, request.kwargs)
        finally:
            table.replace(then, now)

    def apply(self, request: Request) -> dict[str, Any]:
        """Let DynamoDB serve a request, and tell what it changed."""
        self._scheduler.now += LATENCY_S
        places = request.places if request.operation not in READS else ()
        before = [self._record(place) for place in places]
        answer = super().handle(request.operation, request.kwargs)
        after = [self._record(place) for place in places]
        changes = list[Change]()
        for place, old, new in zip(places, before, after, strict=True):
            if old is not new:
                self._older.setdefault(place, []).append(old)
                changes.append(Change(place, old and old.item, new and new.item))
        for listener in self.on_changes:
            listener(request, changes)
        return answer

    def _record(self, place: Place) -> Any:
        return self._store.table(place.table).primary.get(place.key)

    def image(self, place: Place) -> Image | None:
        """Return an item as it is stored."""
        record = self._record(place)
        return None if record is None else record.item

    def _places(self, operation: str, kwargs: dict[str, Any]) -> tuple[Place, ...]:
        """Return which items a request is about."""
        if operation in {"TransactWriteItems", "TransactGetItems"}:
            actions = [next(iter(action.values())) for action in kwargs["TransactItems"]]
        else:
            actions = [kwargs]
        return tuple(self._places_of(actions))

    def _places_of(self, actions: list[dict[str, Any]]) -> Iterator[Place]:
        for action in actions:
            table = self._store.table(action["TableName"])
            if "Item" in action:
                yield Place(table.name, table.key_of_item(action["Item"]))
            elif "Key" in action:
                yield Place(table.name, table.key_of_request(action["Key"]))


class FaultyClient(MemoryClient):
    """A client that tries again as botocore does: after time-outs, failures and throttling."""

    def __init__(self, network: Network, connection: Connection) -> None:
        super().__init__(network)
        given: Any = connection
        retries = given._retry_configuration
        self._network = network
        self._timeout_s = given._read_timeout_seconds
        self._attempts = (
            retries["total_max_attempts"] if isinstance(retries, dict) else 1 + given._max_retry_attempts_exception
        )

    def _make_api_call(self, operation_name: str, operation_kwargs: dict[str, Any]) -> dict[str, Any]:
        if operation_name == "TransactWriteItems" and "ClientRequestToken" not in operation_kwargs:
            operation_kwargs = {**operation_kwargs, "ClientRequestToken": self._network.new_token()}
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = self._network.attempt(operation_name, operation_kwargs, self._timeout_s)
            except Exception as error:
                self._tell(operation_name, error)
                if attempt == self._attempts or not _is_repeated(error):
                    if isinstance(error, ClientError):
                        refused: Any = error.response
                        refused["ResponseMetadata"]["RetryAttempts"] = attempt - 1
                    raise
            else:
                self._tell(operation_name, answer)
                return answer

    def _tell(self, operation: str, answer: Any) -> None:
        """Emit what botocore does after each attempt."""
        response: Any = answer.response if isinstance(answer, ClientError) else answer
        heard: dict[str, Any] = {"caught_exception": answer}
        if isinstance(response, dict):
            status = response["ResponseMetadata"]["HTTPStatusCode"]
            heard = {"response": (SimpleNamespace(status_code=status, headers={}), response), "caught_exception": None}
        self.meta.events.emit(f"needs-retry.dynamodb.{operation}", **heard)


def _step() -> str:
    """Return which of the lock's own requests is being made."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_name
        if frame.f_globals is _REQUESTS and not name.startswith(("_", "<")):
            return name
        frame = frame.f_back
    return ""


def _is_repeated(error: Exception) -> bool:
    if not isinstance(error, ClientError):
        return True
    response: Any = error.response
    status = response["ResponseMetadata"]["HTTPStatusCode"]
    return bool(status >= 500 or response["Error"]["Code"] == "ThrottlingException")


def _refusal(request: Request, code: str, status: int, **details: Any) -> ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": "simulated"},
        "ResponseMetadata": {"HTTPStatusCode": status, "RetryAttempts": 0},
        **details,
    }
    return ClientError(response, request.operation)


def _failed(request: Request) -> ClientError:
    return _refusal(request, "InternalServerError", 500)


def _conflict(request: Request) -> ClientError:
    if request.operation != "TransactWriteItems":
        return _refusal(request, "TransactionConflictException", 400)
    others = len(request.kwargs["TransactItems"]) - 1
    reasons = [{"Code": "TransactionConflict", "Message": "simulated"}, *[{"Code": "None"} for _ in range(others)]]
    return _refusal(request, "TransactionCanceledException", 400, CancellationReasons=reasons)


_NOT_APPLIED: Final[dict[Any, Callable[[Request], Exception]]] = {
    Fault.THROTTLED: lambda request: _refusal(request, "ThrottlingException", 400),
    Fault.NO_CONNECTION: lambda _: ConnectTimeoutError(endpoint_url="simulation"),
    Fault.FAILED_BEFORE: _failed,
    Fault.CONFLICT: _conflict,
    Fault.LOST_REQUEST: lambda _: ReadTimeoutError(endpoint_url="simulation"),
}
