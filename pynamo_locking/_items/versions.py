"""The version condition of a write, what an instance knows of its stored item, and entity tags."""

from __future__ import annotations

import contextlib
import hashlib
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pynamodb.constants import NUMBER, STRING

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.write_outcome import Known, next_write_id
from pynamo_locking._io import responses, runtime
from pynamo_locking._io.model_doors import lock_attribute_of
from pynamo_locking._io.stored_rows import FORMAT, FORMAT_NAME, Place, SetStored, Stored, StoredRow, known_format
from pynamo_locking._items import expiry, unique_values
from pynamo_locking._items.keys import stored_keys
from pynamo_locking._pynamodb import new_item, python_name_of, stored_key_of, version_name_of, version_of
from pynamo_locking.exceptions import StaleVersion, also

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pynamodb.attributes import Attribute
    from pynamodb.exceptions import PynamoDBException
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.operand import Path
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

T = TypeVar("T")
_M = TypeVar("_M", bound="Model")
_I = TypeVar("_I", bound="Mapping[str, Any]")


#: Set on a model class: its `Shape`, worked out once.
_SHAPE: Final = "_pynamo_locking_shape"

_FORMAT: Final = {NUMBER: str(FORMAT)}


class Shape:
    """The attributes of a model for its versions and write ids, each None if it has none, and their expressions.

    `declared` has the stored names of all attributes, `lasting` also that of the write id, and of the others only those
    that no save removes. `unique` says which values are unique. Of rows of ours, `known` is the condition that no newer
    release has stored the row, and `format_` the action that stores its format.
    """

    def __init__(self, model: type[Model]) -> None:
        self._model = model
        name, attributes = version_name_of(model), model.get_attributes()
        self.attribute: Attribute[Any] | None = None if name is None else attributes[name]
        self.write_id_name: str | None = _find_name(model, self.attribute)
        self.declared: frozenset[str] = frozenset(each.attr_name for each in attributes.values())
        required = {each.attr_name for each in attributes.values() if not each.null or each is self.attribute}
        key = {each.attr_name for each in stored_keys(model)}
        self.lasting: frozenset[Any] = frozenset({*required, *key, self.write_id_name})
        self.unique: unique_values.Unique | None = unique_values.unique_of(model)
        has_format = getattr(model, "_has_format", False)
        if has_format and FORMAT_NAME in self.declared:
            raise ConfigurationError(f"{model.__name__} keeps the format of its rows in {FORMAT_NAME!r}: rename yours.")
        # Building these is a large part of the work of a write, and they are the same for all writes.
        self.version: Path | None = None if name is None else Place(attributes[name].attr_name)
        self.write_id: Path | None = None if self.write_id_name is None else Place(self.write_id_name)
        self.count: Action | None = None if self.version is None else self.version.add(Stored({NUMBER: "1"}))
        self.begin: Action | None = None if self.version is None else self.version.set(Stored({NUMBER: "1"}))
        self.known: Condition | None = known_format() if has_format else None
        self.format_: Action | None = Place(FORMAT_NAME).set(Stored(_FORMAT)) if has_format else None

    @cached_property
    def expires(self) -> str | None:
        """The stored name of the time of expiry, of a model that hides expired items."""
        return expiry.attribute_name(self._model)

    def is_expired(self, image: Mapping[str, Any] | None) -> bool:
        """Tell whether an image is that of an item that counts as absent."""
        return self.expires is not None and expiry.is_past(expiry.time_in(image, self.expires))

    def unexpired(self, image: _I | None) -> _I | None:
        return None if self.is_expired(image) else image

    def has_expired(self, item: Model) -> bool:
        value = None if self.expires is None else getattr(item, python_name_of(type(item), self.expires))
        return value is not None and value.timestamp() <= expiry.now_s()

    def or_expired(self, condition: Condition | None) -> Condition | None:
        """Extend a condition that an absent item meets, of a save or a check: an expired item counts as absent."""
        if self.expires is None or condition is None or not expiry.holds_without_item(condition):
            return condition
        extended: Condition = condition | expiry.has_passed(self.expires)
        return extended


def shape_of(model: type[Model]) -> Shape:
    """Return where a model has versions and write ids.

    ``Meta.write_id`` names the attribute of the ids. Without it, a model with a version has one next to the version.
    """
    shape: Shape | None = vars(model).get(_SHAPE)
    if shape is None:
        shape = Shape(model)
        setattr(model, _SHAPE, shape)
    return shape


def present(item: _M) -> _M:
    """Return an item that was read; `DoesNotExist` if it has expired."""
    if shape_of(type(item)).has_expired(item):
        raise item.DoesNotExist("This item has expired.")
    return item


def _find_name(model: type[Model], attribute: Attribute[Any] | None) -> str | None:
    usual = None if attribute is None else f"{attribute.attr_name}_write_id"
    name = getattr(getattr(model, "Meta", None), "write_id", usual)
    if name is not None and not (isinstance(name, str) and name):
        raise ConfigurationError(
            f"Meta.write_id of {model.__name__} is {name!r}: give the name of an attribute for write ids, "
            f"such as 'write_id', or None for none."
        )
    if name in {other.attr_name for other in model.get_attributes().values()}:
        raise ConfigurationError(
            f"{model.__name__} would keep its write ids in {name!r}, which is another attribute of it: "
            f"name another one in Meta.write_id."
        )
    return name


def refuse_newer(model: type[Model], image: Mapping[str, Any] | None) -> None:
    """Refuse a row of ours of a newer format: `UnknownFormat`."""
    if image is None or image.get(FORMAT_NAME, _FORMAT) == _FORMAT or shape_of(model).known is None:
        return
    names = [each.attr_name for each in stored_keys(model)]
    table = model.Meta.table_name
    key = {name: image[name] for name in names if name in image}
    what = f"the row {', '.join(value['S'] for value in key.values())!r} of {table!r}"
    StoredRow(what, table, key).refuse_newer(image)


def known_of(model: type[Model], image: Mapping[str, Any]) -> Known:
    """Return the version and the write id in an image of a stored item."""
    shape = shape_of(model)
    version = None if shape.attribute is None else image.get(shape.attribute.attr_name, {}).get(NUMBER)
    write_id = None if shape.write_id_name is None else image.get(shape.write_id_name, {}).get(STRING)
    return Known(None if version is None else int(Decimal(version)), write_id)


def flaw_of(model: type[Model], image: Mapping[str, Any] | None) -> str | None:
    """Return what is wrong with the version that another program has stored; None if it is a version, or none."""
    attribute = shape_of(model).attribute
    stored = None if attribute is None else (image or {}).get(attribute.attr_name)
    number = None if stored is None else stored.get(NUMBER)
    if attribute is None or stored is None or (number is not None and Decimal(number) == int(Decimal(number))):
        return None
    return (
        f"its version is stored as {attribute.attr_name} = {stored!r:.60}, and a version is a whole number. Store one, "
        f"or remove the attribute; a retry does not help."
    )


class VersionPart:
    """The version's part of one write, by a writer who knows the stored item as `before`.

    `is_checked` says whether that must be so. The write was sent under the `write_ids`, in order; the model may have
    none.
    """

    def __init__(self, shape: Shape, before: Known, nonce: str, *, is_checked: bool) -> None:
        self.shape = shape
        self.before = before
        self.is_checked = is_checked
        self.write_ids: list[str] = []
        self._stored_id: dict[str, str] = {}
        if shape.write_id is not None:
            self.renew(nonce)

    def renew(self, nonce: str) -> None:
        """Give the write another id, before it is sent again."""
        # Without a check the item may have been deleted and created again since it was read.
        write_id = next_write_id(self.before if self.is_checked else Known(), nonce)
        self.write_ids.append(write_id)
        self._stored_id[STRING] = write_id

    def note(self, write_id: str | None) -> None:
        """Make a stored id the last one, if it is one of this write's."""
        if write_id in self.write_ids:
            self.write_ids.append(write_id)

    @property
    def write_id(self) -> str | None:
        """The id of the last attempt; None if the model has none."""
        return self.write_ids[-1] if self.write_ids else None

    @property
    def begins_life(self) -> bool:
        """Whether the write may create the item again: it creates it, does not check it, or does not know its id.

        Nothing prevents DynamoDB from applying a second copy of such a write, after a delete or at once.
        """
        return bool(self.write_ids) and (not self.is_checked or self.before.write_id is None)

    def condition(self) -> Condition | None:
        """Return the condition that the stored item is the one that was read."""
        path = self.shape.version
        if path is None or not self.is_checked:
            return None
        if self.before.version is None:
            absent: Condition = path.does_not_exist()
            return absent
        same: Condition = path == Stored({NUMBER: str(self.before.version)})
        if self.shape.write_id is None or self.before.write_id is None:
            return same  # an unknown id is not compared: PynamoDB stores none, and a projection has none
        # R1: a write id never comes again, where a number does after a delete.
        same &= self.shape.write_id == Stored({STRING: self.before.write_id})
        return same

    def actions(self) -> list[Action]:
        """Return the actions that increment the stored version, or begin it with 1, and store the write id."""
        shape = self.shape
        creates = self.is_checked and self.before.version is None
        version = shape.begin if creates else shape.count
        actions: list[Action] = [] if version is None else [version]
        if shape.format_ is not None:
            actions.append(shape.format_)
        if shape.write_id_name is not None:
            actions.append(SetStored(shape.write_id_name, self._stored_id))
        return actions

    def complete_put(self, attributes: dict[str, Any]) -> None:
        """Put the new version and the id into the attributes of a Put."""
        if self.shape.attribute is not None:
            attributes[self.shape.attribute.attr_name] = {NUMBER: str((self.before.version or 0) + 1)}
        if self.shape.write_id_name is not None:
            attributes[self.shape.write_id_name] = self._stored_id
        if self.shape.format_ is not None:
            attributes[FORMAT_NAME] = _FORMAT


#: The one attribute that this package sets on an instance: its `ItemState`.
_SLOT: Final = "_pynamo_locking"


class WrittenBy(NamedTuple):
    """The write that stored an item; for `removable` see the function."""

    version: int | None = None
    write_id: str | None = None
    removable: frozenset[str] | None = None


class ItemState(NamedTuple):
    """What an instance knows of its stored item. A value, so a copy has its own, and an old one can be put back.

    Attributes:
        written_by: the write that stored the item.
        lacking: the versions with values that the instance does not have, if its own version becomes one of them.
        values: what the rows of its unique values depend on, and the version and write id of the item that has them.
        notes: what upper floors keep with the instance, by its class.
        part: the stored names of the attributes that the instance was read with; None for all.
        was_read: whether the instance was loaded from a stored item.
    """

    written_by: WrittenBy = WrittenBy()
    lacking: tuple[int | None, ...] = ()
    values: tuple[Known, Mapping[str, Any]] = (Known(), {})
    notes: Mapping[type, Any] = {}
    part: frozenset[str] | None = None
    was_read: bool = False

    def __deepcopy__(self, memo: object) -> ItemState:
        """Nothing in it is changed."""
        return self


_NOTHING: Final = ItemState()


def _state_of(item: Model) -> ItemState:
    state: ItemState = vars(item).get(_SLOT, _NOTHING)
    return state


def _change(item: Model, **changed: Any) -> None:
    vars(item)[_SLOT] = vars(item).get(_SLOT, _NOTHING)._replace(**changed)


def noted(item: Model, kind: type[T]) -> T | None:
    """Return the note of that class that an upper floor keeps with an instance, if there is one."""
    found: T | None = vars(item).get(_SLOT, _NOTHING).notes.get(kind)
    return found


def note(item: Model, what: object) -> None:
    """Keep a note with an instance, in place of the last one of its class."""
    state = _state_of(item)
    vars(item)[_SLOT] = state._replace(notes={**state.notes, type(what): what})


def drop_note(item: Model, kind: type[T]) -> T | None:
    """Return the note of that class, if there is one, and keep it no longer."""
    found = noted(item, kind)
    if found is not None:
        _change(item, notes={other: what for other, what in _state_of(item).notes.items() if other is not kind})
    return found


def known_state(item: Model) -> Known:
    """Return what an instance knows of its stored item."""
    version, by = version_of(item), vars(item).get(_SLOT, _NOTHING).written_by
    # If the caller has assigned another version, the id does not belong to it.
    return Known(version, by.write_id if version == by.version else None)


def lacks_version(item: Model) -> bool:
    """Tell whether an instance was loaded from an item without a version, as another program stores it."""
    return version_of(item) is None and _state_of(item).was_read


def removable(item: Model) -> frozenset[str] | None:
    """Return those names in the stored item that a save may have to remove; None if they are not known.

    They are those of the item with the write id that the instance knows.
    """
    return _state_of(item).written_by.removable


def _written_by(version: int | None, write_id: str | None, removable: frozenset[str] | None = None) -> WrittenBy:
    """Return the write that has stored a version; without an id the write is not known."""
    return _NOTHING.written_by if write_id is None else WrittenBy(version, write_id, removable)


def note_written(item: Model, write_id: str | None) -> None:
    """Note the id of the write that has stored the version of an instance, None if it is not known."""
    _change(item, written_by=_written_by(version_of(item), write_id))


def note_writing(item: Model, write_id: str | None, removable: frozenset[str] | None) -> None:
    """Note the id of the write that has stored the next version of an instance; for `removable` see the function.

    PynamoDB's `update_local_version_attribute` is to give the instance that version.
    """
    _change(item, written_by=_written_by(_next_version(item), write_id, removable), lacking=())


def note_update(item: Model) -> None:
    """Note that an update of an instance may be applied, after which it has the next version without the values."""
    _change(item, lacking=(_next_version(item),))


def _next_version(item: Model) -> int | None:
    name = version_name_of(item)
    return None if name is None else (item.attribute_values.get(name) or 0) + 1


def remember(item: Model, image: Mapping[str, Any]) -> None:
    """Note what an instance knows that was loaded from an image."""
    shape = shape_of(type(item))
    write_id = None if shape.write_id_name is None else image.get(shape.write_id_name, {}).get(STRING)
    by = _written_by(version_of(item), write_id, frozenset(image) - shape.lasting)
    _change(item, written_by=by, lacking=(), part=None, was_read=True)
    if shape.unique is not None:
        note_values(item, image)


def read_in_part(item: _M, part: frozenset[str] | None) -> _M:
    """Note with an instance which attributes it was read with; None for all."""
    if part != _state_of(item).part:
        _change(item, part=part)
    return item


def check_whole(item: Model) -> None:
    """Refuse to save an instance that was read in part: what it lacks would be removed, but for a lock."""
    part = _state_of(item).part
    if part is None:
        return
    lock = lock_attribute_of(item)
    declared = item.get_attributes().items()
    lacking = [name for name, each in declared if each.attr_name not in part and each is not lock]
    if lacking:
        raise ConfigurationError(
            f"this {type(item).__name__} was read without {', '.join(lacking):.80}, which a save of the whole item "
            f"would remove: nothing was sent. Call refresh() first, or update(actions=[...])."
        )


def note_values(item: Model, image: Mapping[str, Any]) -> None:
    """Note what of a stored item the rows of its unique values depend on; its model has such."""
    _change(item, values=(known_state(item), unique_values.watched(type(item), image)))


def values_of(item: Model) -> tuple[Known, Mapping[str, Any]]:
    """Return what was noted, and of which stored item."""
    return _state_of(item).values


def copy_state(source: Model, target: Model) -> None:
    vars(target)[_SLOT] = _state_of(source)._replace(notes=_state_of(target).notes)


def take_version(item: Model, attributes: Mapping[str, Any]) -> None:
    """Set the version of an instance to the one that DynamoDB has stored."""
    version, write_id = known_of(type(item), attributes).version, known_state(item).write_id
    name = version_name_of(item)
    if version is not None and name is not None:
        setattr(item, name, version)
        note_written(item, write_id)


def set_known(item: Model, before: Known) -> None:
    """Make an instance a copy of that stored version, whatever it was loaded from."""
    if known_state(item) == before:
        return
    name = version_name_of(item)
    if name is not None:
        if before.version is None:
            item.attribute_values.pop(name, None)  # PynamoDB's own version attribute does not take None
        else:
            setattr(item, name, before.version)
        note_written(item, before.write_id)


@contextlib.contextmanager
def planned_as(item: Model, before: Known) -> Iterator[None]:
    """Plan the write of an instance as if it had been loaded from that stored version; restore it afterwards."""
    if known_state(item) == before:
        yield
        return
    name, values, by = str(version_name_of(item)), dict(item.attribute_values), _state_of(item).written_by
    set_known(item, before)
    try:
        yield
    finally:
        item.attribute_values.pop(name, None)
        if name in values:
            item.attribute_values[name] = values[name]
        _change(item, written_by=by)


def part_of(item: Model, *, is_checked: bool, token: str | None = None) -> VersionPart:
    """Return the version's part of a write; it is empty if the model has no versions.

    If the caller has named the transaction, the write id is derived from its `token`: DynamoDB recognises a repeated
    transaction only if all of its actions are equal.
    """
    shape, before = shape_of(type(item)), known_state(item)
    nonce = "" if shape.write_id is None else _nonce(item, before, token)
    return VersionPart(shape, before, nonce, is_checked=is_checked and shape.attribute is not None)


def _nonce(item: Model, before: Known, token: str | None) -> str:
    if token is None:
        return runtime.current.token()
    keys = stored_key_of(item)
    text = repr((token, type(item).Meta.table_name, keys, before.version, before.write_id))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def mark_stale(item: Model) -> None:
    """Mark an instance as stale: it has a version, and not the values that a transaction has stored with it.

    So the version would not tell. Without one the next save overwrites the item, as with PynamoDB.
    """
    _change(item, lacking=(version_of(item),))


def is_old(item: Model) -> bool:
    lacking = _state_of(item).lacking
    return bool(lacking) and version_name_of(item) is not None and version_of(item) in lacking


def check_current(item: Model, error: type[PynamoDBException]) -> None:
    """Refuse to save a stale instance whose staleness DynamoDB could not notice."""
    if is_old(item):
        why = "was changed by a transaction, and the copy does not have the result: saving it would take that back."
        raise stale(item, error, f"{why} Nothing was sent. refresh() it first.")


def stale(item: Model, error: type[PynamoDBException], why: str, stored: Known | None = None) -> Exception:
    """Return the error for an instance that is known to be stale without a request."""
    known = known_state(item)
    refused: Exception = also(StaleVersion, error)(
        f"this {type(item).__name__} {why}",
        expected=known.version,
        actual=(stored or known).version,
        cause=responses.condition_failed(error, "the copy is older than its version", item.Meta.table_name),
    )
    return refused


# Entity tags: a version of an item as text, for clients that read an item and write it later.


#: DynamoDB's numbers have at most 38 digits.
_LONGEST_NUMBER: Final = 38


def etag_of(item: Any) -> str:
    """Return the entity tag of a stored item, without its quotes: its version, and the id of its last write."""
    known = known_state(item)
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
    if shape_of(model).attribute is None:
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
    shape = shape_of(model)
    is_one = tags is not None and len(expected) == len(tags) == 1
    is_enough = shape.unique is None and (shape.write_id_name is None or (is_one and expected[0].write_id is not None))
    if found is model and is_one and is_enough:
        item = new_item(model, hash_key, range_key)  # no read is needed: the write itself compares
        set_known(item, expected[0])
        return item
    current: Any = _read(model, hash_key, range_key) if found is model else found
    stored = Known(None, None) if current is None else known_state(current)
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
    set_known(current, meant[0])
    return current


def _read(model: Any, hash_key: Any, range_key: Any) -> Any:
    try:
        return model.get(hash_key, range_key, consistent_read=True)
    except model.DoesNotExist:
        return None
