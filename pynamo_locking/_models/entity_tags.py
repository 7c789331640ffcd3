"""Entity tags: a version of an item as text, for clients that read an item and write it later."""

from __future__ import annotations

from typing import Any, Final

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.outcome import Known
from pynamo_locking._items import knowledge, versions
from pynamo_locking.exceptions import StaleVersion

#: DynamoDB's numbers have at most 38 digits.
_LONGEST_NUMBER: Final = 38


def etag_of(item: Any) -> str:
    """Return the entity tag of a stored item, without its quotes: its version, and the id of its last write."""
    known = knowledge.known(item)
    if known.version is None:
        raise ConfigurationError(
            f"this {type(item).__name__} has no version that an ETag could be made of: it is not stored, or its model "
            f"has no `version = VersionAttribute()`."
        )
    return f"{known.version}" if known.write_id is None else f"{known.version}-{known.write_id}"


def _meant_by(tag: str) -> Known | None:
    """Return what `etag_of` has made this tag from; None for any other text."""
    version, dash, write_id = tag.partition("-")
    is_number = version.isascii() and version.isdigit() and len(version) <= _LONGEST_NUMBER
    if not is_number or str(int(version)) != version or bool(dash) != bool(write_id):
        return None
    return Known(int(version), write_id or None)


def check_model(found: Any) -> None:
    """Refuse a model, or an item of one, that has no version."""
    model: Any = found if isinstance(found, type) else type(found)
    if versions.shape_of(model).attribute is None:
        raise ConfigurationError(f"{model.__name__} has no version to compare: declare `version = VersionAttribute()`.")


def item_of(tags: list[str] | None, found: Any, hash_key: Any, range_key: Any) -> Any:
    """Return an item whose writes DynamoDB refuses unless it is in a version that one of the tags names.

    Args:
        tags: strong ones; None for any version.
        found: the item as it was read; or its model, and the keys.
        hash_key: of the item.
        range_key: of the item.

    Raises:
        StaleVersion: the item is in none of these versions, or there is no such item.
    """
    model: Any = found if isinstance(found, type) else type(found)
    expected = [known for known in map(_meant_by, tags or ()) if known is not None]
    has_ids = versions.shape_of(model).write_id_name is not None
    is_one = tags is not None and len(expected) == len(tags) == 1
    if found is model and is_one and (expected[0].write_id is not None or not has_ids):
        item = model(hash_key, range_key)  # no read is needed: the write itself compares
        knowledge.set_known(item, expected[0])
        return item
    current: Any = _read(model, hash_key, range_key) if found is model else found
    stored = Known(None, None) if current is None else knowledge.known(current)
    if current is not None and (tags is None or stored in expected):
        return current
    # An item that was read without its write id, as from an index: the write compares the id.
    meant = [known for known in expected if known.version == stored.version and stored.write_id is None]
    if current is None or len(meant) != 1:
        raise StaleVersion(
            "the item is not in a version that If-Match names. Nothing was written; read it again.",
            expected=expected[0].version if expected else None,
            actual=stored.version,
        )
    knowledge.set_known(current, meant[0])
    return current


def _read(model: Any, hash_key: Any, range_key: Any) -> Any:
    try:
        return model.get(hash_key, range_key, consistent_read=True)
    except model.DoesNotExist:
        return None
