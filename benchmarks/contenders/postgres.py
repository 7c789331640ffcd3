"""PostgreSQL's ``SELECT ... FOR UPDATE``: what a relational database does with the same task.

Source: PostgreSQL's documentation, "Explicit Locking", row-level locks; psycopg 3 as its documentation shows it.

Requests of a cycle, each one round trip: BEGIN; SELECT the row FOR UPDATE, which waits in the server for whoever has
it; UPDATE; COMMIT. The lock alone: the same without the UPDATE. Nobody polls, and a lock ends with its connection.

The server is a cluster of its own, thrown away afterwards, from Debian's binaries, with its default settings but for
the number of connections. So a commit is durable (``fsync`` is on), which those of the engines in memory are not. It
runs in ``tempfile.gettempdir()``, under the place's prefix, and is reached over TCP on the loopback, as the engines
are; for a place with a round trip, through a slowing proxy. PostgreSQL refuses to run as root: then it runs as
``postgres`` or ``nobody``.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from benchmarks.contenders.base import Contender, Place
from benchmarks.contenders.counters import CounterFields
from benchmarks.latency import slowed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LOOPBACK: Final = "127.0.0.1"
_CONNECTIONS: Final = 700
_USERS: Final = ("postgres", "nobody")


class PostgreSQL(Contender):
    """Begin, select for update, update, commit."""

    name: ClassVar[str] = "PostgreSQL FOR UPDATE"
    has_lock: ClassVar[bool] = True

    @classmethod
    @override
    def unavailable(cls) -> str:
        if importlib.util.find_spec("psycopg") is None:
            return "psycopg is not installed (pip install --group bench)"
        if not (_binary("initdb") and _binary("pg_ctl")):
            return "PostgreSQL's server is not installed (apt-get install postgresql)"
        if os.geteuid() == 0 and not _as_whom():
            return f"PostgreSQL does not run as root, and there is no user {' or '.join(_USERS)}"
        return ""

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)
        import psycopg  # noqa: PLC0415 - may be missing

        self._connect: Any = psycopg.connect
        self._folder = Path(tempfile.gettempdir()) / f"{place.prefix}postgresql"
        self._idle: deque[Any] = deque()
        self._own = ExitStack()

    @override
    def create(self, keys: Sequence[str]) -> None:
        try:
            server = self._own.enter_context(_cluster(self._folder))
            address = self._own.enter_context(slowed(f"postgresql://{server}/postgres", self.place.rtt_ms))
            (self._folder / "address").write_text(address)
            with self._connection() as connection:
                connection.execute("CREATE TABLE counters (key text PRIMARY KEY, body text, total bigint)")
                rows = [(key, CounterFields.body.default, 0) for key in keys]
                connection.cursor().executemany("INSERT INTO counters VALUES (%s, %s, %s)", rows)
        except BaseException:
            self.close()
            raise

    @override
    def add(self, key: str) -> None:
        with self._locked(key) as (connection, total):
            connection.execute("UPDATE counters SET total = %s WHERE key = %s", (total + 1, key))

    def move(self, source: str, target: str) -> None:
        """Move one unit from one counter to another, both locked in the order of their keys."""
        query = "SELECT body, total FROM counters WHERE key = %s FOR UPDATE"
        with self._connection() as connection, connection.transaction():
            totals = {key: connection.execute(query, (key,)).fetchone()[1] for key in sorted((source, target))}
            for key, amount in ((source, -1), (target, 1)):
                connection.execute("UPDATE counters SET total = %s WHERE key = %s", (totals[key] + amount, key))

    @override
    def total(self, key: str) -> int:
        with self._connection() as connection:
            return int(connection.execute("SELECT total FROM counters WHERE key = %s", (key,)).fetchone()[0])

    @override
    @contextmanager
    def hold(self, key: str) -> Iterator[Any]:
        with self._locked(key) as (connection, _):
            yield connection

    @contextmanager
    def _locked(self, key: str) -> Iterator[tuple[Any, int]]:
        query = "SELECT body, total FROM counters WHERE key = %s FOR UPDATE"
        with self._connection() as connection, connection.transaction():
            _, total = connection.execute(query, (key,)).fetchone()
            yield connection, total

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """Lend a connection; as many are opened as threads need at once."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect((self._folder / "address").read_text(), user="bench", autocommit=True)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    @override
    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self._own.close()


# The server


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    """Start a server in a new folder, and remove both in the end; yield its host and port."""
    folder.mkdir(mode=0o700)
    user = _as_whom()
    if user:
        os.chown(folder, user["user"], user["group"])
    data, port = str(folder / "data"), _free_port()
    settings = (f"listen_addresses={_LOOPBACK}", "unix_socket_directories=", f"max_connections={_CONNECTIONS}")
    options = " ".join([f"-p {port}", *(f"-c {setting}" for setting in settings)])
    control = (_binary("pg_ctl"), "-D", data, "-w", "-s")
    try:
        _run((_binary("initdb"), "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C"), folder, user)
        _run((*control, "-l", str(folder / "log"), "-o", options, "start"), folder, user)
        try:
            yield f"{_LOOPBACK}:{port}"
        finally:
            _run((*control, "-m", "immediate", "stop"), folder, user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: Sequence[str], folder: Path, user: dict[str, Any]) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **user)  # noqa: S603 - our own words
    if done.returncode:
        log = folder / "log"
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr}{log.read_text() if log.exists() else ''}")


def _binary(name: str) -> str:
    """Return where it is: on the path, or where Debian puts it, which is not on the path; "" if it is nowhere."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4]))
    return shutil.which(name) or next((str(path) for path in reversed(debian)), "")


def _as_whom() -> dict[str, Any]:
    """Return whom to run it as, where we are root, for `subprocess`; {}: ourselves, or nobody is there."""
    if os.geteuid() == 0:
        for user in _USERS:
            with suppress(KeyError):
                account = pwd.getpwnam(user)
                return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port
