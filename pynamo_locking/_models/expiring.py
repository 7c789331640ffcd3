"""Models whose expired items count as absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.attributes import TTLAttribute
from pynamodb.exceptions import DoesNotExist
from typing_extensions import Self, override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._items import clauses, expiry
from pynamo_locking._models.writing import GuardedMixin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.pagination import ResultIterator


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

    @override
    @classmethod
    def get(
        cls,
        hash_key: Any,
        range_key: Any = None,
        consistent_read: bool = False,
        attributes_to_get: Sequence[str] | None = None,
        *,
        include_expired: bool = False,
        isolation: str | None = None,
    ) -> Self:
        """Get an item that has not expired. See PynamoDB's `Model.get`, and `LockableModel.get` for `isolation`.

        Raises:
            DoesNotExist: there is no such item, or it has expired.
        """
        names = cls._with_expiry(attributes_to_get)
        item = super().get(hash_key, range_key, consistent_read, names, isolation=isolation)
        return item if include_expired else expiry.present(item)

    @override
    def refresh(self, consistent_read: bool = False, *, include_expired: bool = False) -> None:
        """Load the item again. See PynamoDB's `Model.refresh`.

        Raises:
            DoesNotExist: there is no such item any more, or it has expired. The instance is what it was.
        """
        before = dict(vars(self))
        super().refresh(consistent_read)
        if not include_expired:
            try:
                expiry.present(self)
            except DoesNotExist:
                vars(self).clear()
                vars(self).update(before)
                raise

    @override
    @classmethod
    def batch_get(
        cls,
        items: Iterable[Any],
        consistent_read: bool | None = None,
        attributes_to_get: Sequence[str] | None = None,
        *,
        include_expired: bool = False,
    ) -> Iterator[Self]:
        """Get the items of some keys that have not expired. See PynamoDB's `Model.batch_get`."""
        found = super().batch_get(items, consistent_read, cls._with_expiry(attributes_to_get))
        return (item for item in found if include_expired or not expiry.has_expired(item))

    @override
    @classmethod
    def query(
        cls,
        hash_key: Any,
        range_key_condition: Condition | None = None,
        filter_condition: Condition | None = None,
        consistent_read: bool = False,
        index_name: str | None = None,
        *arguments: Any,
        include_expired: bool = False,
        **options: Any,
    ) -> ResultIterator[Self]:
        """Query items that have not expired. See PynamoDB's `Model.query`."""
        if not include_expired:
            filter_condition = cls._only_alive(filter_condition, index_name, range_key_condition)
        return super().query(
            hash_key, range_key_condition, filter_condition, consistent_read, index_name, *arguments, **options
        )

    @override
    @classmethod
    def scan(
        cls, filter_condition: Condition | None = None, *arguments: Any, include_expired: bool = False, **options: Any
    ) -> ResultIterator[Self]:
        """Scan items that have not expired. See PynamoDB's `Model.scan`."""
        if not include_expired:
            index_name = arguments[6] if len(arguments) > 6 else options.get("index_name")  # noqa: PLR2004
            filter_condition = cls._only_alive(filter_condition, index_name, is_scan=True)
        return super().scan(filter_condition, *arguments, **options)

    @override
    @classmethod
    def count(
        cls,
        hash_key: Any = None,
        range_key_condition: Condition | None = None,
        filter_condition: Condition | None = None,
        consistent_read: bool = False,
        index_name: str | None = None,
        *arguments: Any,
        include_expired: bool = False,
        **options: Any,
    ) -> int:
        """Count items that have not expired. See PynamoDB's `Model.count`.

        Without a hash key it is DynamoDB's own estimate for the whole table, expired items included.
        """
        if hash_key is not None and not include_expired:
            filter_condition = cls._only_alive(filter_condition, index_name, range_key_condition)
        return super().count(
            hash_key, range_key_condition, filter_condition, consistent_read, index_name, *arguments, **options
        )

    @classmethod
    def _with_expiry(cls, attributes_to_get: Sequence[str] | None) -> Sequence[str] | None:
        """Return the attributes to read, with the time of expiry."""
        if attributes_to_get is None:
            return None
        name = expiry.attribute_name(cls)
        given = [attributes_to_get] if isinstance(attributes_to_get, str) else [*attributes_to_get]
        return given if name is None or name in given else [*given, name]

    @classmethod
    def _only_alive(
        cls,
        condition: Condition | None,
        index_name: str | None,
        range_key_condition: Condition | None = None,
        *,
        is_scan: bool = False,
    ) -> Condition | None:
        name = str(expiry.attribute_name(cls))
        index = None if index_name is None else cls._indexes[index_name]
        if index is not None and not expiry.is_projected(name, index):
            raise ConfigurationError(
                f"the index {index_name!r} of {cls.__name__} does not have {name!r}, so its expired items cannot be "
                f"left out: add it to the projection, or pass include_expired=True to {cls.__name__}'s own method."
            )
        if index is not None and not is_scan and expiry.is_key_of(name, index):
            if range_key_condition is None:
                raise ConfigurationError(
                    f"{name!r} is a key of the index {index_name!r}, and DynamoDB cannot filter by keys: pass a "
                    f"range_key_condition on it, or include_expired=True to {cls.__name__}'s own method."
                )
            return condition  # the caller has chosen the times
        return clauses.both(condition, expiry.alive(name))
