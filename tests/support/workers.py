"""Processes under remote control: the parent says what to do and when, also to kill or stop them.

Each worker serves one command after the other, in its main thread, over a pipe:

    with crew(engine, 2, Plain) as (first, second):
        first.call("enter", Plain, "a")           # waits for the result
        second.start("enter", Plain, "a")         # does not
        first.kill()
        assert second.result().ticket > ...

The commands are the methods of `Actions`. An exception of a command is raised again by `result()`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import pickle
import signal
import socket
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import snapshot_restore_py
from pynamodb.attributes import NumberAttribute, UnicodeAttribute, VersionAttribute

from pynamo_locking import LockableModel, LockAttribute, LockSettings, NamedLock, TransactWrite
from pynamo_locking._locks import local_queue
from pynamo_locking._locks.acquire import Acquisition
from pynamo_locking.exceptions import LockLost
from tests.support.crew import Child, Places, die_with, ending, places_of, use
from tests.support.models import declare, meta
from tests.support.wire import Send, count_requests, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking import Lock
    from pynamo_locking.inspection import QueueEntry
    from pynamo_locking.recipes import LeaderTerm
    from tests.engines.engine import Engine

T = TypeVar("T")

PATIENCE: Final = 60.0
"""Seconds after which a test gives up; never the time that something should take."""

SETTINGS: Final = LockSettings(poll_interval=0.02, request_timeout=5)


class Plain(LockableModel):
    """An item with its lock inside, and nothing but the lock to protect it."""

    Meta = meta("plain", lock_settings=SETTINGS)

    name = UnicodeAttribute(hash_key=True)
    value = NumberAttribute(default=0)
    by = UnicodeAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Versioned(LockableModel):
    """An item with its lock inside, and a version."""

    Meta = meta("versioned", lock_settings=SETTINGS)

    name = UnicodeAttribute(hash_key=True)
    value = NumberAttribute(default=0)
    by = UnicodeAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


Locks = declare("Locks", NamedLock, table_name="locks", lock_settings=SETTINGS)


class Beside(LockableModel):
    """An item whose lock is a row of its own."""

    Meta = meta("beside", lock_settings=SETTINGS, lock_table=Locks)

    name = UnicodeAttribute(hash_key=True)
    value = NumberAttribute(default=0)
    by = UnicodeAttribute(null=True)
    version = VersionAttribute()


class Enforced(LockableModel):
    """Every write meets the locks of ranges, which are in another table; a version."""

    Meta = meta("workers-enforced", lock_table=Locks, enforce_locks="ranges")

    key = UnicodeAttribute(hash_key=True)
    at = NumberAttribute(range_key=True)
    value = NumberAttribute(default=0)
    by = UnicodeAttribute(null=True)
    version = VersionAttribute()


# Waiting for a condition


def until(condition: Callable[[], T], what: str = "the condition") -> T:
    """Poll until the condition is true, and return its value."""
    give_up = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < give_up, f"waited {PATIENCE:g} s in vain for {what}"
        time.sleep(0.01)
    return value


def until_queued(model: Any, key: str, count: int) -> list[int]:
    """Wait until so many are in the queue; return their tickets, the holder's first."""

    def tickets() -> list[int] | None:
        found = [entry.ticket for entry in model.lock_state(key).entries]
        return found if len(found) == count else None

    return until(tickets, f"{count} entries in the queue of {key}") or []


def steps_of(lock: Any) -> Any:
    """Return the steps of taking a lock, which a test makes one by one."""
    return Acquisition(lock._handle.target.row, lock._handle.options).steps()


def in_line(model: Any, key: str) -> list[local_queue.LocalWaiter]:
    """Return the callers of this process that wait behind the one that acts for them, and have no entry."""
    cohort = local_queue.local_queues.get(model._target_of(key, None).row.identity)
    return [] if cohort is None else list(cohort.waiting)


def until_in_line(model: Any, key: str, count: int) -> None:
    """Wait until so many callers of this process are in line."""
    until(lambda: len(in_line(model, key)) == count, f"{count} callers in line for {key}")


def until_next_beat(model: Any, key: str, ticket: int) -> float:
    """Wait for a renewal of that entry; return a moment before it was written."""
    looked = time.monotonic()
    before = _entry(model, key, ticket).heartbeats

    def is_renewed() -> bool:
        nonlocal looked
        now = time.monotonic()
        if _entry(model, key, ticket).heartbeats > before:
            return True
        looked = now
        return False

    until(is_renewed, f"a renewal of ticket {ticket}")
    return looked


def until_over(model: Any, key: str, ticket: int, seconds: float = 0.0) -> None:
    """Wait until the stored end of the entry's lease was so many seconds ago."""

    def is_over() -> bool:
        return time.time() * 1000 - _entry(model, key, ticket).until_ms > seconds * 1000

    until(is_over, f"the end of the lease of ticket {ticket}")


def _entry(model: Any, key: str, ticket: int) -> QueueEntry:
    entries: tuple[QueueEntry, ...] = model.lock_state(key).entries
    found = [entry for entry in entries if entry.ticket == ticket]
    assert found, f"ticket {ticket} left the queue"
    return found[0]


# The parent's side


class RemoteTraceback(Exception):  # noqa: N818 - shown as the cause of a worker's exception
    """What the worker's traceback looked like."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Remote:
    """A process that serves commands from this one."""

    def __init__(self, connection: Connection, pid: int, process: Child) -> None:
        self.pid = pid
        self._connection = connection
        self._process = process

    def start(self, action: str, *args: Any, **kwargs: Any) -> None:
        """Give a command, and do not wait."""
        self._connection.send((action, args, kwargs))

    def result(self, patience: float = PATIENCE) -> Any:
        """Wait for the result of the oldest command that was started; raise what it raised."""
        is_good, value = self._receive(patience)
        if is_good:
            return value
        error, trace = value
        raise error from RemoteTraceback(trace)

    def failure(self) -> BaseException:
        """Wait for the command to fail, and return its exception."""
        is_good, value = self._receive()
        assert not is_good, f"the command succeeded with {value!r}"
        error: BaseException = value[0]
        return error

    def call(self, action: str, *args: Any, **kwargs: Any) -> Any:
        """Give a command and return its result."""
        self.start(action, *args, **kwargs)
        return self.result()

    def is_waiting(self) -> bool:
        """Whether the command that was started has no result yet."""
        return not self._connection.poll(0)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def _receive(self, patience: float = PATIENCE) -> tuple[bool, Any]:
        try:
            if not self._connection.poll(patience):
                os.kill(self.pid, signal.SIGUSR1)  # faulthandler prints where its threads are
                time.sleep(0.5)
                raise AssertionError(f"no answer from worker {self.pid}\n{self._process.said()}")
            answer: tuple[bool, Any] = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise AssertionError(f"worker {self.pid} died\n{self._process.said()}") from None
        return answer

    def close(self) -> None:
        """Hang up; the process ends."""
        self._connection.close()


class Worker(Remote):
    """A child process that has not used the library before."""

    def __init__(self, engine: Engine, *models: type[Any]) -> None:
        process = Child(main, places_of(engine, models, "lock_settings"))
        super().__init__(process.pipe, process.pid, process)

    def kill(self) -> float:
        """SIGKILL it; return a moment after which it did nothing any more."""
        return self._process.kill()

    def pause(self) -> None:
        """SIGSTOP it, and return once it stands still."""
        self._process.pause()

    def resume(self) -> None:
        """SIGCONT it."""
        self._process.resume()

    def fork(self) -> Remote:
        """Let it fork; return the child, with all that it inherited."""
        ours, theirs = Pipe()
        self.start("fork")
        reduction.send_handle(self._connection, theirs.fileno(), self.pid)
        theirs.close()
        return Remote(ours, self.result(), self._process)

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._process.close()


@contextlib.contextmanager
def crew(engine: Engine, count: int, *models: type[Any]) -> Iterator[list[Worker]]:
    """Start so many workers for models that are bound to the engine; all are ready, and end at the end."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(contextlib.closing(Worker(engine, *models))) for _ in range(count)]
        for worker in workers:
            said = worker.result()
            assert said == "ready"
        yield workers


# The worker's side


class Taken(NamedTuple):
    """A lock that was taken."""

    ticket: int
    at: float
    """When, on the monotonic clock that all processes share."""


class Increment(NamedTuple):
    """A locked increment of an item's value."""

    key: str
    ticket: int
    value: int


class Facts(NamedTuple):
    """What a worker knows of its lock."""

    lost: bool
    lost_before: bool
    """The event of `Lock.lost` as it was handed out when the lock was taken."""
    reasons: list[str]
    is_held: bool


@dataclass
class _Held:
    stack: contextlib.ExitStack
    lock: Lock[Any]
    lost: threading.Event
    reasons: list[str] = field(default_factory=list)
    called: threading.Event = field(default_factory=threading.Event)


@dataclass
class _Line:
    """Threads that want the same lock."""

    numbers: Iterator[int] = field(default_factory=itertools.count)
    gate: threading.Event = field(default_factory=threading.Event)
    has_stopped: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)
    done: list[Increment] = field(default_factory=list)
    lost: list[int | None] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)


class Actions:
    """What a worker can do."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held: dict[str, _Held] = {}
        self._made: Any = None
        self._line = _Line()
        self._campaign: Any = None
        self._terms: list[LeaderTerm] = []
        self._reasons: list[str] = []
        self._stack = contextlib.ExitStack()

    def enter(self, model: Any, key: str, **options: Any) -> Taken:
        """Go into ``with model.locked(key)``."""
        reasons, called = list[str](), threading.Event()

        def on_lost(reason: str) -> None:
            reasons.append(reason)
            called.set()

        stack = contextlib.ExitStack()
        lock = stack.enter_context(model.locked(key, on_lost=on_lost, **options))
        at = time.monotonic()
        self._held[key] = _Held(stack, lock, lock.lost, reasons, called)
        return Taken(lock.ticket, at)

    def attach(self, model: Any, key: str, token: str) -> Taken:
        """Go into ``with model.attach(token)``."""
        stack = contextlib.ExitStack()
        lock = stack.enter_context(model.attach(token))
        self._held[key] = _Held(stack, lock, lock.lost)
        return Taken(lock.ticket, time.monotonic())

    def detach(self, key: str, lease: float | None = None) -> str:
        """Detach the lock, and leave the block; return the token."""
        token: str = self._held[key].lock.detach(lease)
        self.leave(key)
        return token

    def die_at(self, number: int, *, is_sent: bool) -> None:
        """Be killed at that update from now on, counted from 1: before it is sent, or when it was answered."""
        updates = itertools.count(1)

        def answer(send: Send, operation: str, _kwargs: dict[str, Any]) -> Any:
            is_last = operation == "UpdateItem" and next(updates) == number
            answered = send() if is_sent or not is_last else None
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return answered

        self._stack.enter_context(intercepted(answer))

    def enter_counting(self, model: Any, key: str, **options: Any) -> tuple[Taken, list[tuple[str, Any]]]:
        """`enter`, with the requests that it took."""
        with count_requests() as counted:
            return self.enter(model, key, **options), counted.bodies

    def add(self, key: str, amount: int = 1) -> int:
        """Change the locked item, save it, and return its value."""
        item = self._held[key].lock.item
        item.value += amount
        item.save()
        return int(item.value)

    def leave(self, key: str) -> None:
        """Leave the with-block."""
        self._held.pop(key).stack.close()

    def facts(self, key: str) -> Facts:
        """Say what is known of the lock."""
        held = self._held[key]
        return Facts(held.lock.lost.is_set(), held.lost.is_set(), held.reasons, held.lock.is_held)

    def wait_for_loss(self, key: str) -> Facts:
        """Wait until the lock is lost and the callback was called."""
        held = self._held[key]
        was_lost, was_called = held.lost.wait(PATIENCE), held.called.wait(PATIENCE)
        assert was_lost, f"the lock of {key} was lost, and after {PATIENCE:g} s its holder has not noticed"
        assert was_called, f"the loss of the lock of {key} was noticed, and on_lost was not called in {PATIENCE:g} s"
        return self.facts(key)

    def campaign(self, model: Any, key: str, **options: Any) -> None:
        """Be a candidate; the work of the leader goes on until its term has ended."""

        def work(term: LeaderTerm) -> None:
            self._terms.append(term)
            term.ended.wait()

        self._campaign = model.lead(key, on_elected=work, on_lost=self._reasons.append, **options)
        self._campaign.start()

    def elected(self) -> Taken:
        """Wait until this process leads, and its work has begun."""
        term = self._campaign.elected(PATIENCE)
        at = time.monotonic()
        assert term is not None, f"this candidate was not elected in {PATIENCE:g} s"
        until(lambda: term in self._terms)
        return Taken(term.ticket, at)

    def led(self) -> tuple[bool, list[str]]:
        """Say whether this process believes to lead, once a term has ended, and why those that ended did."""
        until(lambda: self._reasons)
        return self._campaign.is_leader, self._reasons

    def write_as_leader(self, model: Any, key: str, term: int = -1) -> int:
        """Write the number of a term into an item, in a transaction that checks the term; return the number."""
        led = self._terms[term]
        with TransactWrite(connection=model._get_connection().connection) as transaction:
            led.add_check_to(transaction)
            actions = [model.value.set(led.ticket)]
            transaction.update(model(key), actions=actions, add_version_condition=False)
        return led.ticket

    def stop_campaign(self) -> None:
        """Go back to work, and leave."""
        self._campaign.stop()

    def edit(self, model: Any, keys: list[str]) -> list[Increment]:
        """Increment each item with ``edit()``."""
        done = []
        for key in keys:
            edit = model.edit(key)
            with edit as item:
                item.value += 1
            done.append(Increment(key, edit.lock.ticket, int(item.value)))
        return done

    def lock_and_save(self, model: Any, keys: list[str]) -> list[Increment]:
        """Increment each item with ``locked()`` and ``save()``."""
        done = []
        for key in keys:
            with model.locked(key) as lock:
                lock.item.value += 1
                lock.item.save()
            done.append(Increment(key, lock.ticket, int(lock.item.value)))
        return done

    def make_lock(self, model: Any, key: str) -> None:
        """Make a lock to be used by `ports` later."""
        self._made = model.locked(key)

    def ports(self) -> set[int]:
        """Take that lock, write its item, and return the local ports of all requests."""
        used = set()
        send = socket.socket.sendall

        def noting(connection: socket.socket, *args: Any) -> None:
            used.add(connection.getsockname()[1])
            send(connection, *args)

        socket.socket.sendall = noting  # type: ignore[assignment,method-assign]
        try:
            with self._made as lock:
                lock.item.save()
        finally:
            socket.socket.sendall = send  # type: ignore[method-assign]
        return used

    def crowd(self, model: Any, key: str, count: int, *, settings: LockSettings) -> None:
        """Start so many threads that wait for the lock for ever, each with an entry of its own."""
        for _ in range(count):
            lock = model.locked(key, wait=float("inf"), settings=replace(settings, max_callers_per_entry=1))
            threading.Thread(target=lock.acquire, daemon=True).start()

    def line_up(self, model: Any, key: str, count: int, *, stops_at: int = -1, times: int = 1, **options: Any) -> None:
        """Start so many threads that edit an item so often; that many edits are done when one stops with the lock.

        If one stops, all others are in line behind the first by then.
        """
        line = self._line = _Line()

        def work() -> None:
            for _ in range(times):
                edit, number = model.edit(key, **options), -1
                try:
                    with edit as item:
                        number = next(line.numbers)
                        if number == 0 <= stops_at:
                            until_in_line(model, key, count - 1)
                        if number == stops_at:
                            line.has_stopped.set()
                            line.gate.wait(PATIENCE)
                        item.value += 1
                    line.done.append(Increment(key, edit.lock.ticket, int(item.value)))
                except LockLost as loss:
                    line.lost.append(loss.ticket)
                except Exception as error:  # noqa: BLE001 - raised where the line is over
                    line.failed.append(error)

        line.threads += [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in line.threads:
            thread.start()

    def until_one_stops(self) -> None:
        """Wait until a thread stands in its block with the lock."""
        assert self._line.has_stopped.wait(PATIENCE), "no thread has come to the place where it stops"

    def line_is_over(self) -> tuple[list[Increment], list[int | None]]:
        """Let the thread that stopped go on; return what was done, and which tickets were lost."""
        self._line.gate.set()
        for thread in self._line.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        if self._line.failed:
            raise self._line.failed[0]
        return sorted(self._line.done, key=lambda done: done.ticket), self._line.lost

    def fork(self) -> int:
        """Fork; the child, which is the rest of this process's main thread, serves a pipe of its own."""
        pipe: Connection = Connection(reduction.recv_handle(self._connection))
        pid = _fork()
        if pid:
            pipe.close()
            return pid
        with ending():
            self._connection.close()
            _serve(pipe, self)
        raise AssertionError("unreachable")

    def fork_often(self, model: Any, keys: list[str]) -> list[int]:
        """Fork once for each key; each child edits that item. Return the children's exit codes."""
        codes = []
        for key in keys:
            pid = _fork()
            if not pid:
                with ending():
                    signal.alarm(20)
                    with model.edit(key) as item:
                        item.value += 1
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return codes

    def be_restored(self) -> None:
        """Hear of a restore, as if this process had just been restored from a snapshot; its threads go on."""
        for hook, args, kwargs in snapshot_restore_py.get_after_restore():
            hook(*args, **kwargs)

    def fork_many(
        self, load: Callable[[int], Any], count: int, *, fork: Callable[[], int] | None = None, **options: Any
    ) -> list[Any]:
        """Load something, and fork so many children; they and the parent work on it. Return what `work` returned."""
        loaded = load(count + 1)
        pipes = []
        for party in range(1, count + 1):
            ours, theirs = Pipe(duplex=False)
            if not (fork or _fork)():
                with ending():
                    theirs.send(loaded.work(party, **options))
            theirs.close()
            pipes.append(ours)
        done = [loaded.work(0, **options), *(pipe.recv() for pipe in pipes)]  # each sends less than a pipe holds
        for _ in pipes:
            os.wait()
        return done


def _fork() -> int:
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: those are the point
        pid = os.fork()
    if not pid:
        die_with(parent)
    return pid


def _serve(connection: Connection, actions: Actions) -> None:
    while True:
        try:
            name, args, kwargs = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        connection.send(_answer(getattr(actions, name), args, kwargs))


def _answer(action: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
    try:
        return True, action(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - the parent raises it again
        trace = traceback.format_exc()
        try:
            pickle.dumps(error)
        except Exception:  # noqa: BLE001 - whatever keeps it from being sent
            return False, (RuntimeError(repr(error)), trace)
        return False, (error, trace)


def main(connection: Connection, places: Places) -> None:
    """Serve commands in a worker process."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", r"datetime\.datetime\.utcnow", DeprecationWarning)
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started without one
    use(places)
    for model, _ in places:
        if hasattr(model, "lock_state"):
            model.lock_state("warm up")
    connection.send((True, "ready"))
    _serve(connection, Actions(connection))
