"""Tables of the package's own rows: billed on demand, cleaned up by DynamoDB's TTL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import TableError
from typing_extensions import override

from pynamo_locking._io.transport import code_of

if TYPE_CHECKING:
    from pynamodb.models import Model

    _Base = Model
else:
    _Base = object


class OwnTable(_Base):
    """Creates a table so that nobody has to think about it."""

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
