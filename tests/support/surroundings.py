"""What one test may leave to the next: threads, locks that are renewed, and what is replaced for the whole process."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import botocore.endpoint
from pynamodb.connection import Connection

from pynamo_locking._io import event_stream, runtime
from pynamo_locking._locks import context, heartbeat, held_lock, release

_ENDPOINT: Final[Any] = botocore.endpoint  # the stubs do not know all of it
#: A thread that is about to end needs as long only on a machine that is very busy.
PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.05
#: The first two end by themselves, a moment after nothing is left for them to do; the simulator uses its threads again.
_IDLE: Final = frozenset({"pynamo-locking-heartbeat", "virtual-clock", "simulation"})


class Surroundings:
    """The process as it is when a test begins."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._replaceable = _replaceable()

    def left_behind(self) -> list[str]:
        """Return in words what is there now and was not when the test began. Nothing of it acts from now on."""
        words = _renewed()
        gc.collect(0)  # what it dropped ends here, and no later test hears of it
        return [*words, *self._running(), *self._replaced()]

    def _running(self) -> list[str]:
        new = [each for each in threading.enumerate() if each not in self._threads and each.name not in _IDLE]
        give_up = time.monotonic() + PATIENCE_S
        for each in new:
            while each.is_alive() and not _waits_in_a_pool(each) and time.monotonic() < give_up:
                each.join(_POLL_S)
        release._unfinished.clear()
        return [
            f"the thread {each.name}, which has not ended in {PATIENCE_S:g} s"
            for each in new
            if each.is_alive() and not _waits_in_a_pool(each)
        ]

    def _replaced(self) -> list[str]:
        after = _replaceable()
        return [f"another {name}" for name, value in self._replaceable.items() if after[name] != value]


def _waits_in_a_pool(thread: threading.Thread) -> bool:
    """Tell whether it is one of a pool, without work: it ends with its pool, which the log of an error may keep."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name == "_worker" and "ThreadPoolExecutor" in thread.name


def _renewed() -> list[str]:
    """Return the locks that the heartbeat renews. It does so no more: the next test may count or lose requests.

    The context of the tests forgets the locks too, also those that have ended, which are no fault.
    """
    entries, thread = runtime.living(held_lock.all_held), heartbeat.heartbeat_thread
    renewed = {id(held) for _, _, held in thread._due}
    words = [f"{each}, which is still renewed" for each in entries if id(each) in renewed and each.ownership.is_held]
    for each in entries:
        each.ownership = each.ownership.ended()
    context.held_by_context.set({})
    # Or a thread of it comes to what is in there by the clock of a later test, and starts others.
    with thread._condition:
        thread._due.clear()
    return words


def let_dropped_things_act() -> None:
    """Collect what a test has dropped while its engine is there, and wait until its locks are given back.

    The collector is off while a test runs. So nothing acts in the middle of another test, and all that this one has
    dropped is in the youngest generation.
    """
    gc.collect(0)
    if type(runtime.current) is runtime.Runtime:
        give_up = time.monotonic() + PATIENCE_S
        for each in threading.enumerate():
            if each.name == "pynamo-locking-leaving":
                each.join(max(0.0, give_up - time.monotonic()))


def _replaceable() -> dict[str, object]:
    """Return what tests replace for the whole process, and all later ones, and threads of earlier ones, would have."""
    return {
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "working directory": Path.cwd(),
        "time.sleep": time.sleep,
        "time.time": time.time,
        "time.monotonic": time.monotonic,
        "threading.Thread": threading.Thread,
        "threading.Thread.start": threading.Thread.start,
        "threading.get_ident": threading.get_ident,
        "os.fork": getattr(os, "fork", None),  # not on Windows
        "os.kill": os.kill,
        "os.getpid": os.getpid,
        "socket.socket": socket.socket,
        "socket.gethostname": socket.gethostname,
        "sys.excepthook": sys.excepthook,
        "profile function": sys.getprofile(),
        "switch of the collector of garbage": gc.isenabled(),
        "handler of SIGINT": signal.getsignal(signal.SIGINT),
        "heartbeat": heartbeat.heartbeat_thread,
        "handler of SIGTERM": signal.getsignal(signal.SIGTERM),
        "botocore.endpoint.time": _ENDPOINT.time,
        "Endpoint._do_get_response": _ENDPOINT.Endpoint._do_get_response,
        "Connection.dispatch": Connection.dispatch,
        "runtime": runtime.current,
        "method of the runtime": (runtime.current.sleep, runtime.current.jitter, runtime.current.spawn),
        "clock of the runtime": (runtime.current.monotonic, runtime.current.time_us, runtime.current.time_ms),
        "switch of local wake-ups": runtime.Runtime.has_wakeups,
        "subscription to events": event_stream.listeners,
    }
