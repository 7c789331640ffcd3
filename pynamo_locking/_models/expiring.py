"""Models whose expired items count as absent."""

from __future__ import annotations

from typing import Any, ClassVar

from pynamodb.attributes import TTLAttribute
from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._models.writing import GuardedMixin


class ExpiringMixin(GuardedMixin):
    """Makes expired items count as absent, although DynamoDB may keep them for days.

    Put it before `Model`, `VersionedMixin` or `LockableModel` in the bases, and declare a `TTLAttribute`.
    An item expires at the second in its attribute; an item without a value never does.

    * `get` and `refresh` raise ``DoesNotExist``; `query`, `scan`, `count` and `batch_get`, also through an
      index, leave expired items out. DynamoDB still reads them, and charges for them.
    * A save that creates an item replaces an expired one, in the same single request. A save of a copy that was
      read before the item expired is refused.
    * An update of an expired item is an update of an absent item: refused if it checks a version; otherwise the
      old item is deleted first (2 requests more). In a transaction it is refused.
    * A lock in an expired item cannot be acquired (`ItemNotFound`).

    Pass ``include_expired=True`` to see expired items. This process's clock decides what has expired, in seconds, as
    DynamoDB's clock does for TTL.
    """

    _hides_expired: ClassVar[bool] = True

    @override
    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a time of expiry that is a key: DynamoDB could not leave it out of a query."""
        super().__init_subclass__(**options)
        for name, attribute in ((name, value) for base in cls.__mro__ for name, value in vars(base).items()):
            if isinstance(attribute, TTLAttribute) and (attribute.is_hash_key or attribute.is_range_key):
                raise ConfigurationError(
                    f"{cls.__name__}.{name} is a key of the table, and DynamoDB cannot filter by keys: keep the time "
                    f"of expiry in an attribute of its own."
                )
