"""Pages of queries and scans that grow, so that what is read is bounded by what is returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pynamodb.pagination import PageIterator

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io.stored import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb.pagination import ResultIterator


_T = TypeVar("_T")

#: More rows than DynamoDB returns in one page, which has 1 MB.
_MOST_ROWS: Final = 1 << 20


class Pages:
    """The pages of PynamoDB, one by one."""

    def __init__(self, pages: PageIterator[Any]) -> None:
        self._pages = pages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pages, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._pages)


class _Growing(Pages):
    """Pages of which each is at most twice as large as the one before."""

    def __next__(self) -> Any:
        page = super().__next__()
        if self._pages.page_size is not None:
            self._pages.page_size = min(2 * self._pages.page_size, _MOST_ROWS)
        return page


def growing(found: ResultIterator[_T]) -> ResultIterator[_T]:
    """Let the pages of a query grow. The size of the first page is that of its `page_size`."""
    found.page_iter = cast("PageIterator[Any]", _Growing(found.page_iter))
    return found


def stored_pages(
    model: type[Any], hash_key: Any, *, grows: bool, rate_limit: float | None = None, **how: Any
) -> Iterator[list[Image]]:
    """Query the stored items of a hash key consistently, page by page, without the filters of models."""
    operation, serialized = model._get_connection().query, model._serialize_keys(hash_key)[0]
    pages: PageIterator[Any] = PageIterator(operation, (serialized,), {"consistent_read": True, **how}, rate_limit)
    return (page["Items"] for page in (_Growing(pages) if grows else pages))


def stored_rows(model: type[Any], at_most: int) -> list[Image]:
    """Scan the stored items of a table consistently; refuse more than so many, of which one more is read at most."""
    pages: PageIterator[Any] = PageIterator(
        model._get_connection().scan, (), {"consistent_read": True, "limit": at_most + 1}
    )
    rows = list[Image]()
    for page in pages:
        rows += page["Items"]
        pages.page_size = at_most + 1 - len(rows)
        if len(rows) > at_most:
            raise ConfigurationError(
                f"{model.Meta.table_name} has more than at_most={at_most} items, and a scan in a transaction relies on "
                f"each of them: query a hash key of it, or scan outside, and get() what matters."
            )
    return rows
