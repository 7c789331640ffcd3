"""Reads that hide the placeholders of transactions, and can require committed values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamodb.expressions.operand import Path
from typing_extensions import Self, override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io import answers, lock_document
from pynamo_locking._items import clauses, keys
from pynamo_locking._models.isolation import Reader
from pynamo_locking._models.placement import PlacedMixin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.pagination import ResultIterator

_R = TypeVar("_R", bound="ReadingMixin")
_LEVELS: Final = ("read_committed", "read_uncommitted")


class ReadingMixin(PlacedMixin):
    """The reads of every mixin of this package.

    A transaction of more than a hundred actions may store a placeholder for an item that it is going to create.
    Readers that use this package do not see placeholders.
    """

    @override
    @classmethod
    def get(
        cls,
        hash_key: Any,
        range_key: Any = None,
        consistent_read: bool = False,
        attributes_to_get: Any = None,
        *,
        isolation: str | None = None,
    ) -> Self:
        """Get an item; consistently if this context holds its lock. See PynamoDB's `Model.get`.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            consistent_read: as in PynamoDB.
            attributes_to_get: as in PynamoDB.
            isolation: ``"read_committed"``: the committed item, even if the transaction that wrote it has not been
                finished yet. ``"read_uncommitted"``: what a transaction intends, decided or not. Both read
                consistently, and whole items. Without it: the stored item, which is a committed state; for a moment
                after a commit it may be the previous one.

        Raises:
            DoesNotExist: there is no such item.
            ConfigurationError: any other isolation; `Transaction.get` has those.

        Cost: 1 read; with `isolation` 1 more for the header if a transaction has marked the item, 1 write if it is
        decided.
        """
        if isolation is not None:
            return cls._get_isolated(hash_key, range_key, isolation, attributes_to_get)
        target = cls._target_held_here(hash_key, range_key)
        if target is not None and target.is_elsewhere and attributes_to_get is None:
            return target.read()
        with answers.readable_errors():
            item = super().get(
                hash_key, range_key, consistent_read or target is not None, cls._with_lock(attributes_to_get)
            )
        if is_ghost(item):
            raise cls.DoesNotExist("There is no such item.")
        return item

    @classmethod
    def _get_isolated(cls, hash_key: Any, range_key: Any, isolation: str, attributes_to_get: Any) -> Self:
        if isolation not in _LEVELS or attributes_to_get is not None:
            raise ConfigurationError(
                f"get() knows the isolations {' and '.join(_LEVELS)}, of whole items: not {isolation!r}."
            )
        image = Reader(isolation).read(cls, keys.key_of(cls, hash_key, range_key))
        if image is None:
            raise cls.DoesNotExist("There is no such item.")
        return cls.from_raw_data(image)

    @classmethod
    def _with_lock(cls, attributes_to_get: Any) -> Any:
        """Return the attributes to read, with the lock attribute, which shows placeholders."""
        lock = cls._lock_attribute()
        if attributes_to_get is None or lock is None or getattr(cls.Meta, "transaction_table", None) is None:
            return attributes_to_get
        given = [attributes_to_get] if isinstance(attributes_to_get, str) else [*attributes_to_get]
        return given if lock.attr_name in given else [*given, lock.attr_name]

    @override
    @classmethod
    def batch_get(
        cls, items: Iterable[Any], consistent_read: bool | None = None, attributes_to_get: Any = None
    ) -> Iterator[Self]:
        """Get the items of some keys. See PynamoDB's `Model.batch_get`."""
        found = super().batch_get(items, consistent_read, cls._with_lock(attributes_to_get))
        return (item for item in found if not is_ghost(item))

    @override
    @classmethod
    def query(  # noqa: PYI019 - as in PynamoDB: subclasses override it
        cls: type[_R],
        hash_key: Any,
        range_key_condition: Condition | None = None,
        filter_condition: Condition | None = None,
        consistent_read: bool = False,
        index_name: str | None = None,
        scan_index_forward: bool | None = None,
        limit: int | None = None,
        last_evaluated_key: dict[str, dict[str, Any]] | None = None,
        attributes_to_get: Iterable[str] | None = None,
        page_size: int | None = None,
        rate_limit: float | None = None,
        **options: Any,
    ) -> ResultIterator[_R]:
        """Query items. See PynamoDB's `Model.query`."""
        return super().query(
            hash_key,
            range_key_condition,
            cls._no_ghosts(filter_condition),
            consistent_read,
            index_name,
            scan_index_forward,
            limit,
            last_evaluated_key,
            attributes_to_get,
            page_size,
            rate_limit,
            **options,
        )

    @override
    @classmethod
    def scan(  # noqa: PYI019 - as in PynamoDB: subclasses override it
        cls: type[_R],
        filter_condition: Condition | None = None,
        segment: int | None = None,
        total_segments: int | None = None,
        limit: int | None = None,
        last_evaluated_key: dict[str, dict[str, Any]] | None = None,
        page_size: int | None = None,
        consistent_read: bool | None = None,
        index_name: str | None = None,
        rate_limit: float | None = None,
        attributes_to_get: Sequence[str] | None = None,
        **options: Any,
    ) -> ResultIterator[_R]:
        """Scan items. See PynamoDB's `Model.scan`."""
        return super().scan(
            cls._no_ghosts(filter_condition),
            segment,
            total_segments,
            limit,
            last_evaluated_key,
            page_size,
            consistent_read,
            index_name,
            rate_limit,
            attributes_to_get,
            **options,
        )

    @override
    @classmethod
    def count(
        cls,
        hash_key: Any = None,
        range_key_condition: Condition | None = None,
        filter_condition: Condition | None = None,
        consistent_read: bool = False,
        index_name: str | None = None,
        limit: int | None = None,
        rate_limit: float | None = None,
        **options: Any,
    ) -> int:
        """Count items. See PynamoDB's `Model.count`."""
        return super().count(
            hash_key,
            range_key_condition,
            filter_condition if hash_key is None else cls._no_ghosts(filter_condition),
            consistent_read,
            index_name,
            limit,
            rate_limit,
            **options,
        )

    @classmethod
    def _no_ghosts(cls, condition: Condition | None) -> Condition | None:
        lock = cls._lock_attribute()
        if lock is None or getattr(cls.Meta, "transaction_table", None) is None:
            return condition
        path = Path([lock.attr_name, lock_document.TX, lock_document.INTENT, lock_document.GHOST])
        return clauses.both(condition, path.does_not_exist())

    @override
    def refresh(self, consistent_read: bool = False) -> None:
        """Load the item again. See PynamoDB's `Model.refresh`."""
        before = dict(vars(self))
        super().refresh(consistent_read)
        if is_ghost(self):
            vars(self).clear()
            vars(self).update(before)
            raise self.DoesNotExist("There is no such item.")


def is_ghost(item: PlacedMixin) -> bool:
    """Tell whether an instance was loaded from a placeholder of a transaction."""
    lock = item._lock_attribute()
    if lock is None:
        return False
    mark = lock.__get__(item, type(item)).mark
    return mark is not None and mark.is_ghost
