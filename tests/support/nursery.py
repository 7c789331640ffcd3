"""Processes for tests, forked from one that has imported what they need: a fresh interpreter takes half a second.

The nursery is a process without threads that has never made a request. What it forks is adopted by the test process,
which is its parent from then on, and can wait for it, stop it and kill it as it can its own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
_PDEATHSIG: Final = 1
_CHILD_SUBREAPER: Final = 36
_PID_BYTES: Final = 8
_MOST_DESCRIPTORS: Final = 8
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
        sys.stderr.flush()
        os._exit(code)


class Child:
    """A process of which this one is the parent."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._has_ended = False

    def kill(self) -> None:
        """SIGKILL it. Safe to call twice."""
        if not self._has_ended:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end. Safe to call twice."""
        if not self._has_ended:
            os.waitpid(self.pid, 0)
            self._has_ended = True


def start(log: int, *descriptors: int) -> Child:
    """Start a process that runs what the nursery was made for, with these descriptors; it writes to the log."""
    nursery = _nursery(os.getpid(), frozenset(os.environ.items() - {_THIS_TEST: os.environ.get(_THIS_TEST)}.items()))
    prctl = ctypes.CDLL(None).prctl
    prctl(_CHILD_SUBREAPER, 1)  # only now: orphans of programs under test go where they always go
    try:
        socket.send_fds(nursery, [b"x"], [log, *descriptors])
        pid = int.from_bytes(nursery.recv(_PID_BYTES), "big")
    finally:
        prctl(_CHILD_SUBREAPER, 0)
    assert pid, "the nursery has ended"
    return Child(pid)


@functools.cache
def _nursery(parent: int, _environment: frozenset[tuple[str, str]]) -> socket.socket:
    """Return the connection to this process's own nursery with these variables, which ends with it."""
    ours, theirs = socket.socketpair()
    warn = ["-W", "error", "-W", "ignore:datetime.datetime.utcnow:DeprecationWarning"]
    code = "from tests.support.workers import raise_workers; raise_workers()"
    process = subprocess.Popen(
        [sys.executable, *warn, "-c", code, str(parent), str(theirs.fileno())],
        cwd=ROOT,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.kill()
        process.wait()

    atexit.register(end)
    return ours


def serve(live: Callable[..., Any]) -> None:
    """Be the nursery of the process that has started this one: run ``live(*descriptors)`` in each that it asks for."""
    parent, descriptor = map(int, sys.argv[1:])
    die_with(parent)
    pipe = socket.socket(fileno=descriptor)
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(pipe, 1, _MOST_DESCRIPTORS)
        if not message:
            pipe.close()
            return
        between = os.fork()
        if not between:
            _live(parent, pipe, live, *descriptors)
        os.waitpid(between, 0)
        for each in descriptors:
            os.close(each)


def _live(parent: int, pipe: socket.socket, live: Callable[..., Any], log: int, *descriptors: int) -> None:
    """End, and leave a child to the test process, which runs `live`."""
    between = os.getpid()
    with ending():
        if os.fork():
            os._exit(0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        while os.getppid() == between:  # it is about to end
            time.sleep(0.0005)
        die_with(parent)
        pipe.sendall(os.getpid().to_bytes(_PID_BYTES, "big"))
        pipe.close()
        live(*descriptors)
