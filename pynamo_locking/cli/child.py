"""A program and all that it starts: one process group, which can be told to stop, and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import Self

from pynamo_locking.cli.ending import Handlers, stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

#: The pause between two checks whether a group has ended.
_LOOK_S: Final = 0.02
#: A killed process ends in microseconds, unless it hangs in the kernel.
_GONE_S: Final = 5.0

#: The signals that are passed on to the program, as far as the system has them.
FORWARDED: Final = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)

#: Those that ask the program to end.
STOPPING: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)


def _script(name: str) -> list[str]:
    """Return the command that runs a module of this package by itself, with nothing but the standard library."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name(f"{name}.py"))]


class Child:
    """A program in a session, and so in a process group, of its own, with a guardian beside it.

    The lease lasts for `guarded_s` seconds from now on (see `is_guarded_for`). When the program has ended, `on_end` is
    called on a thread of its own. An OSError says that the program could not be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        path: str,
        environment: Mapping[str, str],
        guarded_s: float,
        on_end: Callable[[], None],
    ) -> None:
        self._guardian = subprocess.Popen(  # noqa: S603 - our own script
            _script("guardian"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._guardian.stdin is not None  # noqa: S101 - it is a pipe
        self._to_guardian = self._guardian.stdin
        os.set_blocking(self._to_guardian.fileno(), False)
        try:
            self._process = self._start(command, path, environment, guarded_s)
        except BaseException:
            self._dismiss_guardian()
            raise
        self._on_end = on_end
        self._waiter = threading.Thread(target=self._wait, name="pynamo-locking-child", daemon=True)
        self._waiter.start()

    def _start(
        self, command: Sequence[str], path: str, environment: Mapping[str, str], guarded_s: float
    ) -> subprocess.Popen[bytes]:
        """Start a process that tells the guardian its number, and then becomes the program."""
        guardian = self._to_guardian.fileno()
        errors, theirs = os.pipe()
        with os.fdopen(errors, "rb") as reader:
            try:
                process = subprocess.Popen(  # noqa: S603 - what the person asked for
                    [*_script("starter"), str(guardian), str(theirs), str(guarded_s), path, *command],
                    env=environment,
                    pass_fds=(guardian, theirs),
                    start_new_session=True,
                )
            finally:
                os.close(theirs)
            number = reader.read()  # ends when it has become the program
        if number:
            process.wait()
            raise OSError(int(number), os.strerror(int(number)), path)
        return process

    def _wait(self) -> None:
        self._process.wait()
        self._on_end()

    @property
    def has_ended(self) -> bool:
        """Whether the program itself has ended; processes that it started may still run."""
        return self._process.returncode is not None

    @property
    def exit_code(self) -> int:
        """That of the program, as a shell has it: 128 and the number of the signal that killed it."""
        self._waiter.join()
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def is_guarded_for(self, remaining: float) -> None:
        """Let the guardian kill the group unless it is told again within so many seconds."""
        self._tell_guardian(f"{self._process.pid} {max(0.0, remaining)}")

    def send(self, number: int) -> bool:
        """Send a signal to the program and all that it started; return whether anything of it was there."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS says so of zombies; or it runs as another user
            return not self.has_ended
        return True

    def end(self, grace: float) -> None:
        """Tell all processes of the group to stop, and kill those that are still there after so many seconds."""
        ends = time.monotonic() + grace
        if self.send(signal.SIGTERM):
            self.send(signal.SIGCONT)  # a stopped process could not end
        self._wait_until_gone(ends)
        if self.send(signal.SIGKILL):
            self._wait_until_gone(time.monotonic() + _GONE_S)

    def _wait_until_gone(self, ends: float) -> None:
        while time.monotonic() < ends and self.send(0) and _does_something(self._process.pid):
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Kill what is left of the group, and dismiss the guardian."""
        if self.send(signal.SIGKILL):
            self._wait_until_gone(time.monotonic() + _GONE_S)
        self._dismiss_guardian()

    def _tell_guardian(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it was killed, or stopped and its pipe is full
            os.write(self._to_guardian.fileno(), f"{line}\n".encode())

    def _dismiss_guardian(self) -> None:
        self._tell_guardian("done")
        with contextlib.suppress(OSError):
            self._to_guardian.close()
        try:
            self._guardian.wait(_GONE_S)
        except subprocess.TimeoutExpired:  # a signal has stopped it
            self._guardian.kill()
            self._guardian.wait()


def _does_something(group: int) -> bool:
    """Tell whether a process group has a live process. Dead ones may wait for a slow init process to reap them."""
    if not Path("/proc/self/stat").exists():
        return True  # not Linux: there is no way to tell
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
            state, _, its_group = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


class Signals(Handlers):
    """Takes the signals that are meant for the program, and passes them on.

    While the lock is waited for, the first signal is raised as `Stopped`, and later ones are dropped. After `keep`
    they are kept for the program. Ctrl-Z is ignored: a stopped process renews no lock. `has_stopped` says whether one
    came that asks the program to end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._child: Child | None = None
        self._kept: list[int] = []
        self._raise = True
        self.has_stopped = False

    def __enter__(self) -> Self:
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` wants it
                self.handle(number, self._take)
        if hasattr(signal, "SIGTSTP"):
            self.handle(signal.SIGTSTP, lambda *_: None)
        return self

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self.has_stopped = self.has_stopped or number in STOPPING
        if self._child is not None:
            self._child.send(number)
        elif self._raise:
            stop(number)
        else:
            self._kept.append(number)

    def keep(self) -> None:
        """From now on keep what arrives for the program, which is about to be started."""
        self._raise = False

    def raise_again(self) -> None:
        """From now on raise the first signal again: the lock is waited for once more."""
        self._kept.clear()
        self._raise = True

    def pass_on_to(self, child: Child | None) -> None:
        """From now on pass on what arrives, and what was kept. With None the program has ended: drop both."""
        self._child = child
        while child is not None and self._kept:
            child.send(self._kept.pop(0))
