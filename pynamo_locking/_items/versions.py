"""Where a model keeps its versions, and the version's part of a write."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pynamodb.constants import NUMBER, STRING

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.outcome import Known, next_write_id
from pynamo_locking._io import flaws
from pynamo_locking._io.stored import FORMAT, FORMAT_NAME, Place, Stored, known_format

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.operand import Path
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

#: Set on a model class: its `Shape`, worked out once.
_SHAPE: Final = "_pynamo_locking_shape"

_FORMAT: Final = {NUMBER: str(FORMAT)}


class Shape:
    """The attributes of a model for its versions and write ids, each None if it has none, and their expressions.

    `lasting` has the names of all attributes that no save removes. Of rows of ours, `known` is
    the condition that no newer release has stored the row, and `format_` the action that stores its format.
    """

    def __init__(
        self,
        attribute: Attribute[Any] | None,
        write_id_name: str | None,
        lasting: frozenset[Any],
        *,
        has_format: bool = False,
    ) -> None:
        self.attribute = attribute
        self.write_id_name = write_id_name
        self.lasting = lasting
        # Building these is a large part of the work of a write, and they are the same for all writes.
        self.version: Path | None = None if attribute is None else Place(attribute.attr_name)
        self.write_id: Path | None = None if write_id_name is None else Place(write_id_name)
        self.count: Action | None = None if self.version is None else self.version.add(Stored({NUMBER: "1"}))
        self.begin: Action | None = None if self.version is None else self.version.set(Stored({NUMBER: "1"}))
        self.known: Condition | None = known_format() if has_format else None
        self.format_: Action | None = Place(FORMAT_NAME).set(Stored(_FORMAT)) if has_format else None


def shape_of(model: type[Model]) -> Shape:
    """Return where a model has versions and write ids.

    ``Meta.write_id`` names the attribute of the ids. Without it, a model with a version has one beside the version.
    """
    shape: Shape | None = vars(model).get(_SHAPE)
    if shape is None:
        name = model._version_attribute_name
        attribute = None if name is None else model.get_attributes()[name]
        write_id_name = _find_name(model, attribute)
        required = {each.attr_name for each in model.get_attributes().values() if not each.null or each is attribute}
        has_format = getattr(model, "_has_format", False)
        if has_format and FORMAT_NAME in {each.attr_name for each in model.get_attributes().values()}:
            raise ConfigurationError(f"{model.__name__} keeps the format of its rows in {FORMAT_NAME!r}: rename yours.")
        shape = Shape(attribute, write_id_name, frozenset({*required, write_id_name}), has_format=has_format)
        setattr(model, _SHAPE, shape)
    return shape


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
            f"{model.__name__} would keep its write ids in {name!r}, which is an attribute of its own: "
            f"name another one in Meta.write_id."
        )
    return name


def refuse_newer(model: type[Model], image: Mapping[str, Any] | None) -> None:
    """Refuse a row of ours of a newer format.

    Raises:
        UnknownFormat: it is.
    """
    if image is None or shape_of(model).known is None:
        return
    keys = (model._hash_key_attribute(), model._range_key_attribute())
    names, table = [each.attr_name for each in keys if each is not None], model.Meta.table_name
    key = {name: image[name] for name in names if name in image}
    what = f"the row {', '.join(value['S'] for value in key.values())!r} of {table!r}"
    flaws.refuse_newer(image, what, table=table, key=key)


def known_of(model: type[Model], image: Mapping[str, Any]) -> Known:
    """Return the version and the write id in an image of a stored item."""
    shape = shape_of(model)
    version = None if shape.attribute is None else image.get(shape.attribute.attr_name, {}).get(NUMBER)
    write_id = None if shape.write_id_name is None else image.get(shape.write_id_name, {}).get(STRING)
    return Known(None if version is None else int(Decimal(version)), write_id)


class VersionPart:
    """The version's part of one write.

    Attributes:
        shape: of the item's model.
        before: what the writer knows of the stored item.
        is_checked: whether the stored version must be the known one.
        write_ids: the ids under which the write was sent, in order; empty if the model has none.
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
        """Whether the write may create the item anew: it creates it, does not check it, or does not know its id.

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
        same &= self.shape.write_id == Stored({STRING: self.before.write_id})
        return same

    def actions(self) -> list[Action]:
        """Return the actions that increment the stored version, or begin it with 1, and store the write id."""
        shape = self.shape
        creates = self.is_checked and self.before.version is None
        actions: list[Action | None] = [shape.begin if creates else shape.count, shape.format_]
        if shape.write_id is not None:
            actions.append(shape.write_id.set(Stored(self._stored_id)))
        return [action for action in actions if action is not None]

    def complete_put(self, attributes: dict[str, Any]) -> None:
        """Put the new version and the id into the attributes of a Put."""
        if self.shape.attribute is not None:
            attributes[self.shape.attribute.attr_name] = {NUMBER: str((self.before.version or 0) + 1)}
        if self.shape.write_id_name is not None:
            attributes[self.shape.write_id_name] = self._stored_id
        if self.shape.format_ is not None:
            attributes[FORMAT_NAME] = _FORMAT
