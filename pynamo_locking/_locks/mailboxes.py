"""How the waiters of one process hear of a release: in it, or by the bell of another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamo_locking._core.claims import WHOLE, front
from pynamo_locking._core.queue import FREE
from pynamo_locking._io import bell, lock_document, runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.claims import Claim
    from pynamo_locking._core.queue import LockState
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image


def _progress(state: LockState) -> tuple[int, ...]:
    """Return what never decreases while a lock document changes: a later image has no less.

    A newcomer takes the next ticket. So while the next ticket is the same, entries only leave, or are handed over to a
    later ticket; and while none does, their beats and their writes only grow. Proves nothing about two documents with a
    deletion in between, whose tickets come from wall clocks.
    """
    entries = state.entries
    tickets = sum(entry.ticket for entry in entries)
    return state.next_ticket, -len(entries), tickets, sum(entry.beat + entry.writes for entry in entries)


class Mailbox:
    """Where a waiter sleeps, and where releases in this process leave the new image for it.

    Releases come in any order, and some without an image. So the newest image is kept. If there was a release without
    an image as well, the waiter is woken once more to look, unless the image was enough for it.

    Args:
        claim: what the waiter claims.
        state: reads the lock document in an image.
    """

    def __init__(self, claim: Claim = WHOLE, state: Callable[[Image], LockState] = lambda _: FREE) -> None:
        self.claim = claim
        self.ticket: int | None = None  # of the waiter, once it is in the queue
        self.entry_id = ""  # the same, if it can be woken by other processes
        self.on_ring: Callable[[], None] | None = None  # wakes a waiter that is not a thread
        self._state = state
        self._condition = runtime.current.condition()
        self._image: Image | None = None
        self._must_look = False

    @property
    def _rung(self) -> bool:
        return self._must_look or self._image is not None

    def put(self, image: Image | None) -> None:
        """Wake the waiter; without an image it has to look for itself."""
        with self._condition:
            if image is None:
                self._must_look = True
            elif self._image is None or _progress(self._state(image)) >= _progress(self._state(self._image)):
                self._image = image
            self._condition.notify_all()
            wake = self.on_ring
        if wake is not None:
            wake()

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` at the next ring; at once if the mailbox has rung and the waiter has not looked since."""
        with self._condition:
            self.on_ring, was_rung = wake, self._rung
        if was_rung:
            wake()

    def wait(self, timeout: float) -> Image | None:
        """Return the image that was left, waiting up to `timeout` seconds to be woken."""
        with self._condition:
            if not self._rung and timeout > 0:
                runtime.current.wait(self._condition, timeout)
            image, self._image = self._image, None
            if image is None:
                self._must_look = False
            return image


_mailboxes: dict[tuple[Any, ...], list[Mailbox]] = {}
_mutex = runtime.current.mutex()


def open_mailbox(row: LockRow, mailbox: Mailbox) -> None:
    """Let a mailbox hear of releases of that lock in this process."""
    with _mutex:
        _mailboxes.setdefault(row.identity, []).append(mailbox)


def close_mailbox(row: LockRow, mailbox: Mailbox) -> None:
    with _mutex:
        remaining = [box for box in _mailboxes.get(row.identity, ()) if box is not mailbox]
        if remaining:
            _mailboxes[row.identity] = remaining
        else:
            _mailboxes.pop(row.identity, None)


def has_waiters(row: LockRow) -> bool:
    """Tell whether a thread of this process waits for that lock, or another process of this machine for any lock."""
    with _mutex:
        if row.identity in _mailboxes:
            return True
    return bool(bell.neighbours())


def hear_bells(mailbox: Mailbox, entry_id: str) -> None:
    """Let other processes of this machine wake the waiter with that entry."""
    mailbox.entry_id = entry_id
    bell.ear.listen(runtime.process_of(entry_id), wake, lambda: bool(_mailboxes))


def wake(entry_id: str) -> None:
    """Let the waiter with that entry look, if it is in this process."""
    with _mutex:
        mailboxes = tuple(box for boxes in _mailboxes.values() for box in boxes if box.entry_id == entry_id)
    for box in mailboxes:
        box.put(None)


def tell_waiters(row: LockRow, image: Image | None) -> None:
    """Wake the waiters of this process that may be next, and those that do not know their ticket yet.

    With the image they need no read; without it they look. A waiter behind one that conflicts with it cannot be next,
    and waking all waiters at each release would cost more than the lock. The image also tells whom to wake in other
    processes.
    """
    with _mutex:
        mailboxes = tuple(_mailboxes.get(row.identity, ()))
    placed = [(box.ticket, box) for box in mailboxes if box.ticket is not None]
    queue = [box for _, box in sorted(placed, key=lambda pair: pair[0])]
    for box in (queue[i] for i in front(box.claim for box in queue)):
        box.put(image)
    for box in mailboxes:
        if box.ticket is None:
            box.put(image)
    if image is not None:
        bell.ring(lock_document.holders_in(image, row.attribute))


def _forget_after_fork() -> None:
    global _mutex  # noqa: PLW0603 - the parent may have held it at the moment of the fork
    _mutex = runtime.current.mutex()
    _mailboxes.clear()


runtime.after_fork(_forget_after_fork)
