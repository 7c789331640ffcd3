"""Two processes beside a program that runs under a lock: the starter becomes it, the guardian ends it.

This file is run as a script and imports nothing of the package, so that it starts in milliseconds. Without arguments it
is the guardian, which ends the program if the holder of the lock cannot. The holder writes lines to its standard input:
``<process group> <seconds>`` says how long the lease lasts from now on, ``done`` that nothing is left to be guarded.

* The end of the input without ``done``: the holder died. The program is told to stop, and killed before its lease ends.
* No line before the lease has ended: the holder was stopped, or hangs. The program is killed at once.

Signals that are meant for all processes of a service, such as the SIGTERM by which it is stopped, do not end the
guardian, because the program may take a while to stop. It ends when it reads ``done``, or when the holder has died.

With arguments it is the starter, in a session of its own: it tells the guardian its number, and then becomes the
program. So the program never runs without a guardian that would end it. The arguments are those of `start`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

#: A program whose holder has died gets so long to stop by itself, in seconds.
_GRACE_S = 5.0

#: Python ignores these signals, and the program would inherit that.
_IGNORED = ("SIGPIPE", "SIGXFSZ")


def start(guardian: int, errors: int, seconds: str, path: str, command: list[str]) -> None:
    """Become the program.

    Args:
        guardian: the file descriptor of the guardian's input.
        errors: another one, for the number of the error if the program cannot be started.
        seconds: for how long the program is guarded unless the guardian is told otherwise.
        path: of the program.
        command: its arguments, the first of which is its name.
    """
    for descriptor in (guardian, errors):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - the program does not inherit it
    os.write(guardian, f"{os.getpid()} {seconds}\n".encode())
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execv(path, command)  # noqa: S606 - what the person asked for
    except OSError as error:
        os.write(errors, str(error.errno).encode())
        os._exit(1)


def guard(source: int) -> None:
    """Read lines from a file descriptor until there is nothing left to guard."""
    group, unread = 0, b""
    ends: float | None = None
    while True:
        left = None if ends is None else max(0.0, ends - time.monotonic())
        if not select.select([source], [], [], left)[0]:
            _send(group, signal.SIGKILL)
            return
        got = os.read(source, 4096)
        if not got:
            end_slowly(group, 0.0 if left is None else min(left, _GRACE_S))
            return
        *lines, unread = (unread + got).split(b"\n")
        if b"done" in lines:
            return
        if lines:
            first, second = lines[-1].split()
            group, ends = int(first), time.monotonic() + float(second)


def end_slowly(group: int, grace: float) -> None:
    """Tell the processes of a group to stop, and kill those that are still there after so many seconds."""
    ends = time.monotonic() + grace
    _send(group, signal.SIGTERM)
    while time.monotonic() < ends and _send(group, 0):
        time.sleep(0.02)
    _send(group, signal.SIGKILL)


def _send(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether there is one."""
    if not group:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def ignore_signals() -> None:
    """Let the guardian survive the signals that end a service."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)


if __name__ == "__main__":
    if sys.argv[1:]:
        start(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
    ignore_signals()
    guard(sys.stdin.fileno())
