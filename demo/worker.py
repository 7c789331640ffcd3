"""The processes of the demo: each has a pipe to its parent, and ends with it.

A pipe of its own for each, and no queue shared by all: a process killed while it writes to a shared queue would take
the queue's mutex with it.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import PynamoDBException

from demo import bank
from pynamo_locking.exceptions import LockingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

#: Forked from a process that has imported everything, where that can be: a fresh interpreter takes a second.
_START: Final = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_CONTEXT: Final[Any] = multiprocessing.get_context(_START)
_CONTEXT.set_forkserver_preload(["demo.engine"])


class Process:
    """A child process that runs ``target(pipe, *arguments)``, and ends when nobody has the pipe's other end."""

    def __init__(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_run, args=(target, theirs, *arguments), name=name, daemon=True)
        self._process.start()
        theirs.close()

    def close(self) -> None:
        """End it, at once: SIGKILL, or what Windows has for it."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _run(target: Callable[..., None], *arguments: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its children
    logging.getLogger("pynamo_locking").setLevel(logging.ERROR)  # a warning would break into the live view
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        target(*arguments)


def work(pipe: Connection[Any, Any], host: str) -> None:
    """Make transfers; tell each that was made, or why one was not, and None at the end."""
    _connect(pipe, host)
    while True:
        way, transfers = pipe.recv()
        for transfer in transfers:
            try:
                bank.WAYS[way](transfer)
            except (LockingError, PynamoDBException) as error:
                pipe.send(f"{type(error).__name__}: {error}")
            else:
                pipe.send(transfer)
        pipe.send(None)


def hang(pipe: Connection[Any, Any], host: str, account: str) -> None:
    """When told to, take a lock, change the account in memory, and never come back."""
    _connect(pipe, host)
    pipe.recv()
    with bank.edit(account) as edited:
        edited.balance = 0
        pipe.recv()


def _connect(pipe: Connection[Any, Any], host: str) -> None:
    bank.use(host)
    bank.PlainAccount.exists()
    bank.Account.exists()
    pipe.send("ready")
