"""What the threads of one process tell each other: who waits for which lock, and which locks a context holds."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pynamo_locking._io import runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.requests import Image, Row


class Mailbox:
    """Where a waiter sleeps, and where a release in this process leaves the new image for it."""

    def __init__(self) -> None:
        self.ticket: int | None = None  # of the waiter, once it is in the queue
        self._condition = runtime.current.condition()
        self._image: Image | None = None
        self._rung = False

    def put(self, image: Image | None) -> None:
        """Wake the waiter; without an image it has to look for itself."""
        with self._condition:
            self._image, self._rung = image, True
            self._condition.notify_all()

    def wait(self, timeout: float) -> Image | None:
        """Return the image that was left, waiting up to `timeout` seconds to be woken."""
        with self._condition:
            if not self._rung and timeout > 0:
                runtime.current.wait(self._condition, timeout)
            image, self._image, self._rung = self._image, None, False
            return image


_mailboxes: dict[tuple[Any, ...], list[Mailbox]] = {}
_guard = runtime.current.mutex()


def open_mailbox(row: Row) -> Mailbox:
    """Return a mailbox in which releases of that lock in this process are heard."""
    mailbox = Mailbox()
    with _guard:
        _mailboxes.setdefault(row.identity, []).append(mailbox)
    return mailbox


def close_mailbox(row: Row, mailbox: Mailbox) -> None:
    """Forget a mailbox."""
    with _guard:
        remaining = [box for box in _mailboxes.get(row.identity, ()) if box is not mailbox]
        if remaining:
            _mailboxes[row.identity] = remaining
        else:
            _mailboxes.pop(row.identity, None)


def has_waiters(row: Row) -> bool:
    """Tell whether a thread of this process waits for that lock."""
    with _guard:
        return row.identity in _mailboxes


def tell_waiters(row: Row, image: Image | None) -> None:
    """Tell the first waiter of this process, and those who do not know their place yet, that somebody left.

    With the image after it, the next one needs no read at all; without one it looks. The others cannot
    be next, and waking them all at each release would cost more than the lock.
    """
    with _guard:
        mailboxes = tuple(_mailboxes.get(row.identity, ()))
    first = min((mailbox.ticket for mailbox in mailboxes if mailbox.ticket is not None), default=None)
    for mailbox in mailboxes:
        if mailbox.ticket in (None, first):
            mailbox.put(image)


_held: ContextVar[Mapping[tuple[Any, ...], OwnEntry]] = ContextVar("pynamo_locking_held", default={})  # noqa: B039 - never mutated


def remember(own: OwnEntry) -> None:
    """Note that this context holds a lock."""
    still_held = {identity: other for identity, other in _held.get().items() if not other.ended}
    _held.set({**still_held, own.row.identity: own})


def forget(own: OwnEntry) -> None:
    """Note that this context no longer holds a lock."""
    if _held.get().get(own.row.identity) is own:
        _held.set({identity: other for identity, other in _held.get().items() if other is not own})


def held_in_context(row: Row) -> OwnEntry | None:
    """Return our entry in that lock if this context took it and has not given it back."""
    own = _held.get().get(row.identity)
    return None if own is None or own.ended else own


def holds_nothing() -> bool:
    """Tell whether this context holds no lock at all, without looking at keys."""
    return not _held.get()


def _forget_after_fork() -> None:
    global _guard  # noqa: PLW0603 - the parent may have held it at the moment of the fork
    _guard = runtime.current.mutex()
    _mailboxes.clear()


runtime.after_fork(_forget_after_fork)
