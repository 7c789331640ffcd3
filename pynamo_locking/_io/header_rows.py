"""What a transaction keeps beside its header: where its marks are, what did not fit into them, its idempotency key."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamo_locking._io import flaws, runtime
from pynamo_locking._io.headers import EXPIRES, ID, ROW_TTL_S, ask, check_own, persistently, put_once
from pynamo_locking._io.records import number
from pynamo_locking._io.requests import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamo_locking._io.headers import HeaderTable

_T = TypeVar("_T")

#: Stored name.
CONTENT: Final = "content"


def put_row(header_table: HeaderTable, row_id: str, content: Mapping[str, Any], *, expires: bool) -> None:
    """Keep something beside the header; with an end of its life if it only helps to find the marks."""
    item = {**header_table.key(row_id), CONTENT: {"M": dict(content)}}
    if expires:
        item[EXPIRES] = number(runtime.current.time_ms() // 1000 + ROW_TTL_S)
    put_once(header_table, item, CONTENT)


def once(header_table: HeaderTable, row_id: str, content: Mapping[str, Any], ttl_s: int) -> dict[str, Any]:
    """Return the action of a transaction that keeps something, and is refused while something is kept there."""
    now_s = runtime.current.time_ms() // 1000
    return {
        "Put": {
            "TableName": header_table.table,
            "Item": {**header_table.key(row_id), CONTENT: {"M": dict(content)}, EXPIRES: number(now_s + ttl_s)},
            "ConditionExpression": "attribute_not_exists(#id) OR (#expires <= :now AND attribute_exists(#content))",
            "ExpressionAttributeNames": {"#id": ID, "#expires": EXPIRES, "#content": CONTENT},
            "ExpressionAttributeValues": {":now": number(now_s)},
        }
    }


def get_row(header_table: HeaderTable, row_id: str, parse: Callable[[Mapping[str, Any]], _T]) -> _T | None:
    """Return what was kept beside a header.

    Raises:
        CorruptRow: that function cannot read it.
    """
    image = _image(header_table, row_id)
    return None if image is None else _read(header_table, row_id, lambda row: parse(row[CONTENT]["M"]), image)


def _image(header_table: HeaderTable, row_id: str) -> dict[str, Any] | None:
    kwargs = {"TableName": header_table.table, "Key": header_table.key(row_id), "ConsistentRead": True}
    image: dict[str, Any] | None = persistently(lambda: ask(header_table, "GetItem", kwargs)).get("Item")
    return image


def _read(
    header_table: HeaderTable, row_id: str, parse: Callable[[Mapping[str, Any]], _T], image: Mapping[str, Any]
) -> _T:
    what, advice = f"the row {row_id!r} of {header_table.table!r}", "Restore it, or find out who has written it."
    return flaws.read(parse, image, what, table=header_table.table, key=header_table.key(row_id), advice=advice)


def get_once(header_table: HeaderTable, row_id: str, parse: Callable[[Mapping[str, Any]], _T]) -> _T | None:
    """Return what `once` has kept, unless its time is over: DynamoDB may remove it days later.

    Raises:
        ConfigurationError: another program has stored an item of that name.
        CorruptRow: that function cannot read it.
    """
    image = _image(header_table, row_id)
    if image is None:
        return None
    check_own(header_table, image, CONTENT)
    ends_s, content = _read(header_table, row_id, lambda row: (int(row[EXPIRES]["N"]), parse(row[CONTENT]["M"])), image)
    return None if ends_s <= runtime.current.time_ms() // 1000 else content


def delete_row(header_table: HeaderTable, row_id: str) -> None:
    """Remove what was kept beside a header, once the transaction does not need it."""
    kwargs = {
        "TableName": header_table.table,
        "Key": header_table.key(row_id),
        "ConditionExpression": "attribute_exists(#content)",
        "ExpressionAttributeNames": {"#content": CONTENT},
    }
    with contextlib.suppress(Refused):  # it is gone, or was never ours
        persistently(lambda: ask(header_table, "DeleteItem", kwargs))


def row_of_participants(header_id: str, index: int) -> str:
    """Return the name of a participant row."""
    return f"{header_id}#{index:04}"


def row_of_changes(header_id: str, index: int) -> str:
    """Return the name of a row with what did not fit into a mark."""
    return f"{header_id}!{index:05}"
