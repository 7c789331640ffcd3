"""The lock that needs no item."""

from __future__ import annotations

from typing import ClassVar

from pynamodb.attributes import UnicodeAttribute

from pynamo_locking._models.attributes import LockAttribute, TTLAttribute
from pynamo_locking._models.lockable import LockableModel
from pynamo_locking._models.own_table import OwnTable


class NamedLock(OwnTable, LockableModel):
    """A lock on a name, for anything that is not an item: a nightly job, a file, a call to a partner.

    Subclass it with a table of its own; its rows are created and removed automatically::

        class Locks(NamedLock):
            class Meta:
                table_name = "locks"
                region = "eu-west-1"

        with Locks.locked("nightly-report", wait=0):
            ...

    It prevents two holders of a name from overlapping. It does not prevent two successive holders from doing a job
    twice: note finished work in an attribute of the row, and check that under the lock.

    Nothing else should be stored in that table. A name whose row is an item of another program cannot be locked
    (`ConfigurationError`); that item stays as it is.

    The class can carry the locks of other models as well: name it in their ``Meta.lock_table``.
    A subclass may declare attributes of its own; they are read and saved under the lock like those of
    any lockable model.

    DynamoDB's TTL removes a row that was not used for a day after its last lease. Nothing depends on when that happens.
    """

    _lock_creates_item: ClassVar[bool] = True

    name: UnicodeAttribute = UnicodeAttribute(hash_key=True)
    lock = LockAttribute()
    expires: TTLAttribute = TTLAttribute(null=True, attr_name="expires_s")
