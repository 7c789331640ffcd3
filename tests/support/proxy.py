"""A proxy on loopback that spoils requests on real sockets, between botocore and an engine.

botocore's own loop of attempts, its connection pool and its timeouts stay in play; only the network is bad:

    with Proxy(engine_url) as proxy:
        Model.Meta.host = proxy.url
        proxy.plan = nth(0, Fault.LOST_RESPONSE)      # the next request
        proxy.plan = Storm(seed=7, rate=0.2)          # any request, drawn from a seed
        proxy.plan = nothing
        proxy.injected                                # how often each kind of fault has struck

    with Proxy(engine_url, Partitions(100)) as proxy:
        proxy.throttled                               # how many requests of each operation were refused

A plan is asked once for each request, one at a time. Nothing here sleeps, and every wait has a limit: a late
copy is sent when `release()` is called or when so many more requests have come, and an answer that is held
back is held until the client hangs up. Leaving the block ends every thread.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from typing_extensions import Self, override

from tests.support.faults import Fault, serve
from tests.support.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from pynamo_locking_testing._engine.partitions import Partitions

LIMIT_S: Final = 20.0
"""The longest wait for an engine, or for a client to hang up."""

IDLE_LIMIT_S: Final = 120.0
"""The longest that a connection without a request is kept."""

_LINGER_NOT: Final = struct.pack("ii", 1, 0)
"""Of SO_LINGER: closing sends a reset."""


@dataclass(frozen=True)
class Request:
    """One HTTP request, as it came from a client."""

    number: int
    """Its place in the order of arrival, from 0."""
    operation: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: Iterable[tuple[str, str]]
    body: bytes

    def on_the_wire(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {http.client.responses.get(self.status, '')}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, f"Content-Length: {len(self.body)}", "", ""]).encode("latin-1") + self.body


# Plans

Plan = Callable[[Request], "Fault | None"]


def nothing(_request: Request) -> Fault | None:
    """Let everything through."""
    return None


def nth(position: int, fault: Fault, times: int = 1) -> Plan:
    """Spoil the request at this position, counted from now and from 0, and those that follow up to `times`."""
    left = [position, times]

    def plan(_request: Request) -> Fault | None:
        if left[0] > 0:
            left[0] -= 1
        elif left[1] > 0:
            left[1] -= 1
            return fault
        return None

    return plan


class Storm:
    """Spoil this part of all requests, drawn from a seed.

    The draws are the same for the same seed, the n-th request of an operation having its own. Which thread
    makes the n-th request is not: that is up to the machine.

    Args:
        seed: replays the draws.
        rate: the part of the requests that is spoilt.
        kinds: the faults to draw from. One that takes a whole timeout is drawn a tenth as often as another.
    """

    def __init__(self, seed: int, rate: float, kinds: Iterable[Fault] = tuple(Fault)) -> None:
        self.seed = seed
        self.rate = rate
        self._kinds = list(kinds)
        self._weights = [0.1 if kind.is_slow else 1.0 for kind in self._kinds]
        self._seen: Counter[str] = Counter()

    def __call__(self, request: Request) -> Fault | None:
        draw = random.Random(f"{self.seed}/{request.operation}/{self._seen[request.operation]}")
        self._seen[request.operation] += 1
        if draw.random() >= self.rate:
            return None
        return draw.choices(self._kinds, self._weights)[0]

    def __repr__(self) -> str:
        return f"Storm(seed={self.seed}, rate={self.rate})"


# The proxy


class Proxy:
    """Forwards to one engine, as the plan of the moment wants it.

    Args:
        target: the engine's URL.
        partitions: what is served of one hash key in a second; without, everything.
        clock: tells the partitions what time it is, in seconds.

    Attributes:
        plan: what to do with the next requests.
        late_after: after so many more requests a late copy is forwarded by itself; None waits for `release()`.
        seen: how many requests of each operation have come.
        injected: how often each fault has struck.
        throttled: how many requests of each operation were refused since a partition had no units left.
        units: what was taken of partitions, by whether it was read; 0 without them.
        errors: what went wrong in the proxy itself, or between it and the engine.
    """

    def __init__(
        self, target: str, partitions: Partitions | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.plan: Plan = nothing
        self.seen: Counter[str] = Counter()
        self.injected: Counter[Fault] = Counter()
        self.errors: list[Exception] = []
        self._target = urlsplit(target).netloc
        self.late_after: int | None = None
        self._held: list[tuple[int, Request]] = []
        self._throttle = None if partitions is None else Throttle(partitions, self._describe, clock)
        self._mutex = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="test-proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def total(self) -> int:
        """How many requests have come."""
        return self.seen.total()

    @property
    def throttled(self) -> Counter[str]:
        return Counter() if self._throttle is None else self._throttle.refused

    @property
    def units(self) -> dict[bool, float]:
        return {} if self._throttle is None else self._throttle.units

    def release(self) -> list[int]:
        """Forward the late copies now, in their order; return the HTTP statuses of the engine's answers."""
        with self._mutex:
            held, self._held = self._held, []
        return [self.forward(request).status for _, request in held]

    def close(self) -> None:
        """End every thread and connection. Late copies that were not released never arrive."""
        self._server.shutdown()
        self._thread.join(LIMIT_S)
        self._server.hang_up()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # For the threads that serve connections

    def arrived(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[Request, Fault | None]:
        """Note a request, and say what is to happen to it; late copies that are due go first."""
        operation = headers.get("X-Amz-Target", "").partition(".")[2]
        with self._mutex:
            request = Request(self.total, operation, path, headers, body)
            self.seen[operation] += 1
            fault = self.plan(request)
            due = self._take_due(request.number)
            if fault is not None:
                self.injected[fault] += 1
        for late in due:
            self.forward(late)
        return request, fault

    def hold(self, request: Request) -> None:
        """Keep a copy for later. Called once the first one was served, which the copy must not overtake."""
        with self._mutex:
            self._held.append((self.total - 1, request))

    def _take_due(self, number: int) -> list[Request]:
        if self.late_after is None:
            return []
        last = number - self.late_after
        due = [request for came, request in self._held if came <= last]
        self._held = [(came, request) for came, request in self._held if came > last]
        return due

    def forward(self, request: Request) -> Answer:
        """Let the engine serve a request, if its partition has units left."""
        if self._throttle is None:
            return self._pass_on(request)
        asked = json.loads(request.body)
        refusal = self._throttle.refusal(request.operation, asked)
        if refusal is not None:
            return _error(400, refusal.pop("Code"), **refusal)
        answer = self._pass_on(
            replace(request, body=json.dumps(self._throttle.asking(request.operation, asked)).encode())
        )
        said = self._throttle.charge(request.operation, asked, json.loads(answer.body))
        return Answer(answer.status, _without_checksum(answer.headers), json.dumps(said).encode())

    def _describe(self, table: str) -> dict[str, Any]:
        """Ask the engine what a table is."""
        headers = {"X-Amz-Target": "DynamoDB_20120810.DescribeTable", **_SIGNED}
        answer = self._pass_on(Request(-1, "DescribeTable", "/", headers, json.dumps({"TableName": table}).encode()))
        described: dict[str, Any] = json.loads(answer.body)
        return described

    def _pass_on(self, request: Request) -> Answer:
        """Let the engine serve a request, over a connection of its own."""
        upstream = http.client.HTTPConnection(self._target, timeout=LIMIT_S)
        try:
            headers_out = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
            upstream.request("POST", request.path, request.body, headers_out | {"Connection": "close"})
            response = upstream.getresponse()
            headers = [pair for pair in response.getheaders() if pair[0].lower() not in _HOP_BY_HOP]
            return Answer(response.status, headers, response.read())
        finally:
            upstream.close()

    def failed(self, error: Exception) -> None:
        with self._mutex:
            self.errors.append(error)


_HOP_BY_HOP: Final = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})


#: For requests of our own: the engines look at the form of a signature, not at what it says.
_SIGNED: Final = {
    "Content-Type": "application/x-amz-json-1.0",
    "Authorization": "AWS4-HMAC-SHA256 Credential=dummy/20260101/us-east-1/dynamodb/aws4_request, "
    "SignedHeaders=host;x-amz-date;x-amz-target, Signature=0",
    "X-Amz-Date": "20260101T000000Z",
}


def _without_checksum(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers of an answer whose body is another one now."""
    return [pair for pair in headers if pair[0].lower() != "x-amz-crc32"]


class _Server(ThreadingHTTPServer):
    """A thread for each connection; `server_close` waits for all of them."""

    daemon_threads = False
    block_on_close = True
    request_queue_size = 128

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._open: set[socket.socket] = set()
        self._to_reset: set[socket.socket] = set()
        self._mutex = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def reset(self, connection: socket.socket) -> None:
        """Let the end of the connection be a reset."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        with self._mutex:
            self._to_reset.add(connection)

    def hang_up(self) -> None:
        """Close all connections, so that the threads which read from them end."""
        with self._mutex:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        with self._mutex:
            self._open.add(request)
        super().process_request(request, client_address)

    @override
    def shutdown_request(self, request: Any) -> None:
        with self._mutex:
            self._open.discard(request)
            is_reset = request in self._to_reset
            self._to_reset.discard(request)
        if is_reset:
            self.close_request(request)  # without the farewell of a shutdown
        else:
            super().shutdown_request(request)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: `_Handler` keeps what matters."""


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_LIMIT_S

    def do_POST(self) -> None:
        """Serve one request."""
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # the client was killed while it sent it
            self.close_connection = True
            return
        proxy = self._server.proxy
        try:
            request, fault = proxy.arrived(self.path, dict(self.headers.items()), body)
            answer = serve(fault, lambda: proxy.forward(request), lambda: proxy.hold(request))
        except Exception as error:  # noqa: BLE001 - shown by the test
            proxy.failed(error)
            self.close_connection = True
            return
        with suppress(OSError):  # the client may have hung up already
            self._reply(fault, answer)

    @property
    def _server(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    def _reply(self, fault: Fault | None, answer: Answer | None) -> None:
        replacement = _REPLACEMENTS.get(fault, answer)
        if replacement is not None and fault in _ANSWERED:
            self.wfile.write(replacement.on_the_wire())
            return
        self.close_connection = True
        if fault is Fault.CUT_RESPONSE and answer is not None:
            whole = answer.on_the_wire()
            self.wfile.write(whole[: len(whole) - len(answer.body) // 2 - 1])
        elif fault in {Fault.RESET_BEFORE, Fault.RESET_AFTER}:
            self._server.reset(self.connection)
        elif fault is not None and fault.is_slow:
            self.connection.settimeout(LIMIT_S)
            with suppress(OSError):
                self.connection.recv(1)  # nothing: the client has hung up

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _error(status: int, code: str, **more: Any) -> Answer:
    error = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "by the test's proxy", **more}
    body = json.dumps(error)
    return Answer(status, [("Content-Type", "application/x-amz-json-1.0")], body.encode())


_GATEWAY: Final = Answer(503, [("Content-Type", "text/html")], b"<html><h1>503 Service Unavailable</h1></html>")
_PAGE: Final = Answer(200, [("Content-Type", "text/html")], b"<html><h1>Blocked by your administrator</h1></html>")
_REPLACEMENTS: Final[dict[Fault | None, Answer]] = {
    # By another name than botocore's model has it: what older ones, which know none, do not parse either.
    Fault.THROTTLED: _error(
        400, "ThrottlingException", ThrottlingReasons=[{"reason": "TableReadAccountLimitExceeded"}]
    ),
    Fault.FAILED_BEFORE: _error(500, "InternalServerError"),
    Fault.FAILED_AFTER: _error(500, "InternalServerError"),
    Fault.UNAVAILABLE_BEFORE: _GATEWAY,
    Fault.UNAVAILABLE_AFTER: _GATEWAY,
    Fault.BLOCKED_BEFORE: _PAGE,
    Fault.BLOCKED_AFTER: _PAGE,
}
#: Whose client gets a whole answer, and keeps the connection.
_ANSWERED: Final = frozenset({None, Fault.DUPLICATED, Fault.DOUBLED, *_REPLACEMENTS})
