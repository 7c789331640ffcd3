"""What the threads of one process tell each other: who waits for which lock, and which locks a context holds."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pynamo_locking._core.claims import WHOLE, front
from pynamo_locking._core.queue import FREE
from pynamo_locking._io import runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.claims import Bound, Claim
    from pynamo_locking._core.queue import LockState
    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.requests import Image, Row


def _progress(state: LockState) -> tuple[int, ...]:
    """Return what never goes back while a lock document changes: of two images the later one has no less of it.

    Whoever enters takes the next ticket, so as long as that is the same, entries only leave; and as long as none
    leaves, their beats and their writes only grow. Proves nothing of two documents with a deletion in between, whose
    tickets come from wall clocks.
    """
    entries = state.entries
    return state.next_ticket, -len(entries), sum(entry.beat + entry.writes for entry in entries)


class Mailbox:
    """Where a waiter sleeps, and where releases in this process leave the new image for it.

    Releases come in any order, and some without an image. So the newest image is kept; and if there was a release
    without one as well, the waiter is woken once more to look for itself, unless the image was enough for it.

    Args:
        claim: what the waiter claims.
        state: reads the lock document in an image.
    """

    def __init__(self, claim: Claim = WHOLE, state: Callable[[Image], LockState] = lambda _: FREE) -> None:
        self.claim = claim
        self.ticket: int | None = None  # of the waiter, once it is in the queue
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
        """Call `wake` at the next ring; at once if it has rung and nobody has looked since."""
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
_guard = runtime.current.mutex()


def open_mailbox(row: Row, mailbox: Mailbox) -> None:
    """Let releases of that lock in this process be heard in a mailbox."""
    with _guard:
        _mailboxes.setdefault(row.identity, []).append(mailbox)


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
    """Tell the waiters of this process that may be next, and those who do not know their place yet.

    With the image after it, they need no read at all; without one they look. Those behind a waiter who
    conflicts with them cannot be next, and waking them all at each release would cost more than the lock.
    """
    with _guard:
        mailboxes = tuple(_mailboxes.get(row.identity, ()))
    placed = [(box.ticket, box) for box in mailboxes if box.ticket is not None]
    queue = [box for _, box in sorted(placed, key=lambda pair: pair[0])]
    for box in (queue[i] for i in front(box.claim for box in queue)):
        box.put(image)
    for box in mailboxes:
        if box.ticket is None:
            box.put(image)


_Held = Mapping[tuple[Any, ...], tuple["OwnEntry", ...]]

_held: ContextVar[_Held] = ContextVar("pynamo_locking_held", default={})  # noqa: B039 - never mutated


def remember(own: OwnEntry) -> None:
    """Note that this context holds a lock."""
    held = _without(None)
    _held.set({**held, own.row.identity: (*held.get(own.row.identity, ()), own)})


def forget(own: OwnEntry) -> None:
    """Note that this context no longer holds a lock."""
    if own in _held.get().get(own.row.identity, ()):
        _held.set(_without(own))


def _without(own: OwnEntry | None) -> _Held:
    """Return what is held, but for one entry and those that have ended."""
    left = {
        identity: tuple(each for each in entries if each is not own and not each.possession.is_over)
        for identity, entries in _held.get().items()
    }
    return {identity: entries for identity, entries in left.items() if entries}


def all_held_in_context(row: Row) -> tuple[OwnEntry, ...]:
    """Return our entries in that lock that this context took and has not given back, the last one first."""
    return tuple(own for own in reversed(_held.get().get(row.identity, ())) if not own.possession.is_over)


def held_in_context(row: Row, bound: Bound | None = None) -> OwnEntry | None:
    """Return our entry in that lock if this context took it and has not given it back.

    Args:
        row: the lock's row.
        bound: what the entry has to be about: a value in its range; None for the whole lock.
    """
    held = all_held_in_context(row) if _held.get() else ()
    return next(
        (own for own in held if (own.entry.claim.contains(bound) if bound else not own.entry.claim.is_ranged)), None
    )


def holds_nothing() -> bool:
    """Tell whether this context holds no lock at all, without looking at keys."""
    return not _held.get()


def _forget_after_fork() -> None:
    global _guard  # noqa: PLW0603 - the parent may have held it at the moment of the fork
    _guard = runtime.current.mutex()
    _mailboxes.clear()


runtime.after_fork(_forget_after_fork)
