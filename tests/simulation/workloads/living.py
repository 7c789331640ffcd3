"""Items that come and go: deleted and made anew, expired."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from pynamo_locking._io import runtime
from tests.simulation.models import Account, Device, Document, Note, Session
from tests.simulation.workloads.base import Workload, place


class _Lives(Workload):
    """Deleted under the lock and outside, made anew, saved in between: an old copy never passes for a new one."""

    is_contended = True
    model: Any

    def party(self, index: int, turn: int) -> None:
        """Do three of the four, in another order each time."""
        acts = [self.delete_locked, self.create, self.delete, self.save]
        first = index + 2 * turn
        for number in range(3):
            acts[(first + number) % 4]()

    def create(self) -> None:
        """Make the item, if there is none."""
        with self.history.operation("create", place(self.model, "d")) as done:
            item = self.model("d", log=[done.number])
            is_versioned = self.model._version_attribute_name is not None
            item.save(None if is_versioned else self.model.key.does_not_exist())

    def delete(self) -> None:
        """Delete the item from outside of the lock."""
        is_versioned = self.model._version_attribute_name is not None
        with self.history.operation("delete" if is_versioned else "unchecked delete", place(self.model, "d")):
            self.model.get("d", consistent_read=True).delete()

    def delete_locked(self) -> None:
        """Delete the item under its lock."""
        lock = self.model.lock("d")
        if not self.taken(lock):
            return
        try:
            # Not reported as held: from here on the lock may go with the item before its holder hears of it.
            with self.history.operation("delete", place(self.model, "d"), ticket=lock.ticket):
                lock.item.delete()
        finally:
            self.give_back(lock)

    def save(self) -> None:
        """Change the item under its lock, or without any."""
        lock = self.model.lock("d")
        if not self.taken(lock):
            return
        try:
            self.save_locked(lock)
        finally:
            self.give_back(lock)


class LivesOfAccount(_Lives):
    """The lock in the item, no version."""

    name = "lives"
    items = ((Account, "d"),)
    model = Account


class LivesOfDocument(_Lives):
    """The lock in the item, and a version."""

    name = "versioned lives"
    items = ((Document, "d"),)
    model = Document


class LivesOfDevice(_Lives):
    """The lock elsewhere, and a version."""

    name = "lives, separate row"
    items = ((Device, "d"),)
    model = Device


class LivesOfNote(_Lives):
    """No lock: old copies against new lives."""

    name = "lives, no lock"
    items = ((Note, "d"),)
    model = Note

    def delete_locked(self) -> None:
        """Delete what may have become another item meanwhile."""
        with self.history.operation("delete", place(Note, "d")):
            note = Note.get("d", consistent_read=True)
            note.delete()

    def save(self) -> None:
        """Change what may have become another item meanwhile."""
        with self.history.operation("save", place(Note, "d")) as done:
            note = Note.get("d", consistent_read=True)
            self.append(note, done.number)
            note.save()
        self.read(Note, "d")


class Expiring(Workload):
    """Items with a time of expiry, which DynamoDB may remove at any moment after it."""

    name = "expiring"
    items = ((Session, "s"),)
    is_contended = True

    def prepare(self) -> None:
        """Make an item that expires soon."""
        Session("s", expires=_after(2)).save()

    def party(self, index: int, turn: int) -> None:
        """Be DynamoDB's TTL, or a user."""
        if index == 0:
            self.expire()
        else:
            self.create()
            self.prolong()
            runtime.current.sleep(3.0)
            self.create()

    def create(self) -> None:
        """Make the item, if there is none, or an expired one."""
        with self.history.operation("create", place(Session, "s")) as done:
            Session("s", log=[done.number], expires=_after(3)).save()

    def prolong(self) -> None:
        """Change the item, and let it live for longer."""
        with self.history.operation("prolong", place(Session, "s")) as done:
            item = Session.get("s", consistent_read=True)
            runtime.current.sleep(1.0)
            self.append(item, done.number)
            item.expires = _after(4)
            item.save()

    def expire(self) -> None:
        """Remove the item as DynamoDB does, if it has expired by true time."""
        for _ in range(2):
            runtime.current.sleep(3.0)
            now_s = self.history.scheduler.time_ms() // 1000
            with self.history.operation("ttl"):
                item = Session.get("s", consistent_read=True, include_expired=True)
                if item.expires.timestamp() <= now_s:
                    self.remove(item)

    @staticmethod
    def remove(item: Session) -> None:
        """Delete the item if it is still the expired one: a request of DynamoDB's own."""
        item._get_connection().delete_item("s", condition=Session.expires == item.expires)


def _after(seconds: float) -> datetime:
    now_s = runtime.current.time_ms() / 1000
    return datetime.fromtimestamp(now_s, timezone.utc) + timedelta(seconds=seconds)
