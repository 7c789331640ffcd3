"""The reads of models whose rows have an interval each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from pynamo_locking._core.intervals import begin_of, gaps
from pynamo_locking._intervals.search import overlapping
from pynamo_locking._intervals.several import in_index, of_each
from pynamo_locking._items import keys
from pynamo_locking._models.isolation import Reader
from pynamo_locking._models.versioned import VersionedMixin
from pynamo_locking.exceptions import as_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pynamodb.indexes import Index

    from pynamo_locking._core.intervals import Edge, Span
    from pynamo_locking._intervals.axis import Axis
    from pynamo_locking._io.stored import Image


class LookingMixin(VersionedMixin):
    """Finds rows and gaps."""

    _reserved_names: ClassVar[frozenset[str]] = frozenset({"overlapping", "overlapping_in", "free", "free_in"})

    @classmethod
    def _interval(cls) -> Axis:
        """Return the model's axis; refuse a model that cannot keep its rows from overlapping."""
        raise NotImplementedError

    @classmethod
    def overlapping(cls, hash_key: Any, begin: Any, end: Any) -> list[Self]:
        """Return the stored rows that overlap an interval, in order.

        Args:
            hash_key: the hash key.
            begin: where the interval begins; None for the first row.
            end: where it ends; None for the last row.

        Raises:
            ConfigurationError: the values do not fit the model.

        Cost: 1 consistent query for up to 15 rows; for more, queries of pages that double. Besides expired rows they
        read at most twice the rows that are returned, and 16.
        """
        found = cls._overlapping(hash_key, cls._interval().span(begin, end))
        return [as_model(cls, image) for image, _ in found]

    @classmethod
    def overlapping_in(
        cls,
        hash_keys: Iterable[Any],
        begin: Any,
        end: Any,
        *,
        limit: int | None = None,
        index: Index[Any] | None = None,
    ) -> Iterator[Self]:
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
                first row on. It should project all attributes.

        Raises:
            ConfigurationError: the arguments do not fit the model. Nothing was sent.

        Cost: for each hash key that of `overlapping`, and the memory for its rows. With an `index` 1 query for each MB
        of rows that begin before `end`, and the memory of one page.
        """
        span = cls._interval().span(begin, end)
        if index is not None:
            return of_each(hash_keys, in_index(cls._interval(), index, span), limit)
        return of_each(hash_keys, lambda hash_key: cls.overlapping(hash_key, begin, end), limit)

    @classmethod
    def free_in(cls, hash_keys: Iterable[Any], begin: Any, end: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the gaps of several hash keys: by hash key as given, then in order; each as hash key, begin, end.

        Args:
            hash_keys: the hash keys, each queried when the caller asks for its first gap.
            begin: as for `free`.
            end: as for `free`.

        Raises:
            ConfigurationError: the arguments do not fit the model. Nothing was sent.

        Cost: for each hash key that of `overlapping`, and the memory for its rows.
        """
        cls._interval().span(begin, end)
        return of_each(hash_keys, lambda hash_key: [(hash_key, *gap) for gap in cls.free(hash_key, begin, end)])

    @classmethod
    def _overlapping(cls, hash_key: Any, span: Span) -> list[tuple[Image, Span]]:
        keys.hash_key_of(cls, hash_key)
        found = overlapping(cls._interval(), hash_key, span, Reader("read_committed"))
        return sorted(found, key=lambda each: begin_of(each[1]))

    @classmethod
    def free(cls, hash_key: Any, begin: Any, end: Any) -> list[tuple[Any, Any]]:
        """Return the gaps: the parts of an interval that no stored row has, in order, each as begin and end.

        Args:
            hash_key: the hash key.
            begin: where to begin; None leaves it open, and the first gap may have None as its begin then.
            end: where to end; None leaves it open, as well.

        Raises:
            ConfigurationError: the values do not fit the model.

        Cost: that of `overlapping`. Another writer may take a gap at any moment: `insert_disjoint` checks again.
        """
        window = cls._interval().span(begin, end)
        free = gaps((span for _, span in cls._overlapping(hash_key, window)), window)
        return [(value_of(gap.lower), value_of(gap.upper)) for gap in free]


def value_of(edge: Edge | None) -> Any:
    """Return an end of an interval as the model has it; None if it is open."""
    return None if edge is None else edge.value
