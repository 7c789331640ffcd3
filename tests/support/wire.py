"""What happens to requests on the wire, chosen by what they ask for: the one seam between the package and an engine.

One language says which requests, and then what becomes of them:

    with on("UpdateItem").lose_response():                 # applied, but the caller never hears of it
    with on("PutItem", times=2).lose_request():            # never reaches the engine
    with on("UpdateItem", to=Purse, nth=2).double():       # applied twice; the caller hears of the second only
    with on("UpdateItem", to=Purse).before(change):        # another caller comes first
    with on("GetItem", "Query").answer("ThrottlingException", always=True):
    with on().watch() as hit: ...; hit.bodies              # all that is sent, and spoils nothing
    with count_requests() as counted: ...; counted.total
    with intercepted(answer):                              # PynamoDB's requests, with all attempts of botocore

The seam is botocore's ``Endpoint._do_get_response``: one call is one HTTP attempt, inside botocore's own retry loop.
The answers of moto pass through it too, as those of the engine in memory do. It is replaced for all clients of the
process, also those made earlier, while one of these is open.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol
from unittest import mock

import botocore.endpoint
from botocore.awsrequest import AWSResponse, HeadersDict
from botocore.exceptions import ConnectionClosedError
from botocore.parsers import create_parser
from botocore.session import get_session
from pynamodb.connection import Connection, TableConnection

from tests.support.faults import Fault, serve

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from pynamodb.models import Model

#: What is sent, as decoded JSON.
Body = dict[str, Any]
#: What ``_do_get_response`` returns: ((response, parsed), None) or (None, exception).
Answer = tuple[Any, Exception | None]
Forward = Callable[[], Answer]
#: Of `times`: all requests that are chosen.
ALL: Final = math.inf


class Tap(Protocol):
    """Sees every HTTP attempt; calls ``forward()`` to let it through."""

    def __call__(
        self, endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward, /
    ) -> Answer: ...


@dataclass(frozen=True)
class Page:
    """What something on the way answers: a body, as JSON unless it is bytes.

    `tests/integration/whole/test_proxy.py` has such pages on real sockets.
    """

    content: Any
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()

    def parsed(self, endpoint: Any, operation: str) -> Any:
        """Return the response, and what botocore makes of it on its way through an endpoint."""
        model = _SERVICE.operation_model(operation)
        body = self.content if isinstance(self.content, bytes) else json.dumps(self.content).encode()
        headers: Any = HeadersDict({"Content-Length": str(len(body)), **dict(self.headers)})
        http: Any = AWSResponse("https://proxy", self.status, headers, None)
        http._content = body
        response, added = botocore.endpoint.convert_to_response_dict(http, model), dict[str, Any]()
        events = endpoint.meta.events if hasattr(endpoint, "meta") else endpoint._event_emitter
        events.emit(
            f"before-parse.dynamodb.{operation}",
            operation_model=model,
            response_dict=response,
            customized_response_dict=added,
        )
        return http, create_parser("json").parse(response, model.output_shape) | added


class Hits:
    """The requests that were chosen so far."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []

    @property
    def hits(self) -> int:
        return len(self.bodies)


def on(
    *operations: str,
    to: type[Model] | Connection | TableConnection | None = None,
    where: Callable[[Body], bool] = lambda body: True,
    nth: int = 1,
    times: float = 1,
) -> Chosen:
    """Choose requests; what becomes of them is said next.

    Args:
        operations: their names. All, unless set.
        to: the model whose table they name, or the connection whose client sends them.
        where: of this body.
        nth: the first of these that is chosen.
        times: how many are chosen from there on, one after the other.
    """
    return Chosen(operations, to, where, nth, times)


def _nothing() -> None:
    pass


class Chosen:
    """Some requests, and what can happen to them. Each context manager yields the `Hits`, unless it says otherwise."""

    def __init__(
        self,
        operations: tuple[str, ...],
        to: type[Model] | Connection | TableConnection | None,
        where: Callable[[Body], bool],
        nth: int,
        times: float,
    ) -> None:
        self._operations = operations
        self._client = _client_of(to) if isinstance(to, Connection | TableConnection) else None
        self._model = None if isinstance(to, Connection | TableConnection) else to
        self._where = where
        self._before = nth - 1
        self._left = times
        self._mutex = threading.Lock()

    def lose_response(self, meanwhile: Callable[[], object] = _nothing) -> Any:
        """The engine serves them; then the connection closes without an answer, after ``meanwhile`` was called."""
        return self._struck(Fault.LOST_RESPONSE, meanwhile)

    def lose_request(self, meanwhile: Callable[[], object] = _nothing) -> Any:
        """The connection closes before the engine sees them, after ``meanwhile`` was called."""
        return self._struck(Fault.LOST_REQUEST, meanwhile)

    def delay(self) -> Any:
        """The connection closes. Yields a list of functions: each lets one of them arrive when it is called."""
        late: list[Forward] = []
        return self._struck(Fault.LATE, late=late)

    def double(self, between: Callable[[], object] = _nothing) -> Any:
        """Something on the way sends them a second time, and passes the second answer on; botocore does not hear of it.

        ``between`` is called between the two.
        """
        return self._struck(Fault.DOUBLED, between)

    def before(self, call: Callable[[], object]) -> Any:
        """Something else happens just before the engine sees them."""

        def act(_: object, __: object, ___: object, forward: Forward) -> Answer:
            call()
            return forward()

        return self._tapped(act, Hits())

    def after(self, call: Callable[[], object]) -> Any:
        """Something else happens when the engine has served them, before the caller has the answer."""

        def act(_: object, __: object, ___: object, forward: Forward) -> Answer:
            answer = forward()
            call()
            return answer

        return self._tapped(act, Hits())

    def watch(self) -> Any:
        """Nothing happens to them: to count them, and to see what they ask for."""
        self._left = ALL
        return self._tapped(lambda *arguments: arguments[-1](), Hits())

    def answer(self, *answers: Any, always: bool = False) -> Any:
        """They get these answers in place of the engine's, one each. Yields the bodies of all that are chosen.

        Args:
            answers: classes of exceptions for no answer at all; DynamoDB's codes, alone or with the reasons of a
                cancelled transaction; a `Page` of a proxy; None lets one through.
            always: whether to begin again after the last.
        """
        self._left = ALL
        left = itertools.cycle(answers) if always else iter(answers)

        def act(endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward) -> Answer:
            answer = next(left, None)
            if answer is None:
                return forward()
            if isinstance(answer, Page):
                return answer.parsed(endpoint, operation), None
            return (None, answer(endpoint_url=request.url)) if isinstance(answer, type) else (_refusal(answer), None)

        hits = Hits()
        return self._tapped(act, hits, hits.bodies)

    def _struck(
        self, fault: Fault, meanwhile: Callable[[], object] = _nothing, late: list[Forward] | None = None
    ) -> Any:
        """Let a fault strike them. The client hears of no answer, unless the request was repeated."""
        kept = [] if late is None else late

        def act(_: object, request: AWSPreparedRequest, __: str, forward: Forward) -> Answer:
            answer = serve(fault, forward, lambda: kept.append(forward), meanwhile)
            if fault is Fault.DOUBLED and answer is not None:
                return answer
            meanwhile()
            error = None if answer is None else answer[1]
            return None, error or ConnectionClosedError(endpoint_url=request.url, request=request)

        return self._tapped(act, Hits(), late)

    @contextmanager
    def _tapped(self, act: Tap, hits: Hits, yielded: object = None) -> Iterator[Any]:
        def tap(endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward) -> Answer:
            is_chosen = self._takes(hits, endpoint, request, operation)
            return act(endpoint, request, operation, forward) if is_chosen else forward()

        with tapped(tap):
            yield hits if yielded is None else yielded

    def _takes(self, hits: Hits, endpoint: object, request: AWSPreparedRequest, operation: str) -> bool:
        """Tell whether this request is chosen; count it if so."""
        if self._operations and operation not in self._operations:
            return False
        if self._client is not None and self._client._endpoint is not endpoint:
            return False
        body = _body(request)
        if self._model is not None and self._model.Meta.table_name not in tables_of(body):
            return False
        with self._mutex:
            if self._left <= 0 or not self._where(body):
                return False
            if self._before:
                self._before -= 1
                return False
            self._left -= 1
            hits.bodies.append(body)
            return True


def tables_of(body: Body) -> set[str]:
    """The tables that a request names, those of its actions and statements too."""
    actions = [action for each in body.get("TransactItems", ()) for action in each.values()]
    statements = [each["Statement"].split('"')[1] for each in body.get("Statements", ())]
    named = [each["TableName"] for each in (body, *actions) if "TableName" in each]
    return {*named, *statements, *body.get("RequestItems", ())}


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


_SERVICE: Final[Any] = get_session().get_service_model("dynamodb")
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
