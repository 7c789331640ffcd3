"""Lose DynamoDB requests and responses on purpose, and count them.

The seam is botocore's ``Endpoint._do_get_response``: one call is one HTTP attempt, inside botocore's own
retry loop, and moto's answers pass through it too. It is replaced for all clients of the process, also
those made earlier, while one of these is open:

    with lost_responses("UpdateItem"):                     # applied, but the caller never hears of it
    with lost_requests("PutItem", times=2):                # never reaches the engine
    with doubled("UpdateItem"):                            # applied twice; the caller hears of the second only
    with count_requests() as counted: ...; counted.total
    with intercepted(answer):                              # PynamoDB's requests, with all attempts of botocore
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from unittest import mock

import botocore.endpoint
from botocore.exceptions import ConnectionClosedError
from pynamodb.connection import Connection, TableConnection

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest

T = TypeVar("T")

#: What is sent, as decoded JSON.
Body = dict[str, Any]
#: What ``_do_get_response`` returns: ((response, parsed), None) or (None, exception).
Answer = tuple[Any, Exception | None]
Forward = Callable[[], Answer]


class Fault(Enum):
    """What can happen to a request on its way."""

    LOST_REQUEST = "closed before it was forwarded"
    LOST_RESPONSE = "served, and closed without an answer"
    CUT_RESPONSE = "served, and closed in the middle of the answer"
    STALLED_REQUEST = "not forwarded, and silence until the client hangs up"
    STALLED_RESPONSE = "served, and silence until the client hangs up"
    RESET_BEFORE = "connection reset before it was forwarded"
    RESET_AFTER = "served, and connection reset"
    DUPLICATED = "served and answered, and a second copy arrives later"
    DOUBLED = "served twice, and answered by the second answer"
    LATE = "closed, and the request arrives later"
    THROTTLED = "not forwarded: 400 ThrottlingException"
    FAILED_BEFORE = "not forwarded: 500 InternalServerError"
    FAILED_AFTER = "served, and answered by 500 InternalServerError"
    UNAVAILABLE_BEFORE = "not forwarded: 503 of something that is not DynamoDB"
    UNAVAILABLE_AFTER = "served, and answered by 503 of something that is not DynamoDB"

    @property
    def is_slow(self) -> bool:
        """Whether the client needs its whole read timeout to notice."""
        return self in {Fault.STALLED_REQUEST, Fault.STALLED_RESPONSE}

    @property
    def reaches_engine(self) -> bool:
        """Whether the engine serves the spoilt request, at once or later."""
        return self not in _NOT_FORWARDED or self is Fault.LATE

    @property
    def arrives_later(self) -> bool:
        """Whether a copy is kept, to be forwarded later."""
        return self in {Fault.DUPLICATED, Fault.LATE}


#: Whose request does not go to the engine at once.
_NOT_FORWARDED: Final = frozenset(
    {
        Fault.LOST_REQUEST,
        Fault.STALLED_REQUEST,
        Fault.RESET_BEFORE,
        Fault.LATE,
        Fault.THROTTLED,
        Fault.FAILED_BEFORE,
        Fault.UNAVAILABLE_BEFORE,
    }
)


def serve(
    fault: Fault | None,
    forward: Callable[[], T],
    keep: Callable[[], object],
    between: Callable[[], object] = lambda: None,
) -> T | None:
    """Let an engine serve a request as often as a fault wants it; return the last answer, if it was served at all.

    Args:
        fault: what happens to the request.
        forward: lets the engine serve it.
        keep: keeps a copy that arrives later.
        between: is called before the second copy of a request that is served twice.
    """
    if fault is Fault.DOUBLED:
        forward()
        between()
    answer = None if fault in _NOT_FORWARDED else forward()
    if fault is not None and fault.arrives_later:
        keep()
    return answer


class Tap(Protocol):
    """Sees every HTTP attempt; calls ``forward()`` to let it through."""

    def __call__(self, endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward) -> Answer: ...


class Faults:
    """Chooses requests, and knows those that were hit so far; those that are late arrive when they are called."""

    def __init__(
        self,
        operation: str,
        times: int,
        connection: Connection | TableConnection | None,
        where: Callable[[Body], bool],
    ) -> None:
        self.bodies: list[Body] = []
        self.late: list[Forward] = []
        self._operation = operation
        self._left = times
        self._client = None if connection is None else _client_of(connection)
        self._where = where
        self._lock = threading.Lock()

    @property
    def hits(self) -> int:
        return len(self.bodies)

    def takes(self, endpoint: object, request: AWSPreparedRequest, operation: str) -> bool:
        """Whether this request is to be hit; counts it if so."""
        if operation != self._operation or (self._client is not None and self._client._endpoint is not endpoint):
            return False
        body = _body(request)
        with self._lock:
            if self._left <= 0 or not self._where(body):
                return False
            self._left -= 1
            self.bodies.append(body)
            return True


class Requests:
    """HTTP attempts seen so far."""

    def __init__(self) -> None:
        self.by_operation: Counter[str] = Counter()
        self.bodies: list[tuple[str, Body]] = []
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        return self.by_operation.total()

    def add(self, operation: str, body: Body) -> None:
        with self._lock:
            self.by_operation[operation] += 1
            self.bodies.append((operation, body))


@contextmanager
def lost_responses(
    operation: str,
    times: int = 1,
    *,
    connection: Connection | TableConnection | None = None,
    where: Callable[[Body], bool] = lambda body: True,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[Faults]:
    """The engine serves the next ``times`` requests of this operation; botocore gets a
    ConnectionClosedError instead of the answer, after ``meanwhile`` was called.
    """
    with _struck(Fault.LOST_RESPONSE, Faults(operation, times, connection, where), meanwhile) as faults:
        yield faults


@contextmanager
def lost_requests(
    operation: str,
    times: int = 1,
    *,
    connection: Connection | TableConnection | None = None,
    where: Callable[[Body], bool] = lambda body: True,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[Faults]:
    """The next ``times`` requests of this operation fail with a ConnectionClosedError before the engine
    sees them. ``meanwhile`` is called before that.
    """
    with _struck(Fault.LOST_REQUEST, Faults(operation, times, connection, where), meanwhile) as faults:
        yield faults


@contextmanager
def delayed(
    operation: str, times: int = 99, *, where: Callable[[Body], bool] = lambda body: True
) -> Iterator[list[Forward]]:
    """The next ``times`` requests of this operation fail with a ConnectionClosedError, and arrive when one of the
    yielded functions is called, which are in the order of the requests.
    """
    with _struck(Fault.LATE, Faults(operation, times, None, where)) as faults:
        yield faults.late


@contextmanager
def doubled(
    operation: str, *, times: int = 1, between: Callable[[], object] = lambda: None, where: Callable[[Body], bool]
) -> Iterator[Faults]:
    """Something on the way sends the next ``times`` requests of this operation a second time, and passes the second
    answer on. botocore does not hear of it. ``between`` is called between the two.
    """
    with _struck(Fault.DOUBLED, Faults(operation, times, None, where), between) as faults:
        yield faults


@contextmanager
def _struck(fault: Fault, faults: Faults, meanwhile: Callable[[], object] = lambda: None) -> Iterator[Faults]:
    """Let a fault strike what is chosen. The client hears of no answer, unless the request was repeated."""

    def tap(endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward) -> Answer:
        if not faults.takes(endpoint, request, operation):
            return forward()
        answer = serve(fault, forward, lambda: faults.late.append(forward), meanwhile)
        if fault is Fault.DOUBLED and answer is not None:
            return answer
        meanwhile()
        error = None if answer is None else answer[1]
        return None, error or ConnectionClosedError(endpoint_url=request.url, request=request)

    with tapped(tap):
        yield faults


@contextmanager
def count_requests() -> Iterator[Requests]:
    """Count every HTTP attempt of every client, lost ones too."""
    requests = Requests()

    def tap(endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward) -> Answer:
        requests.add(operation, _body(request))
        return forward()

    with tapped(tap, outermost=True):
        yield requests


@contextmanager
def unanswered(
    wanted: str,
    *,
    then: Callable[[], object],
    where: Callable[[Body], bool] = lambda body: True,
    attempts: int = 4,
    is_applied: bool = True,
) -> Iterator[list[str]]:
    """All attempts that botocore makes of a request stay unanswered; then something happens, and the next one comes."""
    sent: list[str] = []

    def tap(endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward) -> Answer:
        if operation != wanted or not where(_body(request)):
            return forward()
        sent.append(operation)
        if len(sent) > attempts:
            if len(sent) == attempts + 1:
                then()
            return forward()
        if is_applied:
            forward()
        return None, ConnectionClosedError(endpoint_url=request.url, request=request)

    with tapped(tap):
        yield sent


@contextmanager
def answered(operations: Collection[str], *answers: Any, always: bool = False) -> Iterator[list[Body]]:
    """Give these answers to the next requests instead of the engine; a None lets one through. Yields what was sent.

    Args:
        operations: names of the requests that are hit.
        answers: classes of exceptions for no answer at all, or DynamoDB's codes, alone or with reasons.
        always: whether to begin again after the last.
    """
    left = itertools.cycle(answers) if always else iter(answers)
    bodies: list[Body] = []

    def tap(endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward) -> Answer:
        if operation not in operations:
            return forward()
        bodies.append(_body(request))
        answer = next(left, None)
        if answer is None:
            return forward()
        return (None, answer(endpoint_url=request.url)) if isinstance(answer, type) else (_refusal(answer), None)

    with tapped(tap):
        yield bodies


def _refusal(answer: Any) -> Any:
    """Return a response with that code, and the reasons of a cancelled transaction."""
    code, *reasons = answer if isinstance(answer, tuple) else (answer,)
    parsed: dict[str, Any] = {
        "Error": {"Code": code, "Message": "made up"},
        "ResponseMetadata": {"HTTPStatusCode": 400, "HTTPHeaders": {}},
    }
    if reasons:
        parsed["CancellationReasons"] = [{"Code": reason or "None"} for reason in reasons]
    return SimpleNamespace(status_code=400, headers={}, content=b""), parsed


@contextmanager
def between_attempts(call: Callable[[], object]) -> Iterator[list[Any]]:
    """Run a call once, when an attempt has failed and before anything else is sent; yields whether it was."""
    calls: list[Any] = []

    def tap(endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward) -> Answer:
        answer = forward()
        if answer[0] is None and not calls:
            calls.append(call)
            call()
        return answer

    with tapped(tap, outermost=True):
        yield calls


class Send(Protocol):
    """Sends a request, or the one that is given in its place."""

    def __call__(self, kwargs: dict[str, Any] = ..., /) -> Any: ...


@contextmanager
def intercepted(answer: Callable[[Send, str, dict[str, Any]], Any]) -> Iterator[None]:
    """Let a function answer what PynamoDB's connections ask, before botocore makes its attempts.

    It gets what sends the request, the operation, and its arguments.
    """
    original = Connection.dispatch

    def dispatch(connection: Connection, operation: str, kwargs: dict[str, Any], *args: Any) -> Any:
        return answer(lambda other=kwargs: original(connection, operation, other, *args), operation, kwargs)

    with mock.patch.object(Connection, "dispatch", dispatch):
        yield


_ENDPOINT: Final[Any] = botocore.endpoint.Endpoint
_ORIGINAL: Final = _ENDPOINT._do_get_response
_LOCK: Final = threading.Lock()
#: The open taps, outermost first. Replaced as a whole, so that a request in another thread sees one list or
#: the other.
_taps: list[tuple[Tap, ...]] = [()]


@contextmanager
def tapped(tap: Tap, *, outermost: bool = False) -> Iterator[None]:
    with _LOCK:
        _taps[0] = (tap, *_taps[0]) if outermost else (*_taps[0], tap)
        _ENDPOINT._do_get_response = _do_get_response
    try:
        yield
    finally:
        with _LOCK:
            _taps[0] = tuple(other for other in _taps[0] if other is not tap)
            if not _taps[0]:
                _ENDPOINT._do_get_response = _ORIGINAL


def _do_get_response(endpoint: object, request: AWSPreparedRequest, operation_model: Any, context: Any) -> Answer:
    def forward() -> Answer:
        answer: Answer = _ORIGINAL(endpoint, request, operation_model, context)
        return answer

    operation = _operation(request)
    return forward() if operation is None else attempt(endpoint, request, operation, forward)


def attempt(endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward) -> Answer:
    """Let one attempt pass the open taps. ``forward`` serves it."""
    for tap in reversed(_taps[0]):
        forward = _through(tap, endpoint, request, operation, forward)
    return forward()


def _through(tap: Tap, endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward) -> Forward:
    return lambda: tap(endpoint, request, operation, forward)


def _operation(request: AWSPreparedRequest) -> str | None:
    target: Any = request.headers.get("X-Amz-Target", "")
    text: str = target.decode() if isinstance(target, bytes) else target
    version, _, operation = text.partition(".")
    return operation if version.startswith("DynamoDB_") else None


def _body(request: AWSPreparedRequest) -> Body:
    content: Any = request.body or b"{}"
    body: Body = json.loads(content)
    return body


def _client_of(connection: Connection | TableConnection) -> Any:
    return (connection.connection if isinstance(connection, TableConnection) else connection).client


def is_save(body: dict[str, Any]) -> bool:
    """Whether an UpdateItem sets attributes by number, as the save of an item with its lock inside does."""
    return str(body.get("UpdateExpression", ""))[:6][5:].isdigit()
