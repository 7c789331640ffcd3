"""Model attributes of the package."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import Attribute
from pynamodb.attributes import TTLAttribute as PynamoTTLAttribute
from pynamodb.attributes import VersionAttribute as PynamoVersionAttribute
from pynamodb.constants import MAP
from typing_extensions import Self, Unpack, overload, override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.queue import FREE, LockState
from pynamo_locking._io import runtime
from pynamo_locking._io.lock_document import state_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._locks.options import LockKeywords

#: The last second of the calendar.
_LAST_S: Final = 253402300799


class LockAttribute(Attribute[LockState]):
    """The lock of an item, kept inside the item that it protects.

    Declare one on a model to embed its locks; one write request then both takes the lock and reads
    the item. The attribute is maintained by lock operations alone: on an instance it reads as the
    `LockState` at the time the instance was loaded, and it cannot be assigned.

    A model may call the attribute ``lock``, as most do. ``Model.lock(key)`` still makes a lock then:
    on the class, the attribute can be called with the key of an item.

    Args:
        attr_name: name in the stored item, if it differs from the Python name.

    Raises:
        ConfigurationError: on assignment.
    """

    attr_type = MAP
    null = True

    def __init__(self, attr_name: str | None = None) -> None:
        super().__init__(null=True, attr_name=attr_name)
        self._model: type[Any] | None = None

    @overload
    def __get__(self, instance: None, owner: Any) -> LockAttribute: ...

    @overload
    def __get__(self, instance: object, owner: Any) -> LockState: ...

    @override
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is not None:
            return super().__get__(instance, owner) or FREE
        if self._model is owner:
            return self
        bound = copy.copy(self)  # all subclasses of a model share one attribute object
        bound._model = owner
        return bound

    @override
    def __set__(self, instance: Any, value: LockState | None) -> None:
        if value is not None and not isinstance(value, LockState):
            raise ConfigurationError(
                f"the lock attribute {self.attr_name!r} cannot be assigned; "
                f"use {type(instance).__name__}.locked(...) to acquire the lock."
            )
        super().__set__(instance, value)

    @override
    def serialize(self, value: LockState) -> Mapping[str, Any] | None:
        return value.raw

    @override
    def deserialize(self, value: Mapping[str, Any]) -> LockState:
        return state_of(value)

    def __call__(self, hash_key: Any, range_key: Any = None, **options: Unpack[LockKeywords]) -> Lock[Any]:
        """Return ``Model.lock(hash_key, range_key, **options)``, for models whose attribute hides it."""
        model: type[Any] | None = self._model
        if model is None:
            raise ConfigurationError("a LockAttribute makes locks only through its model: Model.lock(key).")
        if not hasattr(model, "locked"):
            raise ConfigurationError(
                f"{model.__name__} has a LockAttribute, but is no LockableModel: derive it from one."
            )
        lock: Lock[Any] = model.locked(hash_key, range_key, **options)
        return lock


class VersionAttribute(PynamoVersionAttribute):
    """The number of writes of an item, and the condition of the next one (optimistic locking).

    Used like PynamoDB's attribute of this name, on models that derive from `VersionedMixin` or
    `LockableModel`. It is 1 when the item is first saved and goes up by one with each write. On an instance
    it reads as an int, and as None before the item is stored.

    Assign None to say that the item is not stored yet: the next save creates it, or fails.
    Assign another number to say which version is expected, for a client that sent it (``If-Match``).

    The item also gets the id of its last write, an attribute of 29 bytes plus its name: that of the version with
    ``_write_id`` appended, unless ``Meta.write_id`` has another name, or None for no write ids.

    Args:
        attr_name: name in the stored item, if it differs from the Python name.

    Raises:
        ConfigurationError: the model it is on has no `VersionedMixin`, so nothing would be guarded.
        ValueError: on assignment of anything but a whole number.
    """

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: Any) -> Self: ...

        @overload
        def __get__(self, instance: object, owner: Any) -> int: ...

    @override
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        if not hasattr(owner, "_writer"):
            raise ConfigurationError(
                f"{owner.__name__} has a VersionAttribute of pynamo_locking, but its base class is PynamoDB's: "
                f"derive it from VersionedMixin and Model, or from LockableModel."
            )
        return Attribute.__get__(self, instance, owner)

    @override
    def __set__(self, instance: Any, value: Any) -> None:
        if value is not None:
            value = _whole(value)
        Attribute.__set__(self, instance, value)

    @override
    def serialize(self, value: Any) -> str:
        return str(int(value))


def _whole(value: Any) -> int:
    try:
        number = int(value)
    except OverflowError:
        number = None
    if number is None or (number != value and not isinstance(value, str)):
        raise ValueError(f"a version is a whole number, or None for an item that is not stored yet: {value!r}")
    return number


class TTLAttribute(PynamoTTLAttribute):
    """When an item expires, as in PynamoDB: assign an aware datetime, or a timedelta from now on.

    "Now" is the clock of the library, which a test can set. DynamoDB deletes an expired item some time
    later, usually within days; `ExpiringMixin` makes it count as absent at once.

    Args:
        **options: those of PynamoDB's attribute; ``null=True`` for items that may have no end.
    """

    if TYPE_CHECKING:

        @override
        def __set__(self, instance: Any, value: datetime | timedelta | None) -> None: ...

    @override
    def deserialize(self, value: Any) -> datetime:
        try:
            end: datetime = super().deserialize(value)  # type: ignore[no-untyped-call]
        except (OverflowError, ValueError, OSError):  # beyond the calendar
            return datetime.fromtimestamp(0 if float(value) < 0 else _LAST_S, tz=timezone.utc)
        return end

    @override
    def _normalize(self, value: Any) -> datetime | None:
        if isinstance(value, timedelta):
            value = datetime.fromtimestamp(runtime.current.time_ms() / 1000, tz=timezone.utc) + value
        normal: datetime | None = super()._normalize(value)  # type: ignore[no-untyped-call]
        return normal
