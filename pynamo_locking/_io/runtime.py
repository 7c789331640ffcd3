"""The seam to the outside world: clocks, threads, events, randomness, forks, the log.

The package uses them only through `runtime.current`, so a test can `install` a virtual world.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import operator
import os
import random
import secrets
import socket
import sys
import threading
import time
import weakref
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.row_keys import plain

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

#: What the whole package logs to.
logger: logging.Logger = logging.getLogger("pynamo_locking")


class _Plain:
    """An argument of a log record in one line: it may be, or quote, what another program has stored in a table."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return plain(self._value)

    def __repr__(self) -> str:
        return plain(repr(self._value))


def _in_one_line(record: logging.LogRecord) -> bool:
    """Keep text of stored rows, such as owners and ids, from forging lines of a log."""
    if isinstance(record.args, tuple):
        record.args = tuple(each if isinstance(each, (int, float)) else _Plain(each) for each in record.args)
    return True


logger.addFilter(_in_one_line)

try:
    from snapshot_restore_py import register_after_restore as _register  # AWS's, which the runtimes of Lambda have
except ImportError:
    _register = None


#: So many bytes of the names of host and thread fit into the longest label of an owner.
_LONGEST_PART: Final = 120

#: Draws from the operating system, and keeps no state: processes restored from one snapshot would pause alike.
_system_random: Final = random.SystemRandom()


def _monotonic_source() -> Callable[[], float]:
    """Choose a clock that also runs while the machine is suspended, where there is one.

    ``CLOCK_MONOTONIC`` stands still during suspend on Linux, ``time.monotonic`` on macOS: a holder whose lease ended in
    its sleep would not notice.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return functools.partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    return time.monotonic


#: What `Runtime.event` makes.
Event = threading.Event

#: The class of objects that each thread has for itself.
ThreadLocal = threading.local


class _Thread(ThreadLocal):
    """Tells a thread from a later one: idents are given out again as soon as a thread has ended."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()

#: As it was when this module was imported: gevent replaces it, with all of `threading`.
_get_ident: Final = threading.get_ident


def check_inheritance() -> None:
    """Refuse threads that inherit what their starter holds, as those of builds without the GIL do from 3.14 on.

    What a thread has inherited cannot be told from what a task, or `asyncio.to_thread`, was given on purpose.
    """
    if getattr(sys.flags, "thread_inherit_context", False):
        raise ConfigurationError(
            "this Python starts a thread with the context of its starter, and so with its locks and transactions: a "
            "thread that a pool starts inside a lock would write under it, whoever it works for. Nothing was locked. "
            "Set PYTHON_THREAD_INHERIT_CONTEXT=0 in the environment, or run python -X thread_inherit_context=0."
        )


def check_threads() -> None:
    """Refuse threads that this module would not keep apart: they could be in a lock side by side."""
    check_inheritance()
    gevent = sys.modules.get("gevent")
    is_late = threading.get_ident is not _get_ident
    is_greenlet = gevent is not None and isinstance(gevent.getcurrent(), gevent.Greenlet)
    if is_late or (is_greenlet and isinstance(_get_ident, BuiltinFunctionType)):
        cause = "replaced threads after pynamo_locking was imported" if is_late else "has not replaced threads"
        raise ConfigurationError(
            f"gevent {cause}, so a lock could not tell greenlets apart. Nothing was locked. Begin the program with "
            f"`from gevent import monkey; monkey.patch_all()`; with gunicorn --preload, begin its configuration so."
        )


if sys.version_info < (3, 14):
    _Exclusive, _Reentrant = threading.Lock, threading.RLock

    class _Entered:
        """Takes the lock of a condition in a function of C."""

        __enter__ = property(operator.attrgetter("_lock.__enter__"))

else:

    class _Entered:
        """Takes a mutex where no interrupt follows.

        CPython 3.14 lets one in after the call of an `__enter__` of C, before the block has begun: the mutex would stay
        locked. It lets none in where a function of Python returns, nor after a step of an iterator. On 3.15 only what a
        profile function raises comes there.
        """

        acquire: Callable[..., bool]

        def __enter__(self) -> bool:
            return [*map(self.acquire, (True,))][0]  # noqa: RUF015 - an interrupt may follow the call of `next`

    class _Reentrant(_Entered, type(threading.RLock())):  # type: ignore[misc]
        """As `threading.RLock`."""

    class _Exclusive(_Entered):
        """As `threading.Lock`, from which no class can be derived."""

        def __init__(self) -> None:
            self._lock = threading.Lock()
            self.acquire, self.release = self._lock.acquire, self._lock.release

        __exit__ = property(operator.attrgetter("_lock.__exit__"))


class Condition(_Entered, threading.Condition):
    """A condition whose lock stays with nobody after an interrupt.

    `threading` takes and leaves it in functions of Python, where an interrupt can come after the lock was taken and
    before the block has begun. Here `with` finds the functions of the lock itself, which are of C (but see `_Entered`).
    """

    __exit__ = property(operator.attrgetter("_lock.__exit__"))  # pyright: ignore[reportAssignmentType]


#: What enters a block of a generator with `contextlib.contextmanager`.
_ENTER_GENERATOR: Final = contextlib._GeneratorContextManager.__enter__.__code__


def check_context_lasts() -> None:
    """Refuse a block that a thread of anyio has entered by itself, such as that of a synchronous dependency of FastAPI.

    Such a thread has a copy of the context for this one call: nothing that runs in the block would see the lock.
    """
    is_of_anyio = type(threading.current_thread()).__module__.startswith("anyio.")
    frame = sys._getframe(1) if is_of_anyio else None
    while frame is not None and frame.f_back is not None:
        if frame.f_code is _ENTER_GENERATOR and frame.f_back.f_globals.get("__name__", "").startswith("anyio."):
            raise ConfigurationError(
                "a lock or a transaction of a synchronous dependency (`def` with `yield`) would not be seen by the "
                "endpoint: the framework begins the dependency in a thread, whose context ends there. Write the "
                "dependency as `async def` with `async with`, or use `with` in the endpoint. Nothing was locked."
            )
        frame = frame.f_back


class Runtime:
    """The real world.

    Attributes:
        has_wakeups: whether processes of this machine can wake each other.
        has_real_time: whether its seconds are those of event loops.
    """

    has_wakeups: bool = sys.platform != "win32"
    has_real_time = True

    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = _monotonic_source()

    def time_us(self) -> int:
        """Return wall clock time in µs since the epoch. Only ever a hint."""
        return int(time.time() * 1_000_000)  # the clock that PynamoDB asks, and tests of applications patch

    def time_ms(self) -> int:
        """Return wall clock time in ms since the epoch. Only ever a hint."""
        return self.time_us() // 1_000

    def jitter(self) -> float:
        """Return a random number in [0, 1)."""
        return _system_random.random()

    def token(self) -> str:
        """Return a name that is never used twice: 80 random bits."""
        return secrets.token_hex(10)

    def process_part(self) -> str:
        """Return what the ids of all entries of this process begin with; see `process_of`."""
        return _process_part

    def entry_id(self) -> str:
        """Return a name for an entry that is never used twice: the part of this process, and 56 random bits.

        Random, and no count: copies of one machine's memory (Lambda SnapStart) would go on with the same count.
        """
        return self.process_part() + secrets.token_urlsafe(7)

    def exclusive(self) -> threading.Lock:
        """Return a new mutex that is not reentrant."""
        return _Exclusive()

    def event(self) -> threading.Event:
        return threading.Event()

    def mutex(self) -> threading.RLock:
        """Return a new mutex, which its thread may take again (in a signal handler or a finalizer)."""
        return _Reentrant()

    def condition(self) -> threading.Condition:
        return Condition()

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        """Wait, with the condition held, for a notification or `timeout` seconds."""
        # threading refuses timeouts beyond some 292 years
        return condition.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def spawn(self, target: Callable[[], None], name: str) -> None:
        """Start a daemon thread."""
        check_threads()
        threading.Thread(target=target, name=name, daemon=True).start()

    def thread_or_task(self) -> tuple[object, ...]:
        """Return who is running: this thread, and within it the asyncio task if there is one."""
        asyncio = sys.modules.get("asyncio")  # a program with tasks has imported it
        try:
            task = asyncio.current_task() if asyncio is not None else None
        except RuntimeError:  # no event loop runs in this thread
            task = None
        # Weak: the heartbeat refers to the holder, and would keep alive a task whose loop is closed.
        return threading.get_ident(), _thread.token, None if task is None else weakref.ref(task)

    def owner(self) -> str:
        """Return the label that names this process to people, and this thread unless it is the main thread."""
        thread = threading.current_thread()
        return _label(os.getpid(), "" if thread is threading.main_thread() else thread.name)


@functools.lru_cache(maxsize=128)
def _label(process: int, thread: str) -> str:
    """Return a short label, since each waiter stores one: no domain, ``pool-0_1``, ``Thread-1`` without its target."""
    name = socket.gethostname()
    first = name.partition(".")[0]
    host = name if first.isdecimal() else first  # an address is a name without a domain
    thread = thread.partition(" (")[0].replace("ThreadPoolExecutor-", "pool-")
    return ":".join([_cut(host), str(process), *([_cut(thread)] if thread else [])])


def _cut(name: str) -> str:
    return name.encode(errors="replace")[:_LONGEST_PART].decode(errors="ignore")


current = Runtime()


def install(world: Runtime) -> None:
    """Replace the world, for tests."""
    global current  # noqa: PLW0603 - the one seam
    current = world


#: How many forks, and restores from a snapshot, since the import of this package led to this process. What was begun
#: before a fork is the parent's; what was begun before a snapshot was copied with it.
forks = 0


#: 24 random bits, drawn again after a fork and after a restore.
_process_part = secrets.token_urlsafe(3)


def process_of(entry_id: str) -> str:
    """Return the part of an entry's id that names its process."""
    return entry_id[: len(_process_part)]


def _begin_process() -> None:
    global forks, _process_part  # noqa: PLW0603 - one for each process
    forks += 1
    _process_part = secrets.token_urlsafe(3)


def pid() -> int:
    return os.getpid()


def brief_mutex() -> threading.RLock:
    """Return a mutex for a few steps that wait for nothing and send nothing, so that a finalizer may wait for it.

    It is the same in a simulated world, where nobody is interrupted between such steps.
    """
    return _Reentrant()


def living(things: weakref.WeakKeyDictionary[_T, Any]) -> list[_T]:
    """Return the keys as they are now. To iterate over them fails if another thread adds one."""
    return [thing for reference in things.keyrefs() if (thing := reference()) is not None]


def after_fork(callback: Callable[[], None], *, restored: Callable[[], None] | None = None) -> None:
    """Call back in every child process right after a fork, and in every process that is restored from a snapshot.

    Args:
        callback: what to do. In a child there are no threads of the parent. In a restored process (Lambda SnapStart)
            all threads of the snapshot go on.
        restored: what to do after a restore instead.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=callback)
    if _register is not None:
        _register(restored or callback)


after_fork(_begin_process)


def at_exit(callback: Callable[[], None]) -> None:
    """Call back in the main thread when the process ends, after all threads that are no daemons."""
    atexit.register(callback)
