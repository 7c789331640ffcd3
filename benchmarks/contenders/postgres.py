"""PostgreSQL's ``SELECT ... FOR UPDATE``: what a relational database does with the same task.

Source: PostgreSQL's documentation, "Explicit Locking", row-level locks; psycopg 3 as its documentation shows it.

Requests of a cycle, each one round trip: BEGIN; SELECT the row FOR UPDATE, which waits in the server for whoever has
it; UPDATE; COMMIT. The lock alone: the same without the UPDATE. Nobody polls, and a lock ends with its connection.

The server is a cluster of its own, thrown away afterwards, from Debian's binaries, with its default settings but for
the number of connections. So a commit is durable (``fsync`` is on), which those of the engines in memory are not. It
runs in ``tempfile.gettempdir()``, under the place's prefix, and is reached over TCP on the loopback, as the engines
are; for a place with a round trip, through a slowing proxy. PostgreSQL refuses to run as root: then it runs as
``postgres`` or ``nobody``. It dies with the thread that called `create`, at the latest.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
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
_START_S: Final = 60.0
_STOP_S: Final = 30.0
#: Somebody else may take the port before the server does.
_ATTEMPTS: Final = 5
_USERS: Final = ("postgres", "nobody")

#: Between fork and exec of the server: no rights of root, and the end together with the parent (PR_SET_PDEATHSIG is
#: forgotten when the user changes, so it comes last). SIGQUIT stops PostgreSQL at once, and leaves no shared memory.
_TRAMPOLINE: Final = """
import ctypes, os, signal, sys
parent, user, group = map(int, sys.argv[1:4])
libc = ctypes.CDLL(None)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
libc.prctl(1, signal.SIGQUIT)
if os.getppid() != parent:
    sys.exit("the parent is gone already")
os.execv(sys.argv[4], sys.argv[4:])
"""


class PostgreSQL(Contender):
    """Begin, select for update, update, commit."""

    name: ClassVar[str] = "PostgreSQL FOR UPDATE"
    source: ClassVar[str] = "postgresql.org/docs/15/explicit-locking.html, 13.3.2 Row-Level Locks"
    has_lock: ClassVar[bool] = True
    is_safe: ClassVar[bool] = True

    @classmethod
    @override
    def unavailable(cls) -> str:
        if importlib.util.find_spec("psycopg") is None:
            return "psycopg is not installed (pip install --group bench)"
        if _binary("initdb") is None or _binary("postgres") is None:
            return "PostgreSQL's server is not installed (apt-get install postgresql)"
        if os.geteuid() == 0 and _account() is None:
            return f"PostgreSQL does not run as root, and there is no user {' or '.join(_USERS)}"
        return ""

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        del poll_s, lease_s  # it has neither
        import psycopg  # noqa: PLC0415 - may be missing

        self._connect: Any = psycopg.connect
        self._rtt_ms = place.rtt_ms
        self._folder = Path(tempfile.gettempdir()) / f"{place.prefix}postgresql"
        self._idle: deque[Any] = deque()
        self._own = ExitStack()

    @override
    def create(self, keys: Sequence[str]) -> None:
        try:
            server = self._own.enter_context(_cluster(self._folder))
            address = self._own.enter_context(slowed(f"postgresql://bench@{server}/postgres", self._rtt_ms))
            (self._folder / "address").write_text(address.removeprefix("postgresql://").removeprefix("bench@"))
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
            connection = self._open()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def _open(self) -> Any:
        address = (self._folder / "address").read_text()
        return self._connect(f"postgresql://bench@{address}", autocommit=True)

    @override
    def close(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()
        self._own.close()


# The server


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    """Start a server in a new folder, and remove both in the end; yield its host and port."""
    _remove_remains(folder)
    folder.mkdir(mode=0o700)
    try:
        account = _account()
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        _initialize(folder / "data", account)
        with ExitStack() as stack:
            log = stack.enter_context(tempfile.TemporaryFile())
            process, port = _started(folder / "data", account, log)
            stack.callback(_stop, process)
            yield f"{_LOOPBACK}:{port}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_remains(folder: Path) -> None:
    """Remove what a killed run of the same name has left; its server died with it."""
    with suppress(OSError):
        pid = (folder / "data" / "postmaster.pid").read_text().split()[0]
        if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            raise RuntimeError(f"a server runs in {folder}: give this run another prefix")
    if (folder / "data").exists():
        shutil.rmtree(folder)


def _initialize(data: Path, account: pwd.struct_passwd | None) -> None:
    command = [str(_binary("initdb")), "-D", str(data), "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C"]
    as_user = {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    options: dict[str, Any] = {"cwd": data.parent, **as_user}
    done = subprocess.run(  # noqa: S603 - our own words
        [*command, "--no-sync"], stdin=subprocess.DEVNULL, stdout=-1, stderr=-2, check=False, **options
    )
    if done.returncode:
        raise RuntimeError(f"initdb failed:\n{done.stdout.decode(errors='replace')}")


def _started(data: Path, account: pwd.struct_passwd | None, log: Any) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(_ATTEMPTS):
        port = _free_port()
        process = _spawn(data, account, port, log)
        try:
            if _answers(process, port):
                return process, port
        except BaseException:
            _stop(process)
            raise
        _stop(process)
    log.seek(0)
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read()[-4000:].decode(errors='replace')}")


def _spawn(data: Path, account: pwd.struct_passwd | None, port: int, log: Any) -> subprocess.Popen[bytes]:
    user, group = (-1, -1) if account is None else (account.pw_uid, account.pw_gid)
    settings = (f"listen_addresses={_LOOPBACK}", "unix_socket_directories=", f"max_connections={_CONNECTIONS}")
    options = [part for setting in settings for part in ("-c", setting)]
    return subprocess.Popen(  # noqa: S603 - our own words
        [
            *(sys.executable, "-I", "-S", "-c", _TRAMPOLINE, str(os.getpid()), str(user), str(group)),
            *(str(_binary("postgres")), "-D", str(data), "-p", str(port), *options),
        ],
        cwd=data.parent,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server takes connections; return False if it has ended instead."""
    import psycopg  # noqa: PLC0415 - may be missing

    deadline = time.monotonic() + _START_S
    while process.poll() is None:
        with suppress(psycopg.OperationalError):
            psycopg.connect(f"postgresql://bench@{_LOOPBACK}:{port}/postgres").close()
            return process.poll() is None
        if time.monotonic() > deadline:
            return False
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.02)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(2)  # SIGINT: end all connections, shut down in order
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _binary(name: str) -> str | None:
    """Return where it is: on the path, or where Debian puts it, which is not on the path."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4]))
    return shutil.which(name) or next((str(path) for path in reversed(debian)), None)


def _account() -> pwd.struct_passwd | None:
    """Return whom to run it as, where we are root; None: ourselves, or nobody is there."""
    if os.geteuid() == 0:
        for user in _USERS:
            with suppress(KeyError):
                return pwd.getpwnam(user)
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port
