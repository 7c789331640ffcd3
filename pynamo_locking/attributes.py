"""Model attributes of the package."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pynamodb.attributes import Attribute
from pynamodb.constants import MAP
from typing_extensions import overload, override

from pynamo_locking._core.queue import FREE, LockState
from pynamo_locking._io.records import state_of
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking.locks import Lock
    from pynamo_locking.models import LockableMixin


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
        bound = copy.copy(self)  # one attribute object serves all subclasses of a model
        bound._model = owner
        return bound

    @override
    def __set__(self, instance: Any, value: LockState | None) -> None:
        if value is not None and not isinstance(value, LockState):
            raise ConfigurationError(
                f"the lock attribute {self.attr_name!r} cannot be assigned; "
                f"use {type(instance).__name__}.locked(...) to take the lock."
            )
        super().__set__(instance, value)

    @override
    def serialize(self, value: LockState) -> Mapping[str, Any] | None:
        return value.raw

    @override
    def deserialize(self, value: Mapping[str, Any]) -> LockState:
        return state_of(value)

    def __call__(self, hash_key: Any, range_key: Any = None, **options: Any) -> Lock[Any]:
        """Return ``Model.lock(hash_key, range_key, **options)``, for models whose attribute hides it."""
        model: type[LockableMixin] | None = self._model
        if model is None:
            raise ConfigurationError("a LockAttribute makes locks only through its model: Model.lock(key).")
        if not hasattr(model, "locked"):
            raise ConfigurationError(
                f"{model.__name__} has a LockAttribute, but is no LockableModel: derive it from one."
            )
        return model.locked(hash_key, range_key, **options)
