"""Processes of tests and benchmarks: forked from one that has imported what they need, killed and stopped by a plan.

A fresh interpreter takes half a second. The server of `multiprocessing` is a process without threads that has never
made a request; it forks the others. A `Child` is one of them, and a `Crew` is several that do the same; what they note
of it, a line for each thing, is read from their logs afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection

    from tests.engines.engine import Engine

ROOT: Final = Path(__file__).resolve().parents[2]
LIMIT_S: Final = 300.0
"""The longest wait for the end of a process."""

_PDEATHSIG: Final = 1


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


# One process


@functools.cache
def _server() -> Any:
    """What forks processes; it ends with this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.preloaded"])
    return context


class Child:
    """A process that calls a function of a module with a pipe to this process, and with these arguments.

    Attributes:
        pid: its process id.
        pipe: to it.
    """

    def __init__(self, work: Callable[..., object], *arguments: Any) -> None:
        self.pipe, theirs = Pipe()
        self._log = tempfile.NamedTemporaryFile(prefix="child-")  # noqa: SIM115 - closed with it
        self._process: Any = _server().Process(
            target=_live, args=(theirs, self._log.name, dict(os.environ), work, arguments), daemon=True
        )
        self._process.start()
        theirs.close()
        self.pid: int = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> float:
        """SIGKILL it; return a moment after which it did nothing any more. Safe to call twice."""
        self._process.kill()
        self._process.join()
        return time.monotonic()

    def pause(self) -> None:
        """SIGSTOP it, and return once it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        give_up = time.monotonic() + LIMIT_S
        while not self.is_over() and not _stands_still(self.pid):
            assert time.monotonic() < give_up, f"process {self.pid} does not stop\n{self.said()}"
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT it."""
        if not self.is_over():
            os.kill(self.pid, signal.SIGCONT)

    def is_over(self) -> bool:
        """Tell whether it has ended by itself, or was killed."""
        return self._process.exitcode is not None

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        self._process.join(LIMIT_S)
        code: int | None = self._process.exitcode
        assert code is not None, f"process {self.pid} does not end\n{self.said()}"
        return code

    def hear(self) -> Any:
        """Wait for what it sends."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            raise ChildProcessError(f"process {self.pid} has ended: {self.said()}") from error

    def said(self) -> str:
        """Return the end of what it has written to standard output and error."""
        return Path(self._log.name).read_text(errors="replace")[-8000:]

    def close(self) -> None:
        """End it, whatever it is doing."""
        self.kill()
        self.pipe.close()
        self._log.close()


def _stands_still(pid: int) -> bool:
    """Tell whether all threads of a process are stopped."""
    tasks = list(Path(f"/proc/{pid}/task").glob("*/stat"))
    with contextlib.suppress(OSError):  # one of them has just ended
        return all(task.read_text().rpartition(")")[2].split()[0] in "TtZX" for task in tasks)
    return False


def _live(
    pipe: Connection[Any, Any], log: str, environment: dict[str, str], work: Callable[..., object], arguments: Any
) -> None:
    """Be a child. The server ends when nobody has the other end of that descriptor, and with it this process."""
    os.environ.clear()
    os.environ.update(environment)
    with contextlib.suppress(OSError, TypeError):
        os.close(multiprocessing.forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    with ending():
        die_with(os.getppid())
        with Path(log).open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        work(pipe, *arguments)


@contextlib.contextmanager
def process(work: Callable[..., object], *arguments: Any) -> Iterator[Connection[Any, Any]]:
    """Run a function in a process of its own, and kill it at the end. Its first argument is the pipe to here."""
    with Child(work, *arguments) as child:
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
        children = [stack.enter_context(Child(_at_once, places, warm, work, job)) for job in jobs]
        for child in children:
            child.hear()
        for child in children:
            child.pipe.send("begin")
        return [child.hear() for child in children]


def _at_once(
    pipe: Connection[Any, Any], places: Places, warm: Callable[[], object], work: Callable[[Any], object], job: Any
) -> None:
    use(places)
    warm()
    pipe.send("ready")
    pipe.recv()
    pipe.send(work(job))


# Several


class Log:
    """Where one member notes what it does. Each line is one write: one that was killed leaves whole lines.

    Args:
        path: of its file, which others may write as well.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, facts: object) -> None:
        """Add a line."""
        os.write(self._file, json.dumps(facts).encode() + b"\n")


def notes_in(path: Path) -> list[Any]:
    """Return what was noted in a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class Crew:
    """Processes that do the same, each with a number: killed and stopped at random, and replaced.

    Args:
        places: where models are stored, for all of them.
        folder: for their files: the log ``NUMBER.log`` of each, and ``go-on``, which is there until they are to end.
        size: how many.
        work: what they do: called with the number, and these arguments.
        arguments: of that.

    Attributes:
        members: those at work, by number.
        killed: the numbers of those that were killed.
        stopped: how often one was stopped.
    """

    def __init__(self, places: Places, folder: Path, size: int, work: Callable[..., object], *arguments: Any) -> None:
        self.folder = folder
        self.members: dict[int, Child] = {}
        self.killed: set[int] = set()
        self.stopped = 0
        self._role = (places, work)
        self._arguments = arguments
        self._begun = 0
        self._asleep: dict[int, float] = {}
        (folder / "go-on").touch()
        self.start(size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all of them, whatever they are doing."""
        for child in self.members.values():
            child.close()

    def start(self, count: int = 1) -> None:
        """Let so many more begin."""
        for _ in range(count):
            self.members[self._begun] = Child(_member, *self._role, self._begun, *self._arguments)
            self._begun += 1

    def notes(self) -> Iterator[Any]:
        """Return what all of them have noted, one after the other."""
        for path in sorted(self.folder.glob("*.log")):
            yield from notes_in(path)

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
        child = self.kill_number(chooser.choice(self.awake() or list(self.members)))
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

    def until_written(self, more: int) -> bool:
        """Wait until all of them together have written so much more; return whether one of them is still at work."""
        wanted, give_up = self.written() + more, time.monotonic() + LIMIT_S
        while self.written() < wanted and (self.awake() or self._asleep):
            assert time.monotonic() < give_up, f"{self.written()} of {wanted} bytes are written"
            time.sleep(0.005)
            self.wake()
        return bool(self.awake())

    def disturb(
        self,
        chooser: random.Random,
        plan: Iterable[tuple[str, tuple[float, float] | None]],
        after: tuple[int, int],
    ) -> Counter[str]:
        """Do one thing after the other to one of them, and let all come to their end; return how often each was done.

        Args:
            chooser: of the members and moments.
            plan: what each thing is called, and how long one stands still, in seconds; None kills it.
            after: how many bytes they write between two of these.
        """
        did = Counter[str]()
        for name, pause in plan:
            if not self.until_written(chooser.randint(*after)):
                break
            time.sleep(chooser.uniform(0.0, 0.02))  # a few instructions
            did[name] += 1
            if pause is None:
                self.kill(chooser)
            else:
                self.stop(chooser.choice(self.awake()), chooser.uniform(*pause))
        self.finish()
        return did

    def finish(self) -> None:
        """Wait until all of them have slept enough, and have ended what they began."""
        (self.folder / "go-on").unlink()
        while self._asleep:
            time.sleep(max(0.0, min(self._asleep.values()) - time.monotonic()))
            self.wake()
        for child in self.members.values():
            child.wait()
            _has_ended(child)


def _member(_pipe: object, places: Places, work: Callable[..., object], number: int, *arguments: Any) -> None:
    use(places)
    work(number, *arguments)


def _has_ended(child: Child) -> bool:
    """Tell whether a child has ended as it should."""
    is_over = child.is_over()
    assert not is_over or child.wait() == 0, child.said()
    return is_over
