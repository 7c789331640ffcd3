"""The part of a write that is about versions: the condition, the count, and the id by which we know it again."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pynamodb.constants import NUMBER, STRING
from pynamodb.expressions.operand import Path

from pynamo_locking._core.freshness import Freshness, Why
from pynamo_locking._core.outcome import Known, next_write_id
from pynamo_locking._io import runtime, transport
from pynamo_locking._io.operands import Stored
from pynamo_locking.exceptions import ConfigurationError, StaleVersion, also

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pynamodb.attributes import Attribute
    from pynamodb.exceptions import PynamoDBException
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

#: Where an instance keeps its version and the id of the write that made it; no attribute of the model.
WRITE_ID: Final = "_pynamo_locking_write_id"

#: Where it keeps what becomes of it when the transaction is committed that it is part of.
_EXPECTED: Final = "_pynamo_locking_expected"

#: Where it keeps its `Freshness`, once something was known of that.
_FRESHNESS: Final = "_pynamo_locking_freshness"

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
        self.version: Path | None = None if attribute is None else Path(attribute)
        self.write_id: Path | None = None if write_id_name is None else Path([write_id_name])
        self.count: Action | None = None if attribute is None else attribute.add(1)
        self.begin: Action | None = None if attribute is None else attribute.set(1)


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


def known(item: Model) -> Known:
    """Return what an instance knows of its stored item."""
    version, (of_version, write_id) = _version_of(item), vars(item).get(WRITE_ID, (None, None))
    # With a version that somebody assigned, what we know is the id of another one.
    return Known(version, write_id if version == of_version else None)


def _version_of(item: Model) -> int | None:
    name = item._version_attribute_name
    version: int | None = None if name is None else getattr(item, name)
    return version


def _set_write_id(item: Model, write_id: str | None) -> None:
    vars(item).pop(WRITE_ID, None)
    if write_id is not None:
        vars(item)[WRITE_ID] = (_version_of(item), write_id)


def known_of(model: type[Model], image: Mapping[str, Any]) -> Known:
    """Return the version and the write id in an image of a stored item."""
    shape = shape_of(model)
    version = None if shape.attribute is None else image.get(shape.attribute.attr_name, {}).get(NUMBER)
    write_id = None if shape.write_id_name is None else image.get(shape.write_id_name, {}).get(STRING)
    return Known(None if version is None else int(Decimal(version)), write_id)


def remember(item: Model, image: Mapping[str, Any]) -> None:
    """Note the write id of the image that an instance was loaded from."""
    name = shape_of(type(item)).write_id_name
    vars(item).pop(_FRESHNESS, None)
    _set_write_id(item, None if name is None else image.get(name, {}).get(STRING))


def forget(item: Model) -> None:
    """Note that the item is written by somebody who leaves no write id."""
    _set_write_id(item, None)


def copy_knowledge(source: Model, target: Model) -> None:
    """Make one instance know of the stored item what another one does."""
    for name in (WRITE_ID, _FRESHNESS):
        vars(target).pop(name, None)
        if name in vars(source):
            vars(target)[name] = vars(source)[name]


def take_version(item: Model, attributes: Mapping[str, Any]) -> None:
    """Take the version that DynamoDB has counted up to."""
    version, write_id = known_of(type(item), attributes).version, known(item).write_id
    if version is not None and item._version_attribute_name is not None:
        setattr(item, item._version_attribute_name, version)
        _set_write_id(item, write_id)


def set_known(item: Model, before: Known) -> None:
    """Make an instance one of a stored item, whatever it was loaded from."""
    name = item._version_attribute_name
    if name is not None:
        if before.version is None:
            item.attribute_values.pop(name, None)  # PynamoDB's own version attribute does not take None
        else:
            setattr(item, name, before.version)
        _set_write_id(item, before.write_id)


@contextlib.contextmanager
def planned_as(item: Model, before: Known) -> Iterator[None]:
    """Plan the write of an instance as if it had been loaded from that stored item; it is what it was afterwards."""
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


class VersionPart:
    """What versions add to one write.

    Attributes:
        shape: of the item's model.
        before: what the writer knows of the stored item.
        is_checked: whether the stored version must be the known one.
        write_ids: the ids under which the write was sent, the last one last; none if the model has none.
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
        # Without a check the item may have begun a new life that we do not know of.
        write_id = next_write_id(self.before if self.is_checked else Known(), nonce)
        self.write_ids.append(write_id)
        self._stored_id[STRING] = write_id

    def note(self, write_id: str | None) -> None:
        """Note which of the ids was stored, if it is one of them."""
        if write_id in self.write_ids:
            self.write_ids.append(write_id)

    @property
    def write_id(self) -> str | None:
        """The id under which the write was sent last; None if the model has none."""
        return self.write_ids[-1] if self.write_ids else None

    @property
    def begins_life(self) -> bool:
        """Whether the write begins a new life: it creates the item, does not check it, or does not know its id.

        Nothing keeps a second copy of such a write from being applied, after a delete or at once.
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
            actions.append(shape.write_id.set(Stored(self._stored_id)))
        return [action for action in actions if action is not None]

    def complete_put(self, attributes: dict[str, Any]) -> None:
        """Put the new version and the id into the attributes of a Put."""
        if self.shape.attribute is not None:
            attributes[self.shape.attribute.attr_name] = {NUMBER: str((self.before.version or 0) + 1)}
        if self.shape.write_id_name is not None:
            attributes[self.shape.write_id_name] = self._stored_id


def part_of(item: Model, *, is_checked: bool, token: str | None = None) -> VersionPart:
    """Return what versions add to a write of an item: nothing, if its model has none.

    Args:
        item: the model instance.
        is_checked: whether the stored version must be the known one.
        token: names the transaction of the write, if the caller has named it himself. The write id then
            comes from it, since DynamoDB takes a transaction for the same one only if all of it is the same.
    """
    shape, before = shape_of(type(item)), known(item)
    nonce = "" if shape.write_id is None else _nonce(item, before, token)
    return VersionPart(shape, before, nonce, is_checked=is_checked and shape.attribute is not None)


def _nonce(item: Model, before: Known, token: str | None) -> str:
    if token is None:
        return runtime.current.token()
    text = repr((token, type(item).Meta.table_name, item._get_serialized_keys(), before))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


# What becomes of the instance


@dataclass(frozen=True)
class _Expected:
    write_id: str | None
    outdates: bool


def expect(item: Model, part: VersionPart, *, outdates: bool = False, is_handed_out: bool = False) -> None:
    """Note what PynamoDB's call of `update_local_version_attribute` will mean for an instance.

    Args:
        item: the instance.
        part: of the write that will have been applied then.
        outdates: whether the stored item will have attributes that the instance does not.
        is_handed_out: whether somebody else sends the write. Of two such writes nobody tells us which it was.
    """
    is_second = is_handed_out and _EXPECTED in vars(item)
    vars(item)[_EXPECTED] = _Expected(None if is_second else part.write_id, outdates)


def take_expected(item: Model) -> None:
    """Note that the write has been applied."""
    made: _Expected | None = vars(item).pop(_EXPECTED, None)
    _set_write_id(item, None if made is None else made.write_id)
    if made is not None and made.outdates:
        mark_old(item, is_locked=False)


def mark_old(item: Model, why: Why = Why.COMMITTED, *, is_locked: bool = True) -> None:
    """Note that the stored item may have another state than an instance shows."""
    has_version = item._version_attribute_name is not None
    vars(item)[_FRESHNESS] = freshness(item).marked(why, known(item), has_version=has_version, is_locked=is_locked)


def freshness(item: Model) -> Freshness:
    """Return what is known of the age of an instance."""
    found: Freshness = vars(item).get(_FRESHNESS, Freshness())
    return found


def is_old(item: Model) -> bool:
    """Tell whether the stored item may have another state than an instance shows."""
    return freshness(item).is_old(known(item))


def check_current(item: Model, error: type[PynamoDBException]) -> None:
    """Refuse to save what was changed, or may have been, without a trace that DynamoDB would notice.

    Raises:
        StaleVersion: it was.
    """
    if freshness(item).must_not_be_saved:
        raise stale(item, error, f"{freshness(item).why}. Nothing was sent. refresh() it first.")


def stale(item: Model, error: type[PynamoDBException], why: str) -> Exception:
    """Return the error for a copy that is known to be old without asking DynamoDB."""
    version = known(item).version
    refused: Exception = also(StaleVersion, error)(
        f"this {type(item).__name__} {why}",
        expected=version,
        actual=version,
        cause=transport.condition_failed(error, "the copy is older than its version", item.Meta.table_name),
    )
    return refused
