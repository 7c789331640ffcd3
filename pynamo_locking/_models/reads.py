"""Reads that leave out items that count as absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pynamodb.attributes import Attribute
from pynamodb.exceptions import DoesNotExist
from pynamodb.expressions.operand import Path
from typing_extensions import Self, override

from pynamo_locking._io import lock_record, responses
from pynamo_locking._io.model_doors import lock_attribute_of
from pynamo_locking._io.stored_rows import Place
from pynamo_locking._items import conditions, expiry, versions
from pynamo_locking._models.attributes import PlacedMixin
from pynamo_locking._models.awaited import awaited_item, awaited_items, awaited_read, awaited_write
from pynamo_locking._models.isolation import growing
from pynamo_locking._pynamodb import key_values_of, map_results

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.pagination import ResultIterator


_R = TypeVar("_R", bound="ReadingMixin")


class ReadingMixin(PlacedMixin):
    """The reads of every mixin of this package, which leave out items that count as absent.

    A transaction of more than a hundred actions may store a placeholder for an item that it is going to create.
    Readers that use this package do not see placeholders. Nor do they see expired items of an `ExpiringMixin`, unless
    they pass `include_expired`; other models have no expired items.
    """

    _reserved_names: ClassVar[frozenset[str]] = frozenset(
        {"aget", "abatch_get", "aquery", "ascan", "acount", "arefresh"}
    )

    @override
    @classmethod
    def get(
        cls,
        hash_key: Any,
        range_key: Any = None,
        consistent_read: bool = False,
        attributes_to_get: Any = None,
        *,
        include_expired: bool = False,
    ) -> Self:
        """Get an item; consistently if this context holds its lock. See PynamoDB's `Model.get`.

        What is stored in an item is a committed state; for a moment after a commit of more than 100 actions it may be
        the previous one. A transaction with ``read_only=True`` reads several items as they were at one moment.

        Example::

            account = Account.get("a-1")
            try:
                Account.get("a-9")
            except Account.DoesNotExist:
                print("no such account")

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            consistent_read: as in PynamoDB.
            attributes_to_get: as in PynamoDB. The whole item cannot be saved before `refresh`: see `save`.
            include_expired: of an `ExpiringMixin`, return the item even if it has expired.

        Raises:
            DoesNotExist: there is no such item, or it has expired.

        Cost: 1 read.
        """
        target = cls._target_held_here(hash_key, range_key)
        if target is not None and target.is_elsewhere and attributes_to_get is None:
            return _present(target.read(), include_expired=include_expired)
        names = cls._with_needed(attributes_to_get)
        with responses.readable_errors():
            item = super().get(hash_key, range_key, consistent_read or target is not None, names)
        return _present(versions.read_in_part(item, _whole_names(names)), include_expired=include_expired)

    @classmethod
    def _with_needed(cls, attributes_to_get: Any) -> list[Any] | None:
        """Return the attributes to read, with those that show whether the item counts as absent."""
        asked = _listed(attributes_to_get)
        names = _whole_names(asked)
        if asked is None or names is None:
            return None
        needed = (expiry.attribute_name(cls), cls._intent_attribute())
        return [*asked, *(name for name in needed if name is not None and name not in names)]

    @classmethod
    def _intent_attribute(cls) -> str | None:
        """Return the stored name of the attribute that shows placeholders; None if the model cannot have any."""
        lock = cls._lock_attribute()
        return None if lock is None or getattr(cls.Meta, "transaction_table", None) is None else lock.attr_name

    @override
    @classmethod
    def batch_get(
        cls,
        items: Iterable[Any],
        consistent_read: bool | None = None,
        attributes_to_get: Any = None,
        *,
        include_expired: bool = False,
    ) -> Iterator[Self]:
        """Get the items of some keys. See PynamoDB's `Model.batch_get`.

        Example::

            for account in Account.batch_get(["a-1", "a-2"]):
                print(account.account_id, account.balance)

        Cost: 1 request for each hundred keys.
        """
        asked = cls._with_needed(attributes_to_get)
        found, part = super().batch_get(items, consistent_read, asked), _whole_names(asked)
        return (
            versions.read_in_part(item, part)
            for item in found
            if not is_placeholder(item) and (include_expired or not versions.shape_of(type(item)).has_expired(item))
        )

    @override
    @classmethod
    def query(  # noqa: PYI019 - as in PynamoDB: subclasses override it
        cls: type[_R],
        /,
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
        *,
        include_expired: bool = False,
        **options: Any,
    ) -> ResultIterator[_R]:
        """Query items. See PynamoDB's `Model.query`.

        Expired items are read, not returned. So with a `limit`, and no `page_size`, each page is twice as large as the
        page before.

        Example::

            for line in Line.query("o-1", Line.number >= 1):
                print(line.number, line.price)

        Cost: that of the query.
        """
        unexpired = None if include_expired else expiry.filter_of_query(cls, index_name, range_key_condition)
        how: dict[str, Any] = {
            "range_key_condition": range_key_condition,
            "consistent_read": consistent_read,
            "scan_index_forward": scan_index_forward,
            "limit": limit,
            "last_evaluated_key": last_evaluated_key,
            "page_size": page_size,
            "rate_limit": rate_limit,
        }
        in_part = {"index_name": index_name, "attributes_to_get": attributes_to_get}
        return cls._found("query", (hash_key,), (filter_condition, unexpired), in_part, how, options)

    @override
    @classmethod
    def scan(  # noqa: PYI019 - as in PynamoDB: subclasses override it
        cls: type[_R],
        /,
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
        *,
        include_expired: bool = False,
        **options: Any,
    ) -> ResultIterator[_R]:
        """Scan items. See PynamoDB's `Model.scan`, and `query`."""
        unexpired = None if include_expired else expiry.filter_of_scan(cls, index_name)
        how: dict[str, Any] = {
            "segment": segment,
            "total_segments": total_segments,
            "limit": limit,
            "last_evaluated_key": last_evaluated_key,
            "page_size": page_size,
            "consistent_read": consistent_read,
            "rate_limit": rate_limit,
        }
        in_part = {"index_name": index_name, "attributes_to_get": attributes_to_get}
        return cls._found("scan", (), (filter_condition, unexpired), in_part, how, options)

    @classmethod
    def _found(
        cls,
        operation: str,
        key: tuple[Any, ...],
        filters: tuple[Condition | None, Condition | None],
        in_part: dict[str, Any],
        how: dict[str, Any],
        options: dict[str, Any],
    ) -> ResultIterator[Self]:
        """Query or scan, with the caller's filter, and the one that leaves out expired items."""
        index_name, asked = in_part["index_name"], _listed(in_part["attributes_to_get"])
        visible = cls._only_visible(*filters, index_name)
        found: ResultIterator[Self] = getattr(super(), operation)(
            *key, filter_condition=visible, index_name=index_name, attributes_to_get=asked, **how, **options
        )
        part = expiry.projected(cls, index_name) if asked is None else _whole_names(asked)
        if part is not None:  # noted with the instances
            map_results(found, lambda item: versions.read_in_part(item, part))
        return found if filters[1] is None or how["page_size"] is not None else growing(found)

    @override
    @classmethod
    def count(
        cls,
        /,
        hash_key: Any = None,
        range_key_condition: Condition | None = None,
        filter_condition: Condition | None = None,
        consistent_read: bool = False,
        index_name: str | None = None,
        limit: int | None = None,
        rate_limit: float | None = None,
        *,
        include_expired: bool = False,
        **options: Any,
    ) -> int:
        """Count items. See PynamoDB's `Model.count`.

        Without a hash key it is DynamoDB's own estimate for the whole table, expired items included.

        Cost: that of a query.
        """
        if hash_key is not None:
            unexpired = None if include_expired else expiry.filter_of_query(cls, index_name, range_key_condition)
            filter_condition = cls._only_visible(filter_condition, unexpired, index_name)
        return super().count(
            hash_key,
            range_key_condition,
            filter_condition,
            consistent_read,
            index_name,
            limit,
            rate_limit,
            **options,
        )

    @classmethod
    def _only_visible(
        cls, condition: Condition | None, unexpired: Condition | None, index_name: str | None
    ) -> Condition | None:
        """Return the caller's filter, with one that leaves out expired items, and one that leaves out placeholders.

        DynamoDB refuses a filter by the lock where an index lacks it. A placeholder has no other attributes than the
        lock and the keys of the table, so of such indexes it is only in those that need no others.
        """
        condition, name = conditions.both(condition, unexpired), cls._intent_attribute()
        if name is None or not expiry.is_projected(name, cls, index_name):
            return condition
        path = Place(name, lock_record.TX, lock_record.INTENT, lock_record.PLACEHOLDER)
        return conditions.both(condition, path.does_not_exist())

    @override
    def refresh(self, consistent_read: bool = False, *, include_expired: bool = False) -> None:
        """Load the item again; consistently inside its lock. See PynamoDB's `Model.refresh`."""
        before = dict(vars(self))
        self._load_stored(consistent_read)
        try:
            _present(self, include_expired=include_expired)
        except DoesNotExist:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _load_stored(self, consistent_read: bool) -> None:  # noqa: FBT001
        target = self._target_held_here(*key_values_of(self))
        if target is None or not target.is_elsewhere:
            with responses.readable_errors():
                super().refresh(consistent_read or target is not None)
            return
        fresh = target.read()
        if type(fresh) is not type(self):
            raise ValueError(f"Cannot refresh this item from the returned class: {type(fresh).__name__}")
        self.attribute_values: dict[str, Any] = fresh.attribute_values
        versions.copy_state(fresh, self)

    @awaited_item(get)
    def aget(self) -> None:
        """Get an item, awaited. See `get`."""

    @awaited_items(batch_get)
    def abatch_get(self) -> None:
        """Yield the items of some keys, awaited. See `batch_get`."""

    @awaited_items(query)
    def aquery(self) -> None:
        """Yield the items of a query, awaited. See `query`.

        Cost: a task that ends the iteration early has asked for twice as many items as it has seen at most, and for 64
        more at most.
        """

    @awaited_items(scan)
    def ascan(self) -> None:
        """Yield the items of a scan, awaited. See `scan`; for the cost, `aquery` as well."""

    @awaited_read(count)
    def acount(self) -> None:
        """Count items, awaited. See `count`."""

    @awaited_write(refresh, is_urgent=False)
    def arefresh(self) -> None:
        """Load the item again, awaited. See `refresh`."""


def _listed(attributes_to_get: Any) -> list[Any] | None:
    """Return the attributes to read as the list that PynamoDB takes; None for all."""
    if attributes_to_get is None:
        return None
    return [attributes_to_get] if isinstance(attributes_to_get, (str, Attribute, Path)) else [*attributes_to_get]


def _whole_names(asked: list[Any] | None) -> frozenset[str] | None:
    """Return the stored names of the attributes to read, without those of which a part is read; None for all."""
    if asked is None:
        return None
    paths = (
        [each.attr_name] if isinstance(each, Attribute) else each.path if isinstance(each, Path) else each.split(".")
        for each in asked
    )
    return frozenset(path[0] for path in paths if len(path) == 1)


def _present(item: _R, *, include_expired: bool) -> _R:
    """Return an item that was read; `DoesNotExist` if it counts as absent."""
    if is_placeholder(item):
        raise item.DoesNotExist("There is no such item.")
    return item if include_expired else versions.present(item)


def is_placeholder(item: PlacedMixin) -> bool:
    """Tell whether an instance was loaded from a placeholder of a transaction."""
    lock = lock_attribute_of(item)
    if lock is None:
        return False
    intent = lock.__get__(item, type(item)).intent
    return intent is not None and intent.is_placeholder
