"""The query of a transaction: what is stored, and what the transaction has done to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.pagination import ResultIterator

from pynamo_locking._io import guards, images
from pynamo_locking.guarded import GuardedMixin
from pynamo_locking.terms import check_model, check_query, is_guarding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._io.requests import Image
    from pynamo_locking._io.unit import Entry
    from pynamo_locking.members import Members

_M = TypeVar("_M", bound=GuardedMixin)


class QueryingMixin:
    """What a transaction can be asked for besides single items."""

    _members: Members
    _isolation: str

    def _check_open(self) -> None:
        raise NotImplementedError

    def query(
        self,
        model: type[_M],
        hash_key: Any,
        range_key_condition: Condition | None = None,
        filter_condition: Condition | None = None,
        **options: Any,
    ) -> list[_M]:
        """Return the items of a hash key as the transaction sees them, each read as by `get`.

        The items that are found take part like those of `get`. That no other one *appears* until the commit is
        guaranteed only for models with ``Meta.guard_queries = True``, whose items are created and deleted by
        transactions alone: each of those then counts a row of its hash key in the `TransactionTable`, and a
        query checks that.

        Args:
            model: the model.
            hash_key: the hash key.
            range_key_condition: on the range key.
            filter_condition: on what is stored; items that the transaction has changed are judged as it sees them.
            **options: `scan_index_forward`, `limit`, `page_size` and `rate_limit` of PynamoDB's `Model.query`. Not an
                index, which is eventually consistent, nor parts of items.

        Raises:
            ConfigurationError: an index was named; or the isolation is serializable and the model does not guard
                its queries.

        Cost: that of the query, and 1 read for each item that another transaction has. With guarded queries 1 more,
        and 1 transactional read of the items that were created and deleted by the last transactions, nine at most;
        1 for each hundred of those items.
        """
        self._check_open()
        check_model(model)
        check_query(model, self._isolation, options)
        if is_guarding(model):
            self._members.rely_on_guard(model, hash_key)
        return _find(self._members, model, hash_key, range_key_condition, filter_condition, options)


def _find(
    members: Members,
    model: type[Any],
    hash_key: Any,
    range_key_condition: Condition | None,
    filter_condition: Condition | None,
    options: dict[str, Any],
) -> list[Any]:
    """Return the items of a hash key as a transaction sees them, in the order of their range keys."""
    limit, backwards = options.get("limit"), options.get("scan_index_forward") is False
    entries = [members.found(model, image) for image in _stored(model, hash_key, range_key_condition, options)]
    entries = [entry for entry in entries if isinstance(entry.item, model)]
    known = {id(entry) for entry in entries}
    entries += [
        entry
        for entry in members.entries.values()
        if id(entry) not in known and issubclass(entry.model, model) and _has_key(entry, hash_key, range_key_condition)
    ]
    found = [entry.item for entry in entries if entry.look() is not None and _matches(entry, filter_condition)]
    if model._range_keyname is not None:
        found.sort(key=lambda item: getattr(item, model._range_keyname), reverse=backwards)
    return found[:limit]


def _stored(
    model: type[Any], hash_key: Any, range_key_condition: Condition | None, options: dict[str, Any]
) -> Iterable[Image]:
    """Query without the filters of models: a placeholder, which has no class yet, may be an item that is committed."""
    arguments = {"consistent_read": True, "limit": options.get("page_size"), "range_key_condition": range_key_condition}
    serialized = model._serialize_keys(hash_key)[0]
    found: Iterable[Image] = ResultIterator(
        model._get_connection().query, (serialized,), arguments, rate_limit=options.get("rate_limit")
    )
    return found


def _has_key(entry: Entry, hash_key: Any, range_key_condition: Condition | None) -> bool:
    attribute: Any = entry.model.get_attributes()[str(entry.model._hash_keyname)]
    return _holds(entry, guards.both(attribute == hash_key, range_key_condition))


def _matches(entry: Entry, condition: Condition | None) -> bool:
    return condition is None or _holds(entry, condition)


def _holds(entry: Entry, condition: Condition | None) -> bool:
    keys = entry.item._get_hash_range_key_serialized_values()
    kwargs = entry.item._get_connection().get_operation_kwargs(keys[0], range_key=keys[1], condition=condition)
    return images.holds(entry.look(), kwargs)
