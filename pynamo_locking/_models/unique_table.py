"""The table of the rows that hold unique values."""

from __future__ import annotations

from typing import ClassVar

from pynamodb.attributes import UnicodeAttribute
from pynamodb.constants import MAP
from pynamodb.models import Model

from pynamo_locking._models.attributes import LockAttribute, TTLAttribute, VersionAttribute
from pynamo_locking._models.mixins import ExpiringMixin, VersionedMixin
from pynamo_locking._models.tables import OwnTable, RawAttribute


class UniqueTable(OwnTable, ExpiringMixin, VersionedMixin, Model):
    """Unique constraints: one row for each unique value of a model, written together with the item that has the value.

    Subclass it, with a separate table, and name the class in the ``Meta.unique_table`` of your models::

        class Uniques(UniqueTable):
            class Meta:
                table_name = "uniques"
                region = "eu-west-1"

        class User(VersionedMixin, Model):
            class Meta:
                table_name = "users"
                unique = ("email", ("tenant", "name"))
                unique_table = Uniques

    The table must be in the account and Region of the items; several models may share it. If items of such a model are
    written in transactions of more than a hundred actions, give this class the same ``Meta.transaction_table``. Do not
    write its rows by hand: `VersionedMixin.repair_unique` mends them.

    With ``keys`` and ``prefix`` in the Meta the rows share a table with other items, as those of a `NamedLock` can.
    """

    _holds_unique_values: ClassVar[bool] = True
    _kind: ClassVar[str] = "unique"
    _has_format: ClassVar[bool] = True
    _also_stored: ClassVar[frozenset[str]] = frozenset({"version_write_id"})

    name: UnicodeAttribute = UnicodeAttribute(hash_key=True)
    holder: RawAttribute = RawAttribute(MAP, null=True)
    expires: TTLAttribute = TTLAttribute(null=True, attr_name="expires_s")
    version: VersionAttribute = VersionAttribute(null=True)
    lock: LockAttribute = LockAttribute()
