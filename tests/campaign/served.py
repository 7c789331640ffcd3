"""The in-memory DynamoDB as a server for processes of this machine, which spoils requests as a bad network does.

HTTP would cost more than the engine; so requests are pickled, over a socket in the file system. The server is one
thread, and decides about faults by a `Storm`, as the proxy before the other engines does.
"""

from __future__ import annotations

import pickle
import selectors
import socket
import struct
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError, ConnectionClosedError

from pynamo_locking_testing import MemoryDynamoDB
from tests.engines.memory import TappedClient, TappedMemory, as_answer
from tests.support.crew import Child
from tests.support.faults import Fault, serve
from tests.support.proxy import Request, Storm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.wire import Answer

#: What can happen to a request, and the part of them that is spoilt.
KINDS: Final = (
    Fault.LOST_REQUEST,
    Fault.LOST_RESPONSE,
    Fault.DUPLICATED,
    Fault.DOUBLED,
    Fault.LATE,
    Fault.THROTTLED,
    Fault.FAILED_BEFORE,
    Fault.FAILED_AFTER,
)
#: A late copy arrives when so many more requests have come.
LATE_AFTER: Final = 200
_CLOSED: Final = frozenset({Fault.LOST_REQUEST, Fault.LOST_RESPONSE, Fault.LATE})
_REFUSALS: Final = {
    Fault.THROTTLED: ("ThrottlingException", 400),
    Fault.FAILED_BEFORE: ("InternalServerError", 500),
    Fault.FAILED_AFTER: ("InternalServerError", 500),
}
_LENGTH: Final = struct.Struct("!I")
#: Requests of the campaign itself.
_SPOIL, _COUNTS = "spoil", "counts"


# The server's side


class _Server:
    def __init__(self, path: str, seed: int) -> None:
        self._database = MemoryDynamoDB()
        self._seed = seed
        self._storm: Storm | None = None
        self._number = 0
        self._late: deque[tuple[int, str, dict[str, Any]]] = deque()
        self._injected: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen(256)
        self._selector.register(listening, selectors.EVENT_READ)

    def serve(self) -> None:
        """For ever."""
        while True:
            for ready, _ in self._selector.select():
                if ready.data is None:
                    connection, _ = ready.fileobj.accept()  # type: ignore[union-attr]
                    self._selector.register(connection, selectors.EVENT_READ, bytearray())
                else:
                    self._read(ready.fileobj, ready.data)

    def _read(self, connection: Any, buffer: bytearray) -> None:
        """Take in a part of a request: one that was killed, or stands still, may never send the rest."""
        try:
            part = connection.recv(1 << 20)
            buffer += part
            is_over = not (part and all(_send(connection, self._answer(*each)) for each in _messages(buffer)))
        except (_HangUp, OSError):
            is_over = True
        if is_over:
            self._selector.unregister(connection)
            connection.close()

    def _answer(self, operation: str, kwargs: dict[str, Any]) -> Any:
        if operation == _SPOIL:
            self._storm = Storm(self._seed, kwargs["rate"], KINDS) if kwargs["rate"] else None
            self._deliver(len(self._late))
            return None
        if operation == _COUNTS:
            return self._number, self._injected
        self._number += 1
        fault = self._storm and self._storm(Request(self._number, operation, "", {}, b""))
        while self._late and self._late[0][0] <= self._number:
            self._deliver(1)
        if fault is None:
            return self._serve(operation, kwargs)
        self._injected[fault.name] += 1
        return self._spoil(fault, operation, kwargs)

    def _spoil(self, fault: Fault, operation: str, kwargs: dict[str, Any]) -> Any:
        late = (self._number + LATE_AFTER, operation, kwargs)
        answer = serve(fault, lambda: self._serve(operation, kwargs), lambda: self._late.append(late))
        if fault in _CLOSED:
            raise _HangUp
        if fault in _REFUSALS:
            code, status = _REFUSALS[fault]
            return {
                "Error": {"Code": code, "Message": "by the campaign"},
                "ResponseMetadata": {"HTTPStatusCode": status},
            }
        return answer

    def _deliver(self, count: int) -> None:
        for _ in range(count):
            _, operation, kwargs = self._late.popleft()
            self._serve(operation, kwargs)

    def _serve(self, operation: str, kwargs: dict[str, Any]) -> Any:
        try:
            return self._database.handle(operation, kwargs)
        except ClientError as refusal:
            return refusal.response


class _HangUp(Exception):  # noqa: N818 - a signal
    pass


def _messages(buffer: bytearray) -> Iterator[Any]:
    """Take whole messages out of a buffer."""
    while len(buffer) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            return
        message = pickle.loads(buffer[_LENGTH.size : end])
        del buffer[:end]
        yield message


def _send(connection: socket.socket, message: object) -> bool:
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    connection.sendall(_LENGTH.pack(len(content)) + content)
    return True


def _serve(pipe: Any, path: str, seed: int) -> None:
    server = _Server(path, seed)
    pipe.send("ready")
    server.serve()


class MemoryServer:
    """An in-memory DynamoDB in a process of its own.

    Args:
        path: of its socket.
        seed: of its faults.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._process = Child(_serve, str(path), seed)
        self._process.hear()
        self._control = _Connection(str(path))

    def spoil(self, rate: float) -> None:
        """Spoil this part of all requests from now on; what is late by now arrives."""
        self._control.ask(_SPOIL, {"rate": rate})

    def counts(self) -> tuple[int, Counter[str]]:
        """Return how many requests came, and how many were spoilt in which way."""
        number, injected = self._control.ask(_COUNTS, {})
        return number, injected

    def close(self) -> None:
        """End it."""
        self._control.close()
        self._process.close()


# The client's side


class _Connection:
    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)

    def ask(self, operation: str, kwargs: dict[str, Any]) -> Any:
        _send(self._socket, (operation, kwargs))
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        return pickle.loads(self._receive(length))

    def close(self) -> None:
        self._socket.close()

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)


class RemoteMemory(TappedMemory):
    """All connections of this process go to a server in memory; each thread has a socket of its own.

    Args:
        path: of the server's socket.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._local = threading.local()

    def client(self, attempts: int = 1) -> RemoteClient:
        """A client that makes at most so many attempts."""
        return RemoteClient(self, attempts)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        if connection := getattr(self._local, "connection", None):
            connection.close()

    def ask(self, operation: str, kwargs: dict[str, Any]) -> Any:
        """Make a request; return the parsed answer, also a refusal."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = _Connection(self._path)
        try:
            return connection.ask(operation, kwargs)
        except (EOFError, OSError) as error:
            connection.close()
            self._local.connection = None
            raise ConnectionClosedError(endpoint_url="memory://dynamodb") from error


class RemoteClient(TappedClient):
    """One client of it, which tries again where botocore does."""

    def _attempt(self, operation: str, kwargs: dict[str, Any]) -> Answer:
        database: Any = self._database
        try:
            return as_answer(database.ask(operation, kwargs)), None
        except ConnectionClosedError as error:
            return None, error
