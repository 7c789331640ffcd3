"""Tables of the package's own rows: billed on demand, cleaned up by DynamoDB's TTL."""

from __future__ import annotations

import functools
import logging

from pynamodb.exceptions import TableError
from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io import answers
from pynamo_locking._items.keys import check_place
from pynamo_locking._models import administration
from pynamo_locking._models.own_rows import OwnRows

logger: logging.Logger = logging.getLogger("pynamo_locking")


class OwnTable(OwnRows):
    """Creates a table with its billing mode and TTL."""

    @override
    @classmethod
    def create_table(
        cls,
        wait: bool = True,
        read_capacity_units: int | None = None,
        write_capacity_units: int | None = None,
        billing_mode: str | None = None,
        ignore_update_ttl_errors: bool = False,
        *,
        enable_ttl: bool = False,
    ) -> None:
        """Create the table, billed on demand, with TTL enabled. Does nothing if such a table exists.

        Safe to call twice, and from several processes at once. An existing table is checked before anything is
        changed, and its TTL is enabled only if it has no item: otherwise TTL would delete items of other programs
        that have an attribute of that name. If TTL is left off, a warning is logged.

        A table of other items (`Meta.keys`) is never created, and its TTL is enabled with `enable_ttl` alone.

        Args:
            wait: until the table can be used. True here, since TTL cannot be enabled before.
            read_capacity_units: as for PynamoDB's `Model.create_table`.
            write_capacity_units: as there.
            billing_mode: as there; ``"PAY_PER_REQUEST"`` unless `Meta` or an argument says otherwise.
            ignore_update_ttl_errors: as there; also if TTL is enabled for another attribute.
            enable_ttl: enable TTL for an existing table, whatever is in it.

        Raises:
            ConfigurationError: the table has other keys, or its TTL is enabled for another attribute; or the class has
                no ``Meta.table_name``; or the table is one of other items, and is missing, or has an index whose key is
                an attribute of our rows. Nothing was changed.
            TableError: DynamoDB refused a request.

        Cost: 1 DescribeTable to find the table missing, a CreateTable, and the requests that enable TTL. 1
        DescribeTable more and 1 DescribeTimeToLive for an existing table; if its TTL is off, 1 scan of a single item.
        """
        check_place(cls)
        if billing_mode is None and not hasattr(cls.Meta, "billing_mode") and read_capacity_units is None:
            billing_mode = "PAY_PER_REQUEST"
        is_new, is_shared = not cls.exists(), cls._own_keys.is_shared
        if is_new and is_shared:
            raise ConfigurationError(
                f"{cls.__name__} keeps its rows in the table {cls.Meta.table_name!r} of other items, and there is no "
                f"such table. Create that table first, as the program does to which it belongs."
            )
        arguments = wait, read_capacity_units, write_capacity_units, billing_mode, ignore_update_ttl_errors
        if is_new and administration.is_created(functools.partial(super().create_table, *arguments)):
            return  # else the table is as new, but another process has created it
        administration.check_keys(cls, wait=wait)
        try:
            is_enabled = cls._has_ttl()
        except (TableError, ConfigurationError):
            if not ignore_update_ttl_errors:
                raise
            return
        if is_enabled:
            return
        if is_new or enable_ttl or (not is_shared and administration.is_empty(cls)):
            cls.update_ttl(ignore_update_ttl_errors)
            return
        logger.warning(
            "TTL of the table %s is off, and was left off, since the table has items%s: what expires there is kept for "
            "ever. If no item of others has an attribute %r, call create_table(enable_ttl=True).",
            cls.Meta.table_name,
            " of others" if is_shared else "",
            cls._ttl_attribute().attr_name,  # type: ignore[no-untyped-call]
        )

    @override
    @classmethod
    def update_ttl(cls, ignore_update_ttl_errors: bool) -> None:
        """Enable TTL, unless it is enabled, whatever is in the table.

        Raises:
            ConfigurationError: the table has other keys, or its TTL is enabled for another attribute.
            TableError: DynamoDB refused a request. Not with `ignore_update_ttl_errors`, and then not the latter.
        """
        administration.check_keys(cls, wait=False)
        try:
            if not cls._has_ttl():
                super().update_ttl(ignore_update_ttl_errors=False)
        except (TableError, ConfigurationError) as error:
            if not (ignore_update_ttl_errors or "already enabled" in str(error)):  # another process has enabled it
                raise

    @classmethod
    def _has_ttl(cls) -> bool:
        attribute = cls._ttl_attribute()  # type: ignore[no-untyped-call]
        try:
            found = administration.ttl_of(cls)
        except answers.BOTOCORE_EXCEPTIONS as error:
            raise TableError(f"Failed to describe TTL on table: {error}", error) from error
        if attribute is not None and found not in (None, attribute.attr_name):
            raise ConfigurationError(
                f"TTL of the table {cls.Meta.table_name!r} is enabled for the attribute {found!r}, and {cls.__name__} "
                f"needs it for {attribute.attr_name!r}; a table has one. Nothing was changed. Write the same attribute "
                f"(Meta.ttl_attribute = {found!r}), name another table in Meta.table_name, or switch TTL of this one "
                f"off first."
            )
        return attribute is None or found is not None
