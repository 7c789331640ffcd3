"""Looks for rows and gaps in several hash keys, one after the other, or in an index."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from pynamodb.indexes import Index

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import is_count
from pynamo_locking._io.stored import Place, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._core.intervals import Span
    from pynamo_locking._intervals.axis import Axis


def of_each(hash_keys: Any, look: Callable[[Any], Iterable[Any]], limit: int | None = None) -> Iterator[Any]:
    """Yield what `look` finds for each hash key, in the order of the keys; refuse what is no list of them."""
    if isinstance(hash_keys, (str, bytes)) or not hasattr(hash_keys, "__iter__"):
        raise ConfigurationError(f"several hash keys are needed, such as a list, not {hash_keys!r}.")
    if limit is not None and not is_count(limit):
        raise ConfigurationError(f"limit must be a whole number above 0, not {limit!r}.")
    return islice((each for hash_key in hash_keys for each in look(hash_key)), limit)


def in_index(axis: Axis, index: Any, span: Span) -> Callable[[Any], Iterable[Any]]:
    """Return the function that queries an index for the rows of one of its hash keys that overlap an interval.

    Rows of one hash key of the index may overlap each other. So every row that begins early enough is read, and
    DynamoDB leaves out those that have ended.

    Raises:
        ConfigurationError: it is no index of the model by the begin, or does not have every row.
    """
    begin, end = axis.stored
    is_ours = isinstance(index, Index) and index in axis.model._indexes.values()
    by = [each.attr_name for each in index.Meta.attributes.values() if each.is_range_key] if is_ours else []
    if by != [begin] or (axis.may_be_open and not axis.is_by_begin):
        raise ConfigurationError(
            f"index must be an index of {axis.model.__name__} whose range key is {axis.names[0]!r}, which every row "
            f"has, not {index!r}."
        )
    starts: Condition | None = None
    lasts: Condition | None = None
    if span.upper is not None:
        starts = Place(begin) < Stored(axis.value(span.upper.value, axis.names[0]))
    if span.lower is not None:
        lasts = Place(end) > Stored(axis.value(span.lower.value, axis.names[1]))
        if axis.may_be_open:
            lasts = lasts | axis.is_open()
    return lambda hash_key: index.query(hash_key, starts, lasts)
