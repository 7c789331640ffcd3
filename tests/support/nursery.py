"""Processes of tests, benchmarks and the demo: forked from one that has imported what they need, killed and stopped.

A fresh interpreter takes half a second. A nursery is a process without threads that has never made a request; it forks
the others, and kills them and waits for them as it is told. Nothing here needs more than the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tests.engines.engine import Engine

ROOT: Final = Path(__file__).resolve().parents[2]
LIMIT_S: Final = 300.0
"""The longest wait for the end of a process."""

_PDEATHSIG: Final = 1
_THIS_TEST: Final = "PYTEST_CURRENT_TEST"


def die_with(parent: int) -> None:
    """Let the kernel end this process together with its parent: also if it is stopped, or hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """End this process, which was forked, with the block: nothing of its parent may run here. An error is reported."""
    code = 1
    try:
        yield
        code = 0
    except BaseException:  # noqa: BLE001 - reported
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# Where models are stored, for another process

Places = list[tuple[Any, dict[str, Any]]]
_OPTIONS: Final = ("table_name", "host", "region", "connect_timeout_seconds", "read_timeout_seconds")


def places_of(engine: Engine, models: Iterable[Any], *more: str, **others: Any) -> Places:
    """Return where models are stored, with more options of each `Meta`, and others of all of them."""
    options = (*_OPTIONS, *more, *engine.credentials)
    return [
        (model, {option: getattr(model.Meta, option) for option in options if hasattr(model.Meta, option)} | others)
        for model in models
    ]


def use(places: Places) -> None:
    """Store models where another process said."""
    for model, options in places:
        for option, value in options.items():
            setattr(model.Meta, option, value)


# The side of the process that wants others


class Child:
    """A process that a nursery has forked.

    Attributes:
        pid: its process id.
        pipe: to it.
    """

    def __init__(self, nursery: Nursery, pid: int, pipe: Connection[Any, Any], log: Any) -> None:
        self.pid = pid
        self.pipe = pipe
        self._nursery = nursery
        self._log = log
        self._code: int | None = None

    def _ask(self, number: int, options: int) -> int | None:
        """Send it a signal, if any, and look for its end."""
        if self._code is None:
            self._code = self._nursery.ask(self.pid, number, options)
        return self._code

    def kill(self) -> float:
        """SIGKILL it; return a moment after which it did nothing any more. Safe to call twice."""
        self._ask(signal.SIGKILL, 0)
        return time.monotonic()

    def pause(self) -> None:
        """SIGSTOP it, and return once it stands still. It must not do so already."""
        self._ask(signal.SIGSTOP, os.WUNTRACED)

    def resume(self) -> None:
        """SIGCONT it."""
        if self._code is None:
            os.kill(self.pid, signal.SIGCONT)

    def is_over(self) -> bool:
        """Tell whether it has ended by itself, or was killed."""
        return self._ask(0, os.WNOHANG) is not None

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        give_up = time.monotonic() + LIMIT_S
        while (code := self._ask(0, os.WNOHANG)) is None:
            assert time.monotonic() < give_up, f"process {self.pid} does not end\n{self.said()}"
            time.sleep(0.005)
        return code

    def hear(self) -> Any:
        """Wait for what it sends."""
        try:
            return self.pipe.recv()
        except EOFError as error:
            raise ChildProcessError(f"process {self.pid} has ended: {self.said()}") from error

    def said(self) -> str:
        """Return the end of what it has written to standard output and error."""
        self._log.seek(0)
        said: str = self._log.read()[-8000:].decode(errors="replace")
        return said

    def close(self) -> None:
        """End it, whatever it is doing."""
        self.kill()
        self._let_go()

    def follow(self) -> None:
        """End with the nursery, which has ended."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):  # the kernel was quicker
                os.kill(self.pid, signal.SIGKILL)
        self._let_go()

    def _let_go(self) -> None:
        self._nursery.children.discard(self)
        self.pipe.close()
        self._log.close()


class Nursery:
    """A process that forks others.

    Args:
        prepare: what it does before, so that they need not.
        arguments: of that.
        path: where modules are looked for before the root of this repository.
        environment: of it; that of this process without.

    Attributes:
        children: those that were not closed yet.
    """

    def __init__(
        self,
        prepare: Callable[..., object] = int,
        *arguments: Any,
        path: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.children: set[Child] = set()
        self._commands, theirs = Pipe()
        self._mutex = threading.Lock()
        paths = [path, str(ROOT)] if path else [str(ROOT)]
        code = f"import sys; sys.path[:1] = {paths!r}; from tests.support.nursery import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(os.getpid()), str(theirs.fileno())],
            cwd=ROOT,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only this process, which ends the others
        )
        theirs.close()
        self._commands.send((prepare, arguments))

    def start(self, work: Callable[..., object], *arguments: Any) -> Child:
        """Start a process that calls a function of a module with the pipe to this process, and with these arguments."""
        ours, theirs = Pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        with self._mutex:
            self._commands.send(("start", work, arguments))
            for descriptor in (theirs.fileno(), log.fileno()):
                reduction.send_handle(self._commands, descriptor, self._process.pid)
            pid = self._heard()
        theirs.close()
        child = Child(self, pid, ours, log)
        self.children.add(child)
        return child

    def ask(self, pid: int, number: int, options: int) -> int | None:
        """Send a signal to a process, if any, and look for its end; return its exit code then."""
        with self._mutex:
            self._commands.send((pid, number, options))
            code: int | None = self._heard()
        return code

    def _heard(self) -> Any:
        try:
            return self._commands.recv()
        except EOFError:
            raise AssertionError("the nursery has ended; its reason stands above") from None

    def close(self) -> None:
        """End it, and all that it has forked, whatever they are doing."""
        self._process.kill()
        self._process.wait()
        self._commands.close()
        for child in list(self.children):
            child.follow()


def shared(prepare: Callable[..., object] = int) -> Nursery:
    """Return this process's own nursery that has prepared itself so. It ends with this process."""
    return _shared(os.getpid(), frozenset(os.environ.items() - {(_THIS_TEST, os.environ.get(_THIS_TEST))}), prepare)


@functools.cache
def _shared(_parent: int, _environment: frozenset[tuple[str, str]], prepare: Callable[..., object]) -> Nursery:
    nursery = Nursery(prepare)
    atexit.register(nursery.close)
    return nursery


@contextlib.contextmanager
def process(work: Callable[..., object], *arguments: Any) -> Iterator[Connection[Any, Any]]:
    """Run a function in a process of its own, and kill it at the end. Its first argument is the pipe to here."""
    with contextlib.closing(shared().start(work, *arguments)) as child:
        try:
            yield child.pipe
        except EOFError as error:
            raise ChildProcessError(f"a process has ended by itself: {child.said()}") from error


def at_once(
    places: Places, warm: Callable[[], object], work: Callable[[Any], object], jobs: Iterable[Any]
) -> list[Any]:
    """Let a process do each job, all of them from the same moment on; return what each of them has found.

    Args:
        places: where models are stored.
        warm: what each does before, as to connect.
        work: what each does with its job.
        jobs: one for each process.
    """
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(contextlib.closing(shared().start(_at_once, places, warm, work, job))) for job in jobs
        ]
        for child in children:
            child.hear()
        for child in children:
            child.pipe.send("begin")
        return [child.hear() for child in children]


def _at_once(
    pipe: Connection[Any, Any],
    places: Places,
    warm: Callable[[], object],
    work: Callable[[Any], object],
    job: Any,
) -> None:
    use(places)
    warm()
    pipe.send("ready")
    pipe.recv()
    pipe.send(work(job))


class Crew:
    """Processes that do the same, each with a number: killed and stopped at random, and replaced.

    Args:
        nursery: forks them, and ends with them.
        folder: for their files: the log ``NUMBER.log`` of each, and ``go-on``, which is there until they are to end.
        size: how many.
        work: what they do: called with a pipe, the number, and these arguments.
        arguments: of that.

    Attributes:
        members: those at work, by number.
        killed: the numbers of those that were killed.
        stopped: how often one was stopped.
    """

    def __init__(self, nursery: Nursery, folder: Path, size: int, work: Callable[..., object], *arguments: Any) -> None:
        self.folder = folder
        self.members: dict[int, Child] = {}
        self.killed: set[int] = set()
        self.stopped = 0
        self._nursery = nursery
        self._work, self._arguments = work, arguments
        self._begun = 0
        self._asleep: dict[int, float] = {}
        (folder / "go-on").touch()
        self.start(size)

    def start(self, count: int = 1) -> None:
        """Let so many more begin."""
        for _ in range(count):
            self.members[self._begun] = self._nursery.start(self._work, self._begun, *self._arguments)
            self._begun += 1

    def written(self) -> int:
        """Return how many bytes all of them have written into their logs."""
        return sum(path.stat().st_size for path in self.folder.glob("*.log"))

    def awake(self) -> list[int]:
        """Return the numbers of those that are at work: neither asleep nor at their end."""
        return [
            number for number, child in self.members.items() if number not in self._asleep and not _has_ended(child)
        ]

    def kill(self, chooser: random.Random) -> Child:
        """Kill one of them, whatever it is doing, and let another one take its place; return the dead one."""
        child = self.kill_number(chooser.choice(list(self.members)))
        self.start()
        return child

    def kill_number(self, number: int) -> Child:
        """Kill this one."""
        self._asleep.pop(number, None)
        child = self.members.pop(number)
        child.kill()
        assert child.wait() in (0, -signal.SIGKILL), child.said()
        child.close()
        self.killed.add(number)
        return child

    def stop(self, number: int, seconds: float) -> None:
        """Let this one stand still for so long."""
        self.members[number].pause()
        self._asleep[number] = time.monotonic() + seconds
        self.stopped += 1

    def wake(self, *, early: bool = False) -> None:
        """Let those go on that have stood still for long enough, or all."""
        for number, due in list(self._asleep.items()):
            if early or due <= time.monotonic():
                self.members[number].resume()
                del self._asleep[number]

    def finish(self) -> None:
        """Wait until all of them have slept enough, and have ended what they began."""
        (self.folder / "go-on").unlink()
        while self._asleep:
            time.sleep(max(0.0, min(self._asleep.values()) - time.monotonic()))
            self.wake()
        for child in self.members.values():
            child.wait()
            _has_ended(child)

    def close(self) -> None:
        """End all of them, whatever they are doing."""
        self._nursery.close()


def _has_ended(child: Child) -> bool:
    """Tell whether a child has ended as it should."""
    is_over = child.is_over()
    assert not is_over or child.wait() == 0, child.said()
    return is_over


# The nursery's side


def serve() -> None:
    """Be the nursery of the process that has started this one, and end with it."""
    parent, descriptor = map(int, sys.argv[1:])
    die_with(parent)
    commands: Connection[Any, Any] = Connection(descriptor)
    prepare, arguments = commands.recv()
    prepare(*arguments)
    gc.collect()
    while True:
        try:
            command, *given = commands.recv()  # which imports what a process needs
        except EOFError:
            return
        commands.send(_forked(commands, *given) if command == "start" else _end_of(command, *given))


def _forked(commands: Connection[Any, Any], work: Callable[..., object], arguments: tuple[Any, ...]) -> int:
    pipe, log = (reduction.recv_handle(commands) for _ in range(2))
    nursery = os.getpid()
    gc.freeze()
    pid = os.fork()
    if not pid:
        with ending():
            die_with(nursery)
            commands.close()
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            work(Connection(pipe), *arguments)
    os.close(pipe)
    os.close(log)
    return pid


def _end_of(pid: int, number: int, options: int) -> int | None:
    if number:
        os.kill(pid, number)
    ended, status = os.waitpid(pid, options)
    return os.waitstatus_to_exitcode(status) if ended and not os.WIFSTOPPED(status) else None
