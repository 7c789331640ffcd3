"""Queries, scans and batches outside transactions that show committed items, or what transactions intend."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pynamodb.pagination import PageIterator, ResultIterator

from pynamo_locking._core import limits
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io import lock_document
from pynamo_locking._io.stored import Place
from pynamo_locking._items import clauses, expiry, images, keys
from pynamo_locking._items.pages import Pages, growing
from pynamo_locking._models.isolation import Reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._io.stored import Image
    from pynamo_locking._models.placement import PlacedMixin

_M = TypeVar("_M", bound="PlacedMixin")
_LEVELS: Final = ("read_committed", "read_uncommitted")


def reader_of(isolation: str, **in_part: Any) -> Reader:
    """Return what reads whole items with an isolation; refuse others, and what cannot be combined with them."""
    if isolation not in _LEVELS or any(value is not None for value in in_part.values()):
        raise ConfigurationError(
            f"reads outside transactions know the isolations {' and '.join(_LEVELS)}, of whole items, and of no index, "
            f"which lags behind its table: not {isolation!r}"
            + "".join(f" with {name}={value!r}" for name, value in in_part.items() if value is not None)
            + ". Query the index without it, and get() the items with it."
        )
    return Reader(isolation)


def pages_of(
    model: type[_M],
    operation: Any,
    arguments: tuple[Any, ...],
    wanted: Condition | None,
    reader: Reader,
    *,
    limit: int | None,
    page_size: int | None,
    rate_limit: float | None,
    **how: Any,
) -> ResultIterator[_M]:
    """Return the items of a query or scan that a filter wants, judged by what the isolation shows of them.

    DynamoDB judges the items without a mark, and returns all that have one.
    """
    classes = model._get_discriminator_attribute()
    if classes is not None:
        wanted = clauses.both(wanted, classes.is_in(*classes.get_registered_subclasses(model)))
    lock = model._lock_attribute()
    sent = wanted
    if lock is not None and wanted is not None:
        sent = wanted | Place(lock.attr_name, lock_document.TX).exists()
    first = limit if page_size is None else page_size
    kwargs = {**how, "filter_condition": sent, "consistent_read": True, "limit": first}
    found: ResultIterator[_M] = ResultIterator(
        operation, arguments, kwargs, map_fn=model.from_raw_data, limit=limit, rate_limit=rate_limit
    )
    found = found if page_size is not None else growing(found)
    found.page_iter = cast("PageIterator[Any]", _Shown(found.page_iter, model, wanted, reader))
    return found


class _Shown(Pages):
    """Pages with what an isolation shows of their items."""

    def __init__(self, pages: Any, model: type[PlacedMixin], wanted: Condition | None, reader: Reader) -> None:
        super().__init__(pages)
        self._model = model
        self._wanted = wanted
        self._reader = reader
        names = (str(model._hash_keyname), model._range_keyname)
        self._names = [model.get_attributes()[name].attr_name for name in names if name is not None]

    def __next__(self) -> Any:
        page = super().__next__()
        found = [({name: image[name] for name in self._names}, image) for image in page["Items"]]
        shown = self._reader.committed(self._model, found, self._reader.resolver())
        items = [
            image
            for (key, stored), image in zip(found, shown, strict=True)
            if image is not None and (not self._is_marked(stored) or self._is_wanted(key, image))
        ]
        return {**page, "Items": items, "Count": len(items)}

    def _is_marked(self, stored: Image) -> bool:
        lock = self._model._lock_attribute()
        return lock is not None and lock_document.TX in stored.get(lock.attr_name, {}).get("M", {})

    def _is_wanted(self, key: Image, image: Image) -> bool:
        values = [next(iter(value.values())) for value in key.values()]
        range_key = values[1] if len(values) > 1 else None
        asked = self._model._get_connection().get_operation_kwargs(values[0], range_key, condition=self._wanted)
        return images.holds(image, asked)


def batch_of(model: type[_M], items: Iterable[Any], reader: Reader, *, include_expired: bool) -> Iterator[_M]:
    """Yield the items of some keys that the isolation shows, a hundred by each request."""
    has_range = model._range_keyname is not None
    table = model._get_connection().table_name
    found = (keys.key_of(model, *(item if has_range else (item, None))) for item in items)
    asked = iter({keys.ItemKey.of(table, key): key for key in found}.values())
    while some := list(islice(asked, limits.MOST_KEYS)):
        for image in reader.read_all(model, some):
            if image is not None and (include_expired or not expiry.is_expired(model, image)):
                yield model.from_raw_data(image)
