"""How a waiter is notified of a release: in its process, or from another process of the same machine.

A waiting process receives wake-ups at a datagram socket, in a directory that only its user may enter. The name of the
socket is the part of an entry's id that all entries of the process have, so an entry needs nothing more.

A wake-up carries the id of an entry and the item as the release has left it, so the waiter needs no read. A late one
does no harm: entries ahead can leave and never arrive, so an old item that shows the waiter first is proof. The item
counts only for the lock that the wake-up names, by endpoint, table and key. A wake-up without it, since it is not known
or too large, lets the waiter poll at once. One that names only the lock does so for whoever may be next there. After a
lost one the waiter polls as planned.

Rejected: the id alone, after which each waiter reads the item between a release and its turn.
"""

from __future__ import annotations

import functools
import json
import os
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.lock_modes import WHOLE, front
from pynamo_locking._core.lock_queue import FREE
from pynamo_locking._io import lock_record, runtime
from pynamo_locking._io.concurrency import undone_by
from pynamo_locking._io.runtime import logger, process_of
from pynamo_locking._io.stored_rows import decoded, encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._core.lock_queue import LockState
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image


#: A socket at which no caller has waited for this long is closed.
_IDLE_S: Final = 5.0

#: The longest wake-up, in bytes: an item that makes it longer is not sent.
_LONGEST: Final = 64 * 1024


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


class WakeupListener:
    """Where this process receives wake-ups: a socket, and a thread that reads it, while callers wait."""

    def __init__(self) -> None:
        self.name = ""
        self._mutex = runtime.current.mutex()
        self._socket: socket.socket | None = None
        self._is_impossible = False

    def listen(self, name: str, receive: Callable[[bytes], object], is_needed: Callable[[], bool]) -> None:
        """Begin to listen, if it does not yet.

        Args:
            name: of this process.
            receive: called with each wake-up, in a thread.
            is_needed: tells whether a caller waits.
        """
        if not runtime.current.has_wakeups:
            return
        with self._mutex:
            if self._socket is None and not self._is_impossible:
                try:
                    with undone_by(self.close):
                        self._open(name)
                        runtime.current.spawn(partial(self._serve, receive, is_needed), name="pynamo-locking-wakeups")
                except (OSError, RuntimeError) as error:
                    logger.debug("no wake-ups of other processes are received, so waiters poll: %s", error)
                    self._is_impossible = True

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

    def _serve(self, receive: Callable[[bytes], object], is_needed: Callable[[], bool]) -> None:
        opened = self._socket
        while opened is not None:
            try:
                message = opened.recv(_LONGEST)
            except TimeoutError:
                with self._mutex:
                    if not is_needed():
                        self.close()
                        return
            except OSError:  # closed in a restored process, which has another socket
                return
            else:
                receive(message)

    def remove(self) -> None:
        """Let no process find the socket any more."""
        if self.name:
            with suppress(OSError):
                Path(_path(self.name)).unlink()
            self.name = ""

    def close(self) -> None:
        self.remove()
        self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """Close the socket of this process; in a forked child the parent keeps listening."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def other_listeners() -> frozenset[str]:
    """Return the names of other processes of this machine and user that listen."""
    return _listening() - {listener.name}


def are_listening(entry_ids: Iterable[str]) -> bool:
    """Tell whether the processes of all these entries listen: then they wake each other as they release."""
    return {process_of(entry_id) for entry_id in entry_ids} <= _listening()


def _listening() -> frozenset[str]:
    if not runtime.current.has_wakeups:
        return frozenset()
    try:
        _check_folder()
        return frozenset(_names())
    except OSError:
        return frozenset()


def send_wakeup(entry_ids: Iterable[str], row: LockRow | None = None, image: Image | None = None) -> None:
    """Wake the waiters with these entries, those that wait in other processes of this machine.

    Args:
        entry_ids: of the waiters.
        row: which lock they wait for, if the item is known.
        image: the item as the release has left it.
    """
    if listening := other_listeners():
        item = b""
        for entry_id in entry_ids:
            if process_of(entry_id) in listening:
                if row is not None and image is not None:
                    item = item or item_of(row, image)
                _send(process_of(entry_id), entry_id.encode(), item)


def call_next(row: LockRow) -> None:
    """Wake who may be next for that lock in other processes of this machine, if nobody here knows who it is."""
    for name in other_listeners():
        _send(name, item=item_of(row, None))


def _send(name: str, entry_id: bytes = b"", item: bytes = b"") -> None:
    """Send a wake-up to a process, or none; remove the socket of a process that has died."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(0)
        try:
            sender.connect(_path(name))
        except ConnectionRefusedError:
            Path(_path(name)).unlink()
            return
        if item and len(entry_id) + len(item) < _LONGEST:
            with suppress(OSError):  # some systems carry only short datagrams
                sender.send(entry_id + item)
                return
        if entry_id:
            sender.send(entry_id)


def item_of(row: LockRow, image: Image | None) -> bytes:
    """Return what follows the id of an entry in a wake-up: the lock, and its item."""
    return f"\n{json.dumps([repr(row.identity), image], default=encoded)}".encode()


def _item_in(message: bytes) -> tuple[str, Image | None]:
    """Return the lock and the item that a wake-up carries; nothing if it carries none."""
    with suppress(ValueError, TypeError):
        lock, image = json.loads(message)
        return str(lock), decoded(image, message) if isinstance(image, dict) else None
    return "", None


def _path(name: str) -> str:
    return f"{folder()}/{name}"


def _names() -> list[str]:
    return os.listdir(folder())  # noqa: PTH208 - names, not paths


#: Of this process.
listener = WakeupListener()


def _reset_after_fork() -> None:
    global listener  # noqa: PLW0603 - no thread of the parent lives in a child, and its mutex may be locked
    listener.leave_to_parent()
    listener = WakeupListener()


def _leave_no_file() -> None:
    listener.remove()


runtime.after_fork(_reset_after_fork)
runtime.at_exit(_leave_no_file)


def _progress(state: LockState) -> tuple[int, ...]:
    """Return what never decreases while a lock document changes: a later image has no less.

    A newcomer takes the next ticket. So while the next ticket is the same, entries only leave, or are handed over to a
    later ticket; and while none does, their heartbeats and their writes only grow. Proves nothing about two documents
    with a deletion in between, whose tickets come from wall clocks.
    """
    entries = state.entries
    tickets = sum(entry.ticket for entry in entries)
    return state.next_ticket, -len(entries), tickets, sum(entry.heartbeats + entry.writes for entry in entries)


class Mailbox:
    """Where a waiter sleeps, and where releases in this process leave the new image for it.

    Releases come in any order, and some without an image. So the newest image is kept. If there was a release without
    an image as well, the waiter is woken once more to look, unless the image was enough for it.

    Args:
        lock_mode: what the waiter asks for.
        state: reads the lock document in an image.
    """

    def __init__(self, lock_mode: LockMode = WHOLE, state: Callable[[Image], LockState] = lambda _: FREE) -> None:
        self.lock_mode = lock_mode
        self.ticket: int | None = None  # of the waiter, once it is in the queue
        self.entry_id = ""  # the same, if it can be woken by other processes
        self.on_wakeup: Callable[[], None] | None = None  # wakes a waiter that is not a thread
        self._state = state
        self._condition = runtime.current.condition()
        self._image: Image | None = None
        self._must_read = False

    @property
    def _is_woken(self) -> bool:
        return self._must_read or self._image is not None

    def put(self, image: Image | None) -> None:
        """Wake the waiter; without an image it has to poll."""
        with self._condition:
            if image is None:
                self._must_read = True
            elif self._image is None or _progress(self._state(image)) >= _progress(self._state(self._image)):
                self._image = image
            self._condition.notify_all()
            wake = self.on_wakeup
        if wake is not None:
            wake()

    def clear(self) -> None:
        with self._condition:
            self._image, self._must_read = None, False

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` at the next wake-up; at once if there was one since the waiter polled last."""
        with self._condition:
            self.on_wakeup, was_woken = wake, self._is_woken
        if was_woken:
            wake()

    def wait(self, timeout: float) -> Image | None:
        """Return the image that was left, waiting up to `timeout` seconds to be woken."""
        with self._condition:
            if not self._is_woken and timeout > 0:
                runtime.current.wait(self._condition, timeout)
            image, self._image = self._image, None
            if image is None:
                self._must_read = False
            return image


_mailboxes: dict[tuple[Any, ...], list[Mailbox]] = {}
_mutex = runtime.current.mutex()


def open_mailbox(row: LockRow, mailbox: Mailbox) -> None:
    """Notify a mailbox of releases of that lock in this process."""
    with _mutex:
        _mailboxes.setdefault(row.identity, []).append(mailbox)


def close_mailbox(row: LockRow, mailbox: Mailbox) -> None:
    with _mutex:
        remaining = list(box for box in _mailboxes.get(row.identity, ()) if box is not mailbox)
        if remaining:
            _mailboxes[row.identity] = remaining
        else:
            _mailboxes.pop(row.identity, None)


def has_waiters(row: LockRow) -> bool:
    """Tell whether a thread of this process waits for that lock, or another process of this machine for any lock."""
    with _mutex:
        if row.identity in _mailboxes:
            return True
    return bool(other_listeners())


def listen(entry_id: str) -> None:
    """Let other processes of this machine wake the waiters of this process, one of which has that entry."""
    listener.listen(runtime.process_of(entry_id), wake, lambda: bool(_mailboxes))


def wake(message: bytes) -> None:
    """Wake the waiter that a wake-up names, or who may be next for the lock that it names, if in this process."""
    entry_id, _, rest = message.partition(b"\n")
    if not entry_id:
        lock, _ = _item_in(rest)
        with _mutex:
            waiting = next((tuple(boxes) for row, boxes in _mailboxes.items() if repr(row) == lock), ())
        _wake_first(waiting, None)
        return
    with _mutex:
        every = ((row, box) for row, boxes in _mailboxes.items() for box in boxes)
        named = list((row, box) for row, box in every if box.entry_id.encode() == entry_id)
    for row, box in named:
        lock, image = _item_in(rest)
        box.put(image if lock == repr(row) else None)


def tell_waiters(row: LockRow, image: Image | None) -> None:
    """Wake the waiters of this process that may be next, and those that do not know their ticket yet.

    With the image they need no read; without it they look. A waiter behind one that conflicts with it cannot be next,
    and waking all waiters at each release would cost more than the lock. The image also tells whom to wake in other
    processes.
    """
    with _mutex:
        mailboxes = tuple(_mailboxes.get(row.identity, ()))
    if mailboxes:
        _wake_first(mailboxes, image)
    if image is not None:
        send_wakeup(lock_record.holders_in(image, row.attribute), row, image)


def _wake_first(mailboxes: Sequence[Mailbox], image: Image | None) -> None:
    placed = [(box.ticket, box) for box in mailboxes if box.ticket is not None]
    queue = [box for _, box in sorted(placed, key=lambda pair: pair[0])]
    for box in [queue[i] for i in front([box.lock_mode for box in queue])]:
        box.put(image)
    for box in mailboxes:
        if box.ticket is None:
            box.put(image)


def _forget_after_fork() -> None:
    global _mutex  # noqa: PLW0603 - the parent may have held it at the moment of the fork
    _mutex = runtime.current.mutex()
    _mailboxes.clear()


runtime.after_fork(_forget_after_fork)
