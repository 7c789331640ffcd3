"""The bell between processes of one machine: the process that releases a lock wakes the waiters that are next.

A process that waits hears bells at a datagram socket, in a directory of its user. The name of the socket is the part of
an entry's id that all entries of the process have, so an entry needs nothing more. A bell carries the id of an entry,
and proves nothing: the waiter looks at once. A bell that is lost or late leaves it to its polling, and a forged one
costs a read.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pynamo_locking._io import runtime
from pynamo_locking._io.runtime import process_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger("pynamo_locking")

#: A socket at which no caller has waited for this long is closed.
_IDLE_S: Final = 5.0

#: What is read of a bell, in bytes; no id is as long.
_LONGEST: Final = 64


@functools.cache
def folder() -> Path:
    """Return the directory of this user's sockets.

    `tempfile.gettempdir` has a mutex, which another thread could hold at the moment of a fork.
    """
    return Path(os.environ.get("TMPDIR") or "/tmp", f"pynamo_locking-{os.getuid()}")  # noqa: S108 - see `_check_folder`


def _check_folder() -> None:
    """Refuse a directory that belongs to another user, or that another user may enter."""
    found = folder().lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder()} is not a directory of this user alone")


class Ear:
    """Where this process hears bells: a socket, and a thread that reads it, while callers wait."""

    def __init__(self) -> None:
        self.name = ""
        self._mutex = runtime.current.mutex()
        self._socket: socket.socket | None = None
        self._is_deaf = False

    def listen(self, name: str, heard: Callable[[str], object], is_needed: Callable[[], bool]) -> None:
        """Begin to listen, if it does not yet.

        Args:
            name: of this process.
            heard: called with the id of the entry that a bell is for, in a thread.
            is_needed: tells whether a caller waits.
        """
        if not runtime.current.has_bells:
            return
        with self._mutex:
            if self._socket is None and not self._is_deaf:
                try:
                    self._open(name)
                    runtime.current.spawn(partial(self._serve, heard, is_needed), name="pynamo-locking-bell")
                except (OSError, RuntimeError) as error:
                    logger.debug("no bells of other processes are heard, so waiters poll: %s", error)
                    self._is_deaf = True
                    self.close()
                except BaseException:
                    self.close()
                    raise

    def _open(self, name: str) -> None:
        with suppress(FileExistsError):
            folder().mkdir(0o700)
        _check_folder()
        for other in _names():
            _send(other)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_IDLE_S)
        self._socket.bind(_path(name))
        self.name = name

    def _serve(self, heard: Callable[[str], object], is_needed: Callable[[], bool]) -> None:
        opened = self._socket
        while opened is not None:
            try:
                entry_id = opened.recv(_LONGEST).decode(errors="replace")
            except TimeoutError:
                with self._mutex:
                    if not is_needed():
                        self.close()
                        return
            except OSError:  # closed in a restored process, which has another ear
                return
            else:
                heard(entry_id)

    def remove(self) -> None:
        """Let no process find the socket any more."""
        if self.name:
            with suppress(OSError):
                Path(_path(self.name)).unlink()
            self.name = ""

    def close(self) -> None:
        """Close the socket, and remove it."""
        self.remove()
        self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """Close the socket of this process; in a forked child its parent goes on listening."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def neighbours() -> frozenset[str]:
    """Return the names of other processes of this machine and user that listen."""
    return _listening() - {ear.name}


def are_listening(entry_ids: Iterable[str]) -> bool:
    """Tell whether the processes of all these entries listen: then they ring for each other as they release."""
    return {process_of(entry_id) for entry_id in entry_ids} <= _listening()


def _listening() -> frozenset[str]:
    if not runtime.current.has_bells:
        return frozenset()
    try:
        _check_folder()
        return frozenset(_names())
    except OSError:
        return frozenset()


def ring(entry_ids: Iterable[str]) -> None:
    """Wake the waiters with these entries, those that wait in other processes of this machine."""
    if listening := neighbours():
        for entry_id in entry_ids:
            if process_of(entry_id) in listening:
                _send(process_of(entry_id), entry_id)


def _send(name: str, entry_id: str = "") -> None:
    """Send a bell to a process, or none; remove the socket of a process that has died."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.settimeout(0)
        try:
            bell.connect(_path(name))
        except ConnectionRefusedError:
            Path(_path(name)).unlink()
        else:
            if entry_id:
                bell.send(entry_id.encode())


def _path(name: str) -> str:
    return f"{folder()}/{name}"


def _names() -> list[str]:
    return os.listdir(folder())  # noqa: PTH208 - names, not paths


#: Of this process.
ear = Ear()


def _start_anew_after_fork() -> None:
    global ear  # noqa: PLW0603 - no thread of the parent lives in a child, and its mutex may be locked
    ear.leave_to_parent()
    ear = Ear()


def _leave_no_file() -> None:
    ear.remove()


runtime.after_fork(_start_anew_after_fork)
runtime.at_exit(_leave_no_file)
