"""What every checker has, and how images are read."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from pynamo_locking._io import lock_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pynamo_locking.inspection import LockState, QueueEntry
    from pynamo_locking_testing._engine.network import Change, Image, Request
    from tests.simulation.history import Grant
    from tests.simulation.run import Run


class Violation(AssertionError):  # noqa: N818 - what it is
    """Something that must never happen has happened."""


class Checker:
    """One thing that must be true.

    Args:
        run: what is looked at.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_step(self) -> None:
        """Look at the world between two steps."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Look at what an accepted write has changed."""

    def at_end(self) -> None:
        """Look back, once everyone has finished."""

    def require(self, condition: object, message: str) -> None:
        """Raise a violation unless the condition is true."""
        if not condition:
            raise Violation(f"{type(self).__name__}: {message}")

    def violation(self, error: Exception, step: str) -> Violation:
        """Return the violation to raise for an error of this checker: what rule was broken, and by which step."""
        if isinstance(error, Violation):
            return Violation(f"{error}; by {step}")
        rule = str(type(self).__doc__).partition("\n")[0].rstrip(".")
        return Violation(f"{type(self).__name__}: {error!r} where this was looked at: {rule}; by {step}")

    def may_be_robbed(self, grant: Grant) -> bool:
        """Tell whether another party may take a lock over while its holder still believes in it.

        An operator who breaks it may. And so may everybody if wall clocks are further apart than that lock allows.
        """
        is_broken = (grant.place, grant.ticket) in self.run.history.broken
        return is_broken or (self.run.plan.has_skew and grant.trusts_clocks)

    def believes(self, grant: Grant) -> bool:
        """Tell whether a holder that lives believes to hold its lock, by its own clock."""
        process = grant.actor.process
        if not process.is_alive:
            return False
        with self.run.world.seen_by(process):
            return grant.is_held


def own_methods(checkers: Iterable[Checker], name: str) -> list[Callable[..., None]]:
    """Return this method of each checker that has its own: most look at one of the three moments only."""
    inherited = getattr(Checker, name)
    return [getattr(checker, name) for checker in checkers if getattr(type(checker), name) is not inherited]


def log_of(image: Image | None) -> list[int]:
    """Return the numbers of the operations that an item shows; of an overwritten value, the last one."""
    if image and "value" in image:
        value = int(image["value"]["N"])
        return [value] if value else []
    return [int(entry["N"]) for entry in (image or {}).get("log", {"L": []})["L"]]


def content_of(image: Image | None) -> dict[str, Any] | None:
    """Return an item without what locks keep in it."""
    return None if image is None else {name: value for name, value in image.items() if name not in _OF_LOCKS}


def is_placeholder(image: Image | None) -> bool:
    """Tell whether an item is only the placeholder of a transaction."""
    mark = queue_of(image).intent
    return mark is not None and mark.is_placeholder


_OF_LOCKS = ("lock", "expires_s", "lease_ends")


_read: deque[tuple[Image, LockState]] = deque(maxlen=16)


def queue_of(image: Image | None) -> LockState:
    """Return the lock document of an item. All checkers ask for the same few, and no stored image is ever changed."""
    if image is None:
        return lock_record.state_in(None, "lock")
    for each, state in _read:
        if each is image:
            return state
    _read.append((image, lock_record.state_in(image, "lock")))
    return _read[-1][1]


def handed_over(before: LockState, after: LockState) -> dict[str, QueueEntry]:
    """Return by id the entries that took the place of another one, and that other entry.

    An entry that was handed over has the next ticket, and one that was detached or attached has the same.
    """
    left = {entry.id for entry in after.entries}
    places = {entry.ticket + 1: entry for entry in before.entries if entry.id not in left and entry.callers > 1}
    old = {entry.id for entry in before.entries}
    moved = {entry.ticket: entry for entry in before.entries if entry.id not in left}
    return {
        entry.id: places[entry.ticket]
        for entry in after.entries
        if entry.id not in old and entry.ticket in places and entry.callers == places[entry.ticket].callers - 1
    } | {
        entry.id: moved[entry.ticket]
        for entry in after.entries
        if entry.id not in old and entry.ticket in moved and entry.token_id
    }
