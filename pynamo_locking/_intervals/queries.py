"""Finds the rows that overlap an interval, and the gaps between rows."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pynamodb.indexes import Index

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import is_count
from pynamo_locking._intervals.intervals import begin_of, gaps, interval_attributes_of
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._items import keys, versions
from pynamo_locking._items.expiry import is_projected
from pynamo_locking._models.awaited import awaited_each, awaited_read
from pynamo_locking._models.isolation import READ_COMMITTED, IsolatedReader, stored_pages
from pynamo_locking._models.mixins import VersionedMixin
from pynamo_locking._pynamodb import indexes_of
from pynamo_locking.exceptions import as_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._intervals.intervals import IntervalAttributes, Span
    from pynamo_locking._io.stored_rows import Image


#: The size of the first page, in rows; later pages grow.
_PAGE: Final = 16


def overlapping(
    interval: IntervalAttributes,
    hash_key: Any,
    span: Span,
    reader: IsolatedReader,
    *,
    page_size: int = _PAGE,
    expired: list[Image] | None = None,
) -> Iterator[tuple[Image, Span]]:
    """Yield the stored rows of a hash key that overlap an interval, in the order of their ends or in reverse.

    Stored rows do not overlap each other. So the query reads backwards from the end of the interval, and stops at the
    first row that ends before the interval begins; with the end as the range key it reads forwards. Expired and
    uncommitted rows may lie anywhere and do not stop it. `expired` receives the expired rows that overlap the interval,
    as far as the query finds them.
    """
    resolver = reader.resolver()
    for page in _towards(interval, hash_key, span, page_size):
        for current in reader.committed(interval.model, [(interval.key_in(image), image) for image in page], resolver):
            its = None if current is None else interval.span_in(current)
            if current is None or its is None or its.is_empty:
                continue
            if versions.shape_of(interval.model).is_expired(current):
                if expired is not None and its.overlaps(span):
                    expired.append(current)
            elif its.overlaps(span):
                yield current, its
            else:
                return


def _towards(interval: IntervalAttributes, hash_key: Any, span: Span, page_size: int) -> Iterator[list[Image]]:
    """Query the rows of a hash key from one end of the interval towards the other end."""
    bound = span.upper if interval.is_by_begin else span.lower
    condition: Condition | None = None
    if bound is not None:
        path = Place(interval.key_name)
        name = interval.names[0 if interval.is_by_begin else 1]
        edge = Stored(interval.value(bound.value, name))
        condition = path < edge if interval.is_by_begin else path > edge
    forward = not interval.is_by_begin
    how: dict[str, Any] = {"range_key_condition": condition, "scan_index_forward": forward, "limit": page_size}
    return stored_pages(interval.model, hash_key, grows=True, **how)


def of_each(hash_keys: Any, look: Callable[[Any], Iterable[Any]], limit: int | None = None) -> Iterator[Any]:
    """Yield what `look` finds for each hash key, in the order of the keys; refuse what is no list of them."""
    if isinstance(hash_keys, (str, bytes)) or not hasattr(hash_keys, "__iter__"):
        raise ConfigurationError(f"several hash keys are needed, such as a list, not {hash_keys!r}.")
    if limit is not None and not is_count(limit):
        raise ConfigurationError(f"limit must be a whole number above 0, not {limit!r}.")
    return islice((each for hash_key in hash_keys for each in look(hash_key)), limit)


def in_index(interval: IntervalAttributes, index: Any, span: Span) -> Callable[[Any], Iterable[Any]]:
    """Return the function that queries an index for the rows of one of its hash keys that overlap an interval.

    Rows of one hash key of the index may overlap each other. So every row that begins early enough is read, and
    DynamoDB leaves out those that have ended.

    Raises:
        ConfigurationError: it is no index of the model by the begin, or does not have every row, or its end.
    """
    begin, end = interval.stored
    is_ours = isinstance(index, Index) and index in indexes_of(interval.model).values()
    by = [each.attr_name for each in index.Meta.attributes.values() if each.is_range_key] if is_ours else []
    if by != [begin] or (interval.may_be_open and not interval.is_by_begin):
        raise ConfigurationError(
            f"index must be an index of {interval.model.__name__} whose range key is {interval.names[0]!r}, which "
            f"every row has, not {index!r}."
        )
    starts: Condition | None = None
    lasts: Condition | None = None
    if span.upper is not None:
        starts = Place(begin) < Stored(interval.value(span.upper.value, interval.names[0]))
    if span.lower is not None:
        if not is_projected(end, interval.model, index.Meta.index_name):
            raise ConfigurationError(
                f"the index {index.Meta.index_name!r} of {interval.model.__name__} does not have {end!r}, so rows that "
                f"have ended cannot be left out: add it to the projection."
            )
        lasts = Place(end) > Stored(interval.value(span.lower.value, interval.names[1]))
        if interval.may_be_open:
            lasts = lasts | interval.is_open()
    return lambda hash_key: index.query(hash_key, starts, lasts)


_M = TypeVar("_M", bound=VersionedMixin)


class IntervalQueries(Generic[_M]):
    """Finds rows and gaps of a model."""

    __slots__ = ("_model",)

    def __init__(self, model: type[_M]) -> None:
        self._model = model

    @property
    def _interval(self) -> IntervalAttributes:
        return interval_attributes_of(self._model)

    def overlapping(self, hash_key: Any, begin: Any, end: Any) -> list[_M]:
        """Return the stored rows that overlap an interval, in order.

        Example::

            for booking in Booking.intervals.overlapping("blue", 9, 12):
                print(booking.begin, booking.end)

        Args:
            hash_key: the hash key.
            begin: where the interval begins; None for the first row.
            end: where it ends; None for the last row.

        Raises:
            InvalidInput: the values do not fit the model.

        Cost: 1 consistent query for up to 15 rows; for more, queries of pages that double. Besides expired rows they
        read at most twice the rows that are returned, and 16.
        """
        found = self._overlapping(hash_key, self._interval.span(begin, end))
        return [as_model(self._model, image) for image, _ in found]

    def overlapping_in(
        self,
        hash_keys: Iterable[Any],
        begin: Any,
        end: Any,
        *,
        limit: int | None = None,
        index: Index[Any] | None = None,
    ) -> Iterator[_M]:
        """Yield the stored rows of several hash keys that overlap an interval: by hash key as given, then by begin.

        A hash key is queried when the caller asks for its first row. So a caller that stops early pays for nothing
        more, and the hash keys may be an iterator without end.

        Args:
            hash_keys: the hash keys; with an `index` those of the index.
            begin: as for `overlapping`.
            end: as for `overlapping`.
            limit: the most rows to yield.
            index: an index of the model, such as ``Booking.by_begin``, whose range key is the begin: for rows of all
                hash keys. An index is eventually consistent. Its rows may overlap each other, so it is read from its
                first row on. It has to project the end; what else it lacks, the rows lack.

        Raises:
            InvalidInput, ConfigurationError: the arguments do not fit the model. Nothing was sent.

        Cost: for each hash key that of `overlapping`, and the memory for its rows. With an `index` 1 query for each MB
        of rows that begin before `end`, and the memory of one page.
        """
        span = self._interval.span(begin, end)
        if index is not None:
            return of_each(hash_keys, in_index(self._interval, index, span), limit)
        return of_each(hash_keys, lambda hash_key: self.overlapping(hash_key, begin, end), limit)

    def free_in(self, hash_keys: Iterable[Any], begin: Any, end: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the gaps of several hash keys: by hash key as given, then in order; each as hash key, begin, end.

        Args:
            hash_keys: the hash keys, each queried when the caller asks for its first gap.
            begin: as for `free`.
            end: as for `free`.

        Raises:
            InvalidInput, ConfigurationError: the arguments do not fit the model. Nothing was sent.

        Cost: for each hash key that of `overlapping`, and the memory for its rows.
        """
        self._interval.span(begin, end)
        return of_each(hash_keys, lambda hash_key: [(hash_key, *gap) for gap in self.free(hash_key, begin, end)])

    def _overlapping(self, hash_key: Any, span: Span) -> list[tuple[Image, Span]]:
        keys.hash_key_of(self._model, hash_key)
        found = overlapping(self._interval, hash_key, span, IsolatedReader(READ_COMMITTED))
        return sorted(found, key=lambda each: begin_of(each[1]))

    def free(self, hash_key: Any, begin: Any, end: Any) -> list[tuple[Any, Any]]:
        """Return the gaps: the parts of an interval that no stored row has, in order, each as begin and end.

        Example::

            for begin, end in Booking.intervals.free("blue", 9, 17):
                print("free from", begin, "to", end)

        Args:
            hash_key: the hash key.
            begin: where to begin; None leaves it open, and the first gap may have None as its begin then.
            end: where to end; None leaves it open, as well.

        Raises:
            InvalidInput: the values do not fit the model.

        Cost: that of `overlapping`. Another writer may take a gap at any moment: `insert_disjoint` checks again.
        """
        window = self._interval.span(begin, end)
        free = gaps((span for _, span in self._overlapping(hash_key, window)), window)
        return [gap.values for gap in free]

    @awaited_read(overlapping)
    def aoverlapping(self) -> None:
        """Return the stored rows that overlap an interval, awaited. See `overlapping`."""

    @awaited_each(overlapping_in)
    def aoverlapping_in(self) -> None:
        """Yield the stored rows of several hash keys that overlap an interval, awaited. See `overlapping_in`."""

    @awaited_read(free)
    def afree(self) -> None:
        """Return the gaps, awaited. See `free`."""

    @awaited_each(free_in)
    def afree_in(self) -> None:
        """Yield the gaps of several hash keys, awaited. See `free_in`."""
