"""The part of a write that is about versions: the condition, the count, and the id by which we know it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.constants import NUMBER, STRING
from pynamodb.expressions.operand import Path

from pynamo_locking._core.outcome import Known, next_write_id
from pynamo_locking._io import runtime, transport
from pynamo_locking._io.operands import Stored
from pynamo_locking.exceptions import ConfigurationError, StaleVersion, also

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.attributes import Attribute
    from pynamodb.exceptions import PynamoDBException
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

#: Where an instance keeps the id of the write that made its stored item; no attribute of the model.
WRITE_ID: Final = "_pynamo_locking_write_id"

#: Where it keeps what becomes of it when the transaction is committed that it is part of.
_PROMISE: Final = "_pynamo_locking_promise"

#: Set on an instance whose attributes are no longer those of the version it carries.
_OUTDATED: Final = "_pynamo_locking_outdated"

#: Set on a model class: its `Shape`, worked out once.
_SHAPE: Final = "_pynamo_locking_shape"


class Shape:
    """Where the items of one model have their version and their write id, and the expressions about them.

    Attributes:
        attribute: the version attribute, if the model has one.
        write_id_name: the stored name of the write ids, None if the model has none.
    """

    def __init__(self, attribute: Attribute[Any] | None, write_id_name: str | None) -> None:
        self.attribute = attribute
        self.write_id_name = write_id_name
        # Building these is a good part of the work of a write, and they are the same for all writes.
        self.version = None if attribute is None else Path(attribute)
        self.write_id = None if write_id_name is None else Path([write_id_name])
        self.count = None if attribute is None else attribute.add(1)
        self.begin = None if attribute is None else attribute.set(1)


def shape_of(model: type[Model]) -> Shape:
    """Return where a model has versions and write ids.

    ``Meta.write_id`` names the attribute of the ids. Without that, models with a version have one beside it.

    Raises:
        ConfigurationError: the name is that of another attribute.
    """
    shape: Shape | None = vars(model).get(_SHAPE)
    if shape is None:
        name = model._version_attribute_name
        attribute = None if name is None else model.get_attributes()[name]
        shape = Shape(attribute, _find_name(model, attribute))
        setattr(model, _SHAPE, shape)
    return shape


def _find_name(model: type[Model], attribute: Attribute[Any] | None) -> str | None:
    usual = None if attribute is None else f"{attribute.attr_name}_write_id"
    name = getattr(model.Meta, "write_id", usual)
    if name is not None and not (isinstance(name, str) and name):
        raise ConfigurationError(
            f"Meta.write_id of {model.__name__} is {name!r}: give the name of an attribute for write ids, "
            f"such as 'write_id', or None for none."
        )
    if name in {other.attr_name for other in model.get_attributes().values()}:
        raise ConfigurationError(
            f"{model.__name__} would keep its write ids in {name!r}, which is an attribute of its own: "
            f"name another one in Meta.write_id."
        )
    return name


def known(item: Model) -> Known:
    """Return what an instance knows of its stored item."""
    name = item._version_attribute_name
    return Known(None if name is None else getattr(item, name), vars(item).get(WRITE_ID))


def known_of(model: type[Model], image: Mapping[str, Any]) -> Known:
    """Return the version and the write id in an image of a stored item."""
    shape = shape_of(model)
    version = None if shape.attribute is None else image.get(shape.attribute.attr_name, {}).get(NUMBER)
    write_id = None if shape.write_id_name is None else image.get(shape.write_id_name, {}).get(STRING)
    return Known(None if version is None else int(float(version)), write_id)


def remember(item: Model, image: Mapping[str, Any]) -> None:
    """Note the write id of the image that an instance was loaded from."""
    name, state = shape_of(type(item)).write_id_name, vars(item)
    state.pop(_OUTDATED, None)
    state.pop(WRITE_ID, None)
    if name is not None and STRING in image.get(name, {}):
        state[WRITE_ID] = image[name][STRING]


def expect(item: Model, attribute: Attribute[Any], version: int | None) -> None:
    """Note that somebody assigned a version: with another one, the write id that is known is not its own."""
    state = vars(item)
    if WRITE_ID in state and version != attribute.__get__(item, type(item)):
        del state[WRITE_ID]


def copy_knowledge(source: Model, target: Model) -> None:
    """Make one instance know of the stored item what another one does."""
    for name in (WRITE_ID, _OUTDATED):
        vars(target).pop(name, None)
        if name in vars(source):
            vars(target)[name] = vars(source)[name]


def adopt(item: Model, attributes: Mapping[str, Any]) -> None:
    """Take the version that DynamoDB has counted up to."""
    version = known_of(type(item), attributes).version
    if version is not None and item._version_attribute_name is not None:
        write_id = vars(item).get(WRITE_ID)
        setattr(item, item._version_attribute_name, version)
        vars(item)[WRITE_ID] = write_id


def are_same(known: Known, stored: Known) -> bool:
    """Tell whether the stored item is the one that was read, as far as can be known."""
    return known.version == stored.version and known.write_id in (None, stored.write_id)


@dataclass(frozen=True)
class VersionPart:
    """What versions add to one write.

    Attributes:
        shape: of the item's model.
        before: what the writer knows of the stored item.
        write_id: the id of this write; None if the model has none.
        is_checked: whether the stored version must be the known one.
    """

    shape: Shape
    before: Known
    write_id: str | None
    is_checked: bool

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
            return same  # an id that we do not know is not compared: PynamoDB writes none, a projection has none
        same &= self.shape.write_id == Stored({STRING: self.before.write_id})
        return same

    def actions(self) -> list[Action]:
        """Return what an update does besides: count, and leave its id.

        Without a check the stored version counts, since ours may be old, or unknown.
        """
        shape = self.shape
        creates = self.is_checked and self.before.version is None
        actions: list[Action | None] = [shape.begin if creates else shape.count]
        if shape.write_id is not None:
            actions.append(shape.write_id.set(Stored({STRING: self.write_id})))
        return [action for action in actions if action is not None]

    def complete_put(self, attributes: dict[str, Any]) -> None:
        """Put the new version and the id into the attributes of a Put."""
        if self.shape.attribute is not None:
            attributes[self.shape.attribute.attr_name] = {NUMBER: str((self.before.version or 0) + 1)}
        if self.shape.write_id_name is not None:
            attributes[self.shape.write_id_name] = {STRING: self.write_id}


def part_of(item: Model, *, is_checked: bool) -> VersionPart:
    """Return what versions add to a write of an item: nothing, if its model has none."""
    shape, before = shape_of(type(item)), known(item)
    write_id = None if shape.write_id is None else next_write_id(before, runtime.current.token())
    return VersionPart(shape, before, write_id, is_checked and shape.attribute is not None)


# What becomes of the instance


@dataclass(frozen=True)
class _Promise:
    write_id: str | None
    outdates: bool


def promise(item: Model, part: VersionPart, *, outdates: bool = False) -> None:
    """Note what PynamoDB's call of `update_local_version_attribute` will mean for an instance.

    Args:
        item: the instance.
        part: of the write that will have been applied then.
        outdates: whether the stored item will have attributes that the instance does not.
    """
    vars(item)[_PROMISE] = _Promise(part.write_id, outdates)


def keep_promise(item: Model) -> None:
    """Note that the write has been applied."""
    state = vars(item)
    made: _Promise | None = state.pop(_PROMISE, None)
    state.pop(WRITE_ID, None)
    if made is not None and made.write_id is not None:
        state[WRITE_ID] = made.write_id
    if made is not None and made.outdates and item._version_attribute_name is not None:
        state[_OUTDATED] = True


def check_current(item: Model, error: type[PynamoDBException]) -> None:
    """Refuse to save what a transaction has changed behind the instance's back.

    Raises:
        StaleVersion: the instance carries the new version and the old attributes; saving it would take
            the transaction's change back.
    """
    if _OUTDATED in vars(item):
        raise also(StaleVersion, error)(
            f"this {type(item).__name__} was changed by a transaction, and the copy does not have the result: saving "
            f"it would take that change back. Nothing was sent. refresh() it first.",
            expected=known(item).version,
            cause=transport.condition_failed(error, "the copy is older than its version"),
        )
