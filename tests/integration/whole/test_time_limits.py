"""A signal whose handler raises an exception, as a time limit does, comes in the midst of a request over HTTP.

`locks/test_interrupts_by_signals` sends SIGINT at random moments, whose `KeyboardInterrupt` botocore lets through. What
is an `Exception` it takes for an error of the network, and would repeat the request.
"""

from __future__ import annotations

import json
import signal
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from pynamodb.exceptions import PutError

from pynamo_locking import LockableModel, NamedLock, TransactWrite, transaction
from pynamo_locking.exceptions import OutcomeUnknown
from pynamo_locking_testing import MemoryDynamoDB
from tests.support.models import declare
from tests.support.transaction_models import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals that a thread sends"),
    pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="only it hears signals"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # of one whose `close` was interrupted
]

Page = declare("Page", LockableModel, lock=True, version=True, numbers="value", transaction_table=Transactions)
Names = declare("Names", NamedLock)
MODELS: tuple[Any, ...] = (Page, Names, Transactions)


class SoftTimeLimit(Exception):  # noqa: N818 - as Celery's
    """What most handlers raise."""


class ExpiredError(TimeoutError):
    """An error of the network for urllib3, which wraps it."""


class Service(ThreadingHTTPServer):
    """A DynamoDB that sends this process a signal in place of the answers to some requests.

    Attributes:
        silent: which requests get none, by their numbers.
        is_served: whether these are applied.
        requests: how many have come.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.database = MemoryDynamoDB()
        self.silent: Callable[[int], bool] = lambda _number: False
        self.is_served = True
        self.requests = 0
        self.main = threading.get_ident()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spoil(self, is_silent: Callable[[int], bool]) -> None:
        """Count requests from now on, from 0."""
        self.requests, self.silent = 0, is_silent

    def serve(self, operation: str, body: dict[str, Any]) -> tuple[int, Any]:
        try:
            return 200, self.database.handle(operation, body)
        except ClientError as refusal:
            error: Any = refusal.response
            return 400, {"__type": f"x#{error['Error']['Code']}", "message": error["Error"]["Message"], **error}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        service: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        operation = self.headers["X-Amz-Target"].partition(".")[2]
        is_silent, service.requests = service.silent(service.requests), service.requests + 1
        status, answer = (200, {}) if is_silent and not service.is_served else service.serve(operation, body)
        if is_silent:
            signal.pthread_kill(service.main, signal.SIGUSR1)
            self.connection.settimeout(20)
            with suppress(OSError):
                self.connection.recv(1)  # nothing: the client has hung up
            return
        sent = json.dumps(answer, default=lambda moment: moment.timestamp()).encode()
        with suppress(OSError):
            self.wfile.write(b"HTTP/1.0 %d \r\nContent-Length: %d\r\n\r\n" % (status, len(sent)) + sent)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as there
        """Say nothing."""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """The models' DynamoDB, on real sockets."""
    service = Service()
    threading.Thread(target=service.serve_forever, args=(0.02,), daemon=True).start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    for model in MODELS:
        monkeypatch.setattr(model.Meta, "host", service.url, raising=False)
        monkeypatch.setattr(model.Meta, "region", "us-east-1", raising=False)
        monkeypatch.setattr(model, "_connection", None)
        model.create_table(billing_mode="PAY_PER_REQUEST")
    try:
        yield service
    finally:
        service.shutdown()
        service.server_close()


def limited(error: BaseException) -> Any:
    """Let the signal's handler raise that."""

    def on_limit(_number: int, _frame: Any) -> None:
        raise error

    return signal.signal(signal.SIGUSR1, on_limit)


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def save() -> None:
    item = Page.get("a")
    item.value += 1
    item.save()


def edit() -> None:
    with Page.edit("a") as item:
        item.value += 1


def native() -> None:
    with TransactWrite(connection=Page._get_connection().connection) as tx:
        tx.update(Page.get("a"), [Page.value.add(1)])


def committed() -> None:
    with transaction() as tx:
        item = tx.get(Page, "a")
        item.value += 1
        tx.save(item)


def named() -> None:
    with Names.locked("n"):
        pass


WAYS = [save, edit, native, committed, named]
ERRORS = [SoftTimeLimit("the limit"), RuntimeError("the limit"), TimeoutError("the limit"), ExpiredError("the limit")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_served", [True, False])
def test_it_is_heard_in_the_request_at_hand(service: Service, way: Callable[[], None], is_served: bool) -> None:
    """At each request of an operation, whether that is applied or not; and nothing of the bookkeeping is left behind.

    The next call works, and its item is what is stored.
    """
    Page("a", value=0).save()
    service.is_served = is_served
    for position in range(100):
        limit = SoftTimeLimit("the limit")
        limited(limit)
        service.spoil(lambda number, position=position: number == position)  # type: ignore[misc]
        heard = raised_by(way)
        if service.requests <= position:
            break
        # Where the outcome has to be found out, that is the error, and the limit its context.
        is_unknown = isinstance(heard, OutcomeUnknown) and heard.__context__ is limit
        assert heard is limit or is_unknown, f"not heard at request {position}"
        before = stored(service)
        edit()
        assert stored(service) == before + 1
        assert Page.lock_state("a").entries == Names.lock_state("n").entries == ()
    assert position > 0


def raised_by(way: Callable[[], None]) -> Exception | None:
    try:
        way()
    except (SoftTimeLimit, OutcomeUnknown) as error:
        return error
    return None


def stored(service: Service) -> int:
    _, answer = service.serve("GetItem", {"TableName": Page.Meta.table_name, "Key": {Page._hash_keyname: {"S": "a"}}})
    return int(answer["Item"]["value"]["N"])


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_the_handler_raises(service: Service, error: Exception) -> None:
    """In a read of PynamoDB's own, which botocore repeats, and in a write: after one request."""
    Page("a", value=0).save()
    item = Page.get("a")
    limited(error)
    for act in (lambda: Page.get("a"), item.save, item.refresh):
        service.spoil(lambda number: number == 0)
        with pytest.raises(type(error)) as caught:
            act()
        assert caught.value is error
        assert service.requests == 1


def test_an_error_that_is_handled_is_not_raised_again(service: Service) -> None:
    """A write that undoes what the time limit has cut short gets no answer: that is its own error, not the limit's."""
    Page("a", value=0).save()
    item = Page.get("a")
    limited(TimeoutError("the limit"))
    service.spoil(lambda number: number == 0)
    try:
        item.refresh()
    except TimeoutError:
        service.shutdown()
        service.server_close()
        with pytest.raises(PutError, match="Could not connect"):
            item.save()
