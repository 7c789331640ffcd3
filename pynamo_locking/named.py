"""The lock that needs no item."""

from __future__ import annotations

from typing import Any, ClassVar

from pynamodb.attributes import TTLAttribute, UnicodeAttribute
from pynamodb.exceptions import TableError
from typing_extensions import override

from pynamo_locking._io.transport import code_of
from pynamo_locking.attributes import LockAttribute
from pynamo_locking.models import LockableModel


class NamedLock(LockableModel):
    """A lock on a name, for whatever is not an item: a nightly job, a file, a call to a partner.

    Subclass it with a table of its own; the rows in it are created and removed by themselves::

        class Locks(NamedLock):
            class Meta:
                table_name = "locks"
                region = "eu-west-1"

        with Locks.locked("nightly-report", wait=0):
            ...

    The class can carry the locks of other models as well: name it in their ``Meta.lock_table``.
    A subclass may declare attributes of its own; they are read and saved under the lock like those of
    any lockable model.

    A row that nobody has used for a day after its last lease is removed by DynamoDB's TTL. Nothing
    depends on when that happens.
    """

    _lock_creates_item: ClassVar[bool] = True

    name = UnicodeAttribute(hash_key=True)
    lock = LockAttribute()
    expires = TTLAttribute(null=True, attr_name="expires_s")

    @override
    @classmethod
    def create_table(
        cls,
        wait: bool = True,
        read_capacity_units: int | None = None,
        write_capacity_units: int | None = None,
        billing_mode: str | None = None,
        ignore_update_ttl_errors: bool = False,
    ) -> Any:
        """Create the table, billed on demand, with TTL enabled. Does nothing if that is so already.

        Safe to call twice, and from several processes at once. The arguments are those of PynamoDB's
        `Model.create_table`; `wait` is True here, since TTL cannot be enabled before the table is active.
        """
        if billing_mode is None and not hasattr(cls.Meta, "billing_mode") and read_capacity_units is None:
            billing_mode = "PAY_PER_REQUEST"
        arguments = (wait, read_capacity_units, write_capacity_units, billing_mode, ignore_update_ttl_errors)
        try:
            return super().create_table(*arguments)
        except TableError as error:
            if code_of(error.cause) != "ResourceInUseException":
                raise
            return super().create_table(*arguments)  # another process was faster; the table exists now

    @override
    @classmethod
    def update_ttl(cls, ignore_update_ttl_errors: bool) -> None:
        """Enable TTL, unless it is enabled."""
        try:
            super().update_ttl(ignore_update_ttl_errors)
        except TableError as error:
            if "already enabled" not in str(error):
                raise
