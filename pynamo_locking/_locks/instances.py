"""What this process knows of the item that a lock guards: the image from the grant, and the instance that blocks share.

The image shows the item as it was when the lock was granted, so an embedded lock needs no read. A write under the lock
makes it old. One instance serves all nested blocks of a thread or task, so that none of them works on an old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamo_locking._items import expiry, versions
from pynamo_locking._items.classes import shared_as
from pynamo_locking.exceptions import ItemNotFound, also

if TYPE_CHECKING:
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.options import LockTarget, M


class LockedItem:
    """The item that a held entry guards, as far as it is known.

    Attributes:
        image: as the grant showed it; None after a write.
        instance: what all blocks of the thread or task share; None before it was asked for.
        edits: how many blocks of `edit` are going to save it.
        is_deleted: whether it was deleted under the lock, which is in another row.
    """

    def __init__(self, image: Image | None) -> None:
        self.image = image
        self.instance: Any = None
        self.edits = 0
        self.is_deleted = False

    @property
    def is_current(self) -> bool:
        return self.instance is not None and not self.is_deleted and not versions.is_old(self.instance)

    def forget(self) -> None:
        """Let it be read again the next time."""
        self.image = self.instance = None

    def must_read(self, target: LockTarget[Any]) -> bool:
        """Tell whether `instance_of` makes a request."""
        return not self.is_current and (target.is_elsewhere or self.image is None)

    def instance_of(self, target: LockTarget[M], read_under: object) -> M:
        """Return the current instance, which all nested blocks share; read it if it is not known.

        Args:
            target: what is locked.
            read_under: the held entry, which is noted with the instance.

        Raises:
            DoesNotExist: there is no such item.
            ConfigurationError: the blocks share an instance of another class.
        """
        image = self.image  # a write in another thread forgets it
        if not self.is_current:
            found = target.read() if image is None or target.is_elsewhere else target.model.from_raw_data(image)
            versions.note(expiry.present(found), read_under)
            if not self.is_current:  # else another thread has read it meanwhile
                self.instance = found
        return shared_as(target.model, self.instance, "by another block of its lock", "name one class in every block")

    def refuse_expired(self, target: LockTarget[M]) -> None:
        """Raise `ItemNotFound` for the lock in an item that has expired."""
        if not target.is_elsewhere and expiry.is_expired(target.model, self.image):
            raise also(ItemNotFound, target.model.DoesNotExist)(
                f"{target.row.label} has expired, and counts as absent: there is nothing to lock. Save it again first."
            )
