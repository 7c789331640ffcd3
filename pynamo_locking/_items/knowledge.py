"""What an instance knows of its stored item, and whether it is stale."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.constants import STRING

from pynamo_locking._core.freshness import Freshness, Why
from pynamo_locking._core.outcome import Known
from pynamo_locking._io import answers, runtime
from pynamo_locking._items import unique
from pynamo_locking._items.versions import VersionPart, known_of, shape_of
from pynamo_locking.exceptions import StaleVersion, also

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pynamodb.exceptions import PynamoDBException
    from pynamodb.models import Model

#: Where an instance keeps its version, the id of the write that stored it, and the names of what a save may have to
#: remove; no attribute of the model.
WRITE_ID: Final = "_pynamo_locking_write_id"

_UNKNOWN: Final = (None, None, None)

#: Where it keeps the effect of its write until the write is applied.
_EXPECTED: Final = "_pynamo_locking_expected"

#: Where it keeps its `Freshness`, if known.
_FRESHNESS: Final = "_pynamo_locking_freshness"

_FRESH: Final = Freshness()

#: Where it keeps the values of which rows are kept, and the version and write id of the item that has them.
_VALUES: Final = "_pynamo_locking_values"


def known(item: Model) -> Known:
    """Return what an instance knows of its stored item."""
    version, (of_version, write_id) = _version_of(item), vars(item).get(WRITE_ID, _UNKNOWN)[:2]
    # If the caller has assigned another version, the id does not belong to it.
    return Known(version, write_id if version == of_version else None)


def _version_of(item: Model) -> int | None:
    name = item._version_attribute_name
    version: int | None = None if name is None else item.attribute_values.get(name)
    return version


def removable(item: Model) -> frozenset[str] | None:
    """Return those names in the stored item that a save may have to remove; None if they are not known.

    They are those of the item with the write id that the instance knows.
    """
    names: frozenset[str] | None = vars(item).get(WRITE_ID, _UNKNOWN)[2]
    return names


def _set_write_id(item: Model, write_id: str | None, names: Iterable[str] | None = None) -> None:
    """Note a write id, and the names of all attributes that the item has since that write, if they are known."""
    vars(item).pop(WRITE_ID, None)
    if write_id is not None:
        left = None if names is None else frozenset(names) - shape_of(type(item)).lasting
        vars(item)[WRITE_ID] = (_version_of(item), write_id, left)


def remember(item: Model, image: Mapping[str, Any]) -> None:
    """Note the write id of the image that an instance was loaded from."""
    name = shape_of(type(item)).write_id_name
    vars(item).pop(_FRESHNESS, None)
    _set_write_id(item, None if name is None else image.get(name, {}).get(STRING), image)
    note_values(item, image)


def note_values(item: Model, image: Mapping[str, Any]) -> None:
    """Note what of a stored item the rows of its unique values depend on."""
    if unique.unique_of(type(item)) is not None:
        vars(item)[_VALUES] = (known(item), unique.watched(type(item), image))


def values_of(item: Model) -> tuple[Known, Mapping[str, Any]]:
    """Return what was noted, and of which stored item."""
    found: tuple[Known, Mapping[str, Any]] = vars(item).get(_VALUES, (Known(), {}))
    return found


def forget(item: Model) -> None:
    """Note that the next writer of the item stores no write id."""
    _set_write_id(item, None)


def copy_knowledge(source: Model, target: Model) -> None:
    """Copy what one instance knows of the stored item to another instance."""
    for name in (WRITE_ID, _FRESHNESS, _VALUES):
        vars(target).pop(name, None)
        if name in vars(source):
            vars(target)[name] = vars(source)[name]


def take_version(item: Model, attributes: Mapping[str, Any]) -> None:
    """Set the version of an instance to the one that DynamoDB has stored."""
    version, write_id = known_of(type(item), attributes).version, known(item).write_id
    if version is not None and item._version_attribute_name is not None:
        setattr(item, item._version_attribute_name, version)
        _set_write_id(item, write_id)


def set_known(item: Model, before: Known) -> None:
    """Make an instance a copy of that stored version, whatever it was loaded from."""
    name = item._version_attribute_name
    if name is not None and known(item) != before:
        if before.version is None:
            item.attribute_values.pop(name, None)  # PynamoDB's own version attribute does not take None
        else:
            setattr(item, name, before.version)
        _set_write_id(item, before.write_id)


@contextlib.contextmanager
def planned_as(item: Model, before: Known) -> Iterator[None]:
    """Plan the write of an instance as if it had been loaded from that stored version; restore it afterwards."""
    name, state = str(item._version_attribute_name), vars(item)
    if known(item) == before:
        yield
        return
    values, noted = dict(item.attribute_values), state.get(WRITE_ID)
    set_known(item, before)
    try:
        yield
    finally:
        item.attribute_values.pop(name, None)
        if name in values:
            item.attribute_values[name] = values[name]
        state.pop(WRITE_ID, None)
        if noted is not None:
            state[WRITE_ID] = noted


def part_of(item: Model, *, is_checked: bool, token: str | None = None) -> VersionPart:
    """Return the version's part of a write; it is empty if the model has no versions.

    If the caller has named the transaction, the write id is derived from its `token`: DynamoDB recognises a repeated
    transaction only if all of its actions are equal.
    """
    shape, before = shape_of(type(item)), known(item)
    nonce = "" if shape.write_id is None else _nonce(item, before, token)
    return VersionPart(shape, before, nonce, is_checked=is_checked and shape.attribute is not None)


def _nonce(item: Model, before: Known, token: str | None) -> str:
    if token is None:
        return runtime.current.token()
    keys = item._get_serialized_keys()
    text = repr((token, type(item).Meta.table_name, keys, before.version, before.write_id))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class _Expected:
    write_id: str | None
    outdates: bool
    names: Iterable[str] | None


def expect(
    item: Model,
    part: VersionPart,
    *,
    outdates: bool = False,
    is_handed_out: bool = False,
    names: Iterable[str] | None = None,
) -> None:
    """Note what PynamoDB's call of `update_local_version_attribute` will mean for an instance.

    Args:
        item: the instance.
        part: of the write that was applied when PynamoDB makes the call.
        outdates: whether the stored item will have attributes that the instance does not show.
        is_handed_out: whether PynamoDB sends the write. If it has two writes of the instance, the call does not say
            which of them was applied.
        names: of all attributes that the stored item will have; None if they are not known.
    """
    is_second = is_handed_out and _EXPECTED in vars(item)
    vars(item)[_EXPECTED] = _Expected(None if is_second else part.write_id, outdates, names)


def take_expected(item: Model) -> None:
    """Note that the expected write was applied."""
    made: _Expected | None = vars(item).pop(_EXPECTED, None)
    if made is None:
        forget(item)
        return
    _set_write_id(item, made.write_id, made.names)
    if made.outdates:
        mark_old(item, is_locked=False)


def mark_old(item: Model, why: Why = Why.COMMITTED, *, is_locked: bool = True) -> None:
    """Mark an instance as stale: the stored item may differ from it."""
    has_version = item._version_attribute_name is not None
    vars(item)[_FRESHNESS] = freshness(item).marked(why, known(item), has_version=has_version, is_locked=is_locked)


def freshness(item: Model) -> Freshness:
    """Return whether an instance is known to be stale, and why."""
    found: Freshness = vars(item).get(_FRESHNESS, _FRESH)
    return found


def is_old(item: Model) -> bool:
    """Tell whether an instance is stale."""
    return freshness(item).is_old(known(item))


def check_current(item: Model, error: type[PynamoDBException]) -> None:
    """Refuse to save a stale instance whose staleness DynamoDB could not notice."""
    if freshness(item).must_not_be_saved:
        raise stale(item, error, f"{freshness(item).why}. Nothing was sent. refresh() it first.")


def stale(item: Model, error: type[PynamoDBException], why: str) -> Exception:
    """Return the error for an instance that is known to be stale without a request."""
    version = known(item).version
    refused: Exception = also(StaleVersion, error)(
        f"this {type(item).__name__} {why}",
        expected=version,
        actual=version,
        cause=answers.condition_failed(error, "the copy is older than its version", item.Meta.table_name),
    )
    return refused
