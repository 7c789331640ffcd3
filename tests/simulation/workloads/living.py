"""Items that come and go: deleted and made anew, expired."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from tests.simulation.models import Account, Device, Document, Note, Session
from tests.simulation.workloads.base import Workload, place
from tests.support import runtime


class _Lives(Workload):
    """Deleted under the lock and outside, made anew, saved in between: an old copy never passes for a new one."""

    is_contended = True
    model: Any

    def party(self, index: int, turn: int) -> None:
        acts = [self.delete_locked, self.create, self.delete, self.save]
        first = index + 2 * turn
        for number in range(3):
            acts[(first + number) % 4]()

    @property
    def is_versioned(self) -> bool:
        return self.model._version_attribute_name is not None

    def create(self) -> None:
        """Make the item, if there is none."""
        self.plain_create(self.model, "d", None if self.is_versioned else self.model.key.does_not_exist())

    def delete(self) -> None:
        """Delete the item from outside of the lock."""
        self.plain_delete(self.model, "d", "delete" if self.is_versioned else "unchecked delete")

    def delete_locked(self) -> None:
        """Delete the item under its lock. From then on the lock may go with it, so it is not reported as held."""
        lock = self.model.locked("d")

        def delete() -> None:
            with self.history.operation("delete", place(self.model, "d"), ticket=lock.ticket):
                lock.item.delete()

        self.using(lock, delete)

    def save(self) -> None:
        """Change the item under its lock, or without any."""
        self.saves(self.model.locked("d"), 0)


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
        self.plain_delete(Note, "d")

    def save(self) -> None:
        """Change what may have become another item meanwhile."""
        self.plain_save(Note, "d")
        self.read(Note, "d")


class _Prolonged(Workload):
    """What users do with items that expire."""

    is_contended = True
    model: Any

    def prepare(self) -> None:
        self.model(self.items[0][1], expires=after(2)).save()

    def create(self) -> None:
        """Make the item, if there is none, or an expired one."""
        self.plain_create(self.model, self.items[0][1], expires=after(3))

    def prolong(self, work_s: float = 0) -> None:
        """Change the item from outside, and let it live for longer."""
        key = self.items[0][1]
        with self.history.operation("prolong", place(self.model, key)) as done:
            item = self.model.get(key, consistent_read=True)
            if work_s:
                runtime.sleep(work_s)
            item.expires = after(4)
            self.append_and_save(item, done.number)


class Expiring(_Prolonged):
    """Items with a time of expiry, which DynamoDB may remove at any moment after it."""

    name = "expiring"
    items = ((Session, "s"),)
    model = Session

    def party(self, index: int, turn: int) -> None:
        if index == 0:
            self.expire()
        else:
            self.create()
            self.prolong(work_s=1.0)
            runtime.sleep(3.0)
            self.create()

    def expire(self) -> None:
        """Remove the item as DynamoDB does, if it has expired by true time."""
        for _ in range(2):
            runtime.sleep(3.0)
            now_s = self.history.scheduler.time_ms() // 1000
            with self.history.operation("ttl"):
                item = Session.get("s", consistent_read=True, include_expired=True)
                if item.expires.timestamp() <= now_s:
                    self.remove(item)

    @staticmethod
    def remove(item: Session) -> None:
        """Delete the item if it is still the expired one: a request of DynamoDB's own."""
        item._get_connection().delete_item("s", condition=Session.expires == item.expires)


def after(seconds: float) -> datetime:
    """Return that many seconds from now, by the clock of the process that asks."""
    return datetime.fromtimestamp(runtime.time_ms() / 1000 + seconds, timezone.utc)
